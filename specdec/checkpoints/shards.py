"""safetensors files: one, or several with an index, as transformers lays them out."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.checkpoints import strict
from specdec.checkpoints.folders import WEIGHTS
from specdec.checkpoints.leaves import Index, Leaf
from specdec.checkpoints.strict import CheckpointError

INDEX = f"{WEIGHTS}.index.json"
MAX_BYTES = 4 << 30

# safetensors' names of dtypes that are numpy's by another; others are told as they are.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The weights of a folder: one file, or those that its index names.

    Raises:
      CheckpointError: if there is neither.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        members = strict.read_json(folder / INDEX).get("weight_map")
        if not isinstance(members, dict) or not members:
            raise CheckpointError(f"{folder / INDEX}: has no weight_map: copy it again")
        return [folder / name for name in sorted(set(members.values()))]
    raise CheckpointError(
        f"{folder / WEIGHTS}: missing, and its index, too: copy it again. A pytorch_model.bin is a "
        "pickle, which can run code and is not read: open and save it with transformers, "
        "safe_serialization=True"
    )


def digest(folder: pathlib.Path) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of a folder's weights, whatever it is called.

    Raises:
      CheckpointError: if there are none.
    """
    found = hashlib.sha256()
    for file in files(folder):
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


@contextlib.contextmanager
def opened(paths: Iterable[pathlib.Path]) -> Iterator[dict[str, Leaf]]:
    """Yields the tensors of one or several files by name; only their headers are read here.

    Raises:
      CheckpointError: for a file that is missing or cut short, and a tensor that is there twice.
    """
    with contextlib.ExitStack() as stack:
        leaves: dict[str, Leaf] = {}
        for path in paths:
            try:
                # pread: what is read doesn't stay mapped.
                file = stack.enter_context(safe_open(str(path), "numpy", backend="pread"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{path}: can't be read ({error}). Missing or cut short: copy it again"
                ) from error
            for name in file.keys():  # noqa: SIM118 (a safe_open is no mapping)
                if name in leaves:
                    raise CheckpointError(f"{path}: {name} is in another shard as well")
                leaves[name] = _leaf(file, name)
        yield leaves


def _leaf(file: Any, name: str) -> Leaf:
    header = file.get_slice(name)
    shape, dtype = tuple(header.get_shape()), header.get_dtype()

    def read(index: Index) -> np.ndarray:
        is_whole = all(part == slice(None) for part in index)
        return file.get_tensor(name) if is_whole else file.get_slice(name)[index]

    return Leaf(shape, _DTYPES.get(dtype, dtype), read)


def write(
    folder: pathlib.Path,
    leaves: Mapping[str, Leaf],
    dtype: Any = None,
    *,
    metadata: dict[str, str],
    max_bytes: int = MAX_BYTES,
) -> None:
    """Writes tensors into a folder, in as many files as it takes; reads one file's at a time.

    Args:
      folder: that holds none yet.
      leaves: by name.
      dtype: to store them in; None = as they are.
      metadata: of each file.
      max_bytes: of a file, if it holds more than one tensor.
    """
    groups = list(_groups(leaves, dtype, max_bytes))
    if len(groups) == 1:
        save_file(_read(leaves, groups[0], dtype), folder / WEIGHTS, metadata=metadata)
        return
    stem = WEIGHTS.removesuffix(".safetensors")
    weight_map = {}
    for number, group in enumerate(groups, 1):
        file = f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(_read(leaves, group, dtype), folder / file, metadata=metadata)
        weight_map |= dict.fromkeys(group, file)
    total = sum(_num_bytes(leaf, dtype) for leaf in leaves.values())
    content = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _groups(leaves: Mapping[str, Leaf], dtype: Any, max_bytes: int) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name, leaf in leaves.items():
        more = _num_bytes(leaf, dtype)
        if group and size + more > max_bytes:
            yield group
            group, size = [], 0
        group.append(name)
        size += more
    yield group


def _read(leaves: Mapping[str, Leaf], names: Iterable[str], dtype: Any) -> dict[str, np.ndarray]:
    read = {}
    for name in names:
        leaf = leaves[name]
        read[name] = np.ascontiguousarray(leaf.read(), _dtype(leaf, dtype))
    return read


def _dtype(leaf: Leaf, dtype: Any) -> np.dtype:
    return jnp.dtype(leaf.dtype if dtype is None else dtype)


def _num_bytes(leaf: Leaf, dtype: Any) -> int:
    return leaf._replace(dtype=_dtype(leaf, dtype).name).num_bytes
