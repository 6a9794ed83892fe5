"""The library's own checkpoints: a folder with config.json and model.safetensors.

The tensors carry t5x's names joined by "/", as in decoder/layers_0/mlp/wi/kernel. Those that
are another checkpoint's, too, may lie there alone (`bases.py`).
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from specdec.checkpoints import bases, folders, leaves, shards, strict
from specdec.checkpoints.folders import CONFIG
from specdec.checkpoints.leaves import Leaf, ShardingFn
from specdec.checkpoints.strict import CheckpointError
from specdec.models import Config, kinds


def save(
    path: str | os.PathLike,
    params: dict[str, Any],
    config: Config,
    *,
    storage_dtype: Any = None,
    base: str | os.PathLike | None = None,
) -> None:
    """Writes a checkpoint folder, whole or not at all; replaces an older one at the same path.

    Args:
      path: the folder. Its parents are made.
      params: nested parameters, as `language_model(config).init` gives them.
      config: of the model they belong to.
      storage_dtype: of the tensors in the file (bfloat16 halves it); None = as they are.
      base: another checkpoint of this form, to stay where it lies as seen from here, whose
        tensors are left out where they are the same; None = whole.

    Raises:
      CheckpointError: if the parameters are not the config's, or if `path` holds other things
        than a checkpoint of ours, which replacing it would delete.
    """
    write(path, leaves.in_memory(strict.flatten(params)), config, storage_dtype, base)


def write(
    path: str | os.PathLike,
    flat: Mapping[str, Leaf],
    config: Config,
    storage_dtype: Any = None,
    base: str | os.PathLike | None = None,
) -> None:
    """`save` of parameters that may lie in a file yet, under their names joined by "/"."""
    strict.check_parameters(flat, config)
    fields = {**dataclasses.asdict(config), "dtype": jnp.dtype(config.dtype).name}
    model_type = kinds.model_type(config)
    if base is not None:
        flat = bases.without_shared(flat, base, storage_dtype)
        fields[bases.FIELD] = bases.entry(base, path)
    content = json.dumps({"model_type": model_type, **fields}, indent=2) + "\n"

    def fill(folder: pathlib.Path) -> None:
        (folder / CONFIG).write_text(content, encoding="utf-8")
        shards.write(folder, flat, storage_dtype, metadata={"format": model_type})

    folders.write(path, fill)


def load(
    path: str | os.PathLike,
    dtype: Any = jnp.float32,
    *,
    stays_narrow: bool = False,
    sharding_fn: ShardingFn | None = None,
) -> tuple[dict[str, Any], Config]:
    """Reads a checkpoint folder.

    Args:
      path: a folder that `save` wrote.
      dtype: float32 or bfloat16, of the parameters and of the config that come back, whatever the
        dtype in the file.
      stays_narrow, sharding_fn: see `leaves.place`.

    Returns:
      Nested parameters, and the config.

    Raises:
      CheckpointError: if anything is missing, left over, of another shape, or cut short.
    """
    how = dict(stays_narrow=stays_narrow, sharding_fn=sharding_fn)
    return strict.loaded(opened(path, dtype), dtype, **how)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike, dtype: Any = jnp.float32
) -> Iterator[tuple[dict[str, Leaf], Config]]:
    """Yields the parameters by name, checked but not read, and the config, in a dtype."""
    folders.check_exists(path)
    path = pathlib.Path(path).resolve()
    config, base = _read_config(path / CONFIG)
    config = dataclasses.replace(config, dtype=jnp.dtype(dtype))
    expected, paths = strict.expected_shapes(config), shards.files(path)
    with contextlib.ExitStack() as stack:
        flat = stack.enter_context(shards.opened(paths))
        if base is not None:
            others = bases.opened(path, base, expected.keys() - flat.keys())
            flat = {**stack.enter_context(others), **flat}
        strict.check_names_and_shapes(
            paths[0],
            expected,
            {name: leaf.shape for name, leaf in flat.items()},
            f"{CONFIG} and the weights belong to different models: save both again.",
            strict.non_float_problems(flat),
        )
        yield flat, config


def _read_config(path: pathlib.Path) -> tuple[Config, Any]:
    """The config, and what the file says of a base, if anything."""
    content = strict.read_json(path)
    base = content.pop(bases.FIELD, None)
    model_type = content.pop("model_type", None)
    config_type = kinds.CONFIG_TYPES.get(model_type)
    if config_type is None:
        raise CheckpointError(
            f"{path}: model_type={model_type!r} is none of {', '.join(kinds.CONFIG_TYPES)}. "
            "Folders in Hugging Face's form are read by specdec.checkpoints.huggingface"
        )
    known = {field.name for field in dataclasses.fields(config_type)}
    strict.fail_if_any(
        path,
        [f"unknown field {name}" for name in sorted(content.keys() - known)],
        "A newer specdec wrote it, or it was edited by hand.",
    )
    # Fields that a folder lacks take their defaults, so that older folders stay readable.
    try:
        config = config_type(**{**content, "dtype": jnp.dtype(content.get("dtype", "float32"))})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return config, base
