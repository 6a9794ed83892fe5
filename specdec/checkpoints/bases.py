"""Checkpoints that hold only what sets them apart from another one, their base.

A model that was trained on in some of its parameters shares the others, bit by bit, with the one it
started from. Its config.json then says where that lies, relative to its own folder, and the digest
of its weights: another edition of the base would make another model without a word.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import folders, shards
from specdec.checkpoints.leaves import Leaf
from specdec.checkpoints.strict import CheckpointError

FIELD = "base"


def entry(base: str | os.PathLike, path: str | os.PathLike) -> dict[str, str]:
    """What the config.json of the checkpoint at `path` says of its base."""
    base, path = pathlib.Path(base).resolve(), pathlib.Path(path).resolve()
    return {
        "path": pathlib.Path(os.path.relpath(base, path)).as_posix(),
        "digest": shards.digest(base),
    }


def without_shared(
    flat: Mapping[str, Leaf], base: str | os.PathLike, dtype: Any
) -> dict[str, Leaf]:
    """The parameters that are not the base's once stored in a dtype (None = as they are)."""
    kept = dict(flat)
    with shards.opened(shards.files(pathlib.Path(base))) as others:
        for name in flat.keys() & others.keys():
            ours, theirs = flat[name], others[name]
            to = jnp.dtype(ours.dtype if dtype is None else dtype)
            is_alike = ours.shape == theirs.shape and to == theirs.dtype
            if is_alike and np.array_equal(ours.read().astype(to), theirs.read()):
                del kept[name]
    return kept


@contextlib.contextmanager
def opened(
    folder: pathlib.Path, stated: Mapping[str, str], names: Iterable[str]
) -> Iterator[dict[str, Leaf]]:
    """Yields those of the base's parameters that have these names; `stated` is its `entry`.

    Raises:
      CheckpointError: if the base is missing or was replaced by another.
    """
    try:
        base = (folder / stated["path"]).resolve()
        wanted = stated["digest"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder / folders.CONFIG}: {FIELD}={stated!r} is no path and digest: copy it again"
        ) from error
    folders.check_exists(base)
    found = shards.digest(base)
    if found != wanted:
        raise CheckpointError(
            f"{folder}: was trained on from another edition of {base} (digest {wanted}, not "
            f"{found}): put that one back, or take the checkpoint that goes with this one"
        )
    with shards.opened(shards.files(base)) as flat:
        yield {name: flat[name] for name in names if name in flat}
