"""The library's own checkpoints: a folder with config.json and model.safetensors.

The tensors carry t5x's names joined by "/", as in decoder/layers_0/mlp/wi/kernel.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import uuid
from typing import Any

import jax.numpy as jnp
from safetensors.flax import save_file

from specdec.checkpoints import strict
from specdec.checkpoints.strict import CheckpointError
from specdec.models.t5 import T5Config

MODEL_TYPE = "specdec_t5"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


def save(
    path: str | os.PathLike,
    params: dict[str, Any],
    config: T5Config,
    *,
    storage_dtype: Any = None,
) -> None:
    """Writes a checkpoint folder, whole or not at all; replaces an older one at the same path.

    A kill between the two renames of a replacement leaves the older folder, whole, as
    `.<name>.replaced` beside it: `load` says so.

    Args:
      path: the folder. Its parents are made.
      params: nested parameters, as `T5(config).init(...)["params"]` has them.
      config: of the model they belong to.
      storage_dtype: of the tensors in the file (bfloat16 halves it); None = as they are.

    Raises:
      CheckpointError: if the parameters are not the config's, or if `path` holds other things
        than a checkpoint of ours, which replacing it would delete.
    """
    path = pathlib.Path(path).resolve()
    flat = strict.flatten(params)
    shapes = {name: jnp.shape(leaf) for name, leaf in flat.items()}
    strict.check_names_and_shapes(
        "parameters to save",
        strict.expected_shapes(config),
        shapes,
        "Save the parameters together with the config that made them (without the outer 'params').",
    )
    _refuse_foreign_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:12]}")
    partial.mkdir()
    try:
        _write(partial, flat, config, storage_dtype)
        _put_in_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(
    path: str | os.PathLike, dtype: Any = jnp.float32, *, stays_narrow: bool = False
) -> tuple[dict[str, Any], T5Config]:
    """Reads a checkpoint folder.

    Args:
      path: a folder that `save` wrote.
      dtype: float32 or bfloat16, of the parameters and of the config that come back, whatever the
        dtype in the file.
      stays_narrow: leave parameters that the file holds in bfloat16 as they are.

    Returns:
      Nested parameters, and the config.

    Raises:
      CheckpointError: if anything is missing, left over, of another shape, or cut short.
    """
    check_exists(path)
    path = pathlib.Path(path).resolve()
    config = dataclasses.replace(_read_config(path / _CONFIG), dtype=jnp.dtype(dtype))
    with strict.open_safetensors([path / _WEIGHTS]) as tensors:
        strict.check_names_and_shapes(
            path / _WEIGHTS,
            strict.expected_shapes(config),
            {name: tensor.shape for name, tensor in tensors.items()},
            f"{_CONFIG} and {_WEIGHTS} belong to different models: save both again.",
            strict.non_float_problems(tensors),
        )
        flat = {}
        for name, tensor in tensors.items():
            read = tensor.read_fn()
            is_kept = stays_narrow and read.dtype == jnp.bfloat16
            flat[name] = read if is_kept else read.astype(dtype)
    return strict.unflatten(flat), config


def check_exists(path: str | os.PathLike) -> None:
    """Raises a CheckpointError that says what to do, if there is no checkpoint folder at `path`."""
    folder = pathlib.Path(path).resolve()
    replaced = _replaced(folder)
    if replaced.exists() and not folder.exists():
        raise CheckpointError(
            f"{folder}: missing, since a save was cut short. The one before it is whole: "
            f"{replaced} (rename it back, or load it)"
        )
    if not (folder / _CONFIG).is_file():
        raise CheckpointError(
            f"no checkpoint at {str(path)!r}: it must be a folder with {_CONFIG} and {_WEIGHTS}; "
            "correct the path"
        )


def _write(folder: pathlib.Path, flat: dict, config: T5Config, storage_dtype: Any) -> None:
    fields = {**dataclasses.asdict(config), "dtype": jnp.dtype(config.dtype).name}
    content = json.dumps({"model_type": MODEL_TYPE, **fields}, indent=2) + "\n"
    (folder / _CONFIG).write_text(content, encoding="utf-8")
    arrays = {name: jnp.asarray(leaf, storage_dtype) for name, leaf in flat.items()}
    save_file(arrays, str(folder / _WEIGHTS), metadata={"format": MODEL_TYPE})
    # safetensors makes files for their owner alone: give both the rights that new files have.
    (folder / _WEIGHTS).chmod((folder / _CONFIG).stat().st_mode)
    for name in (_CONFIG, _WEIGHTS):
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())


def _put_in_place(partial: pathlib.Path, path: pathlib.Path) -> None:
    replaced = _replaced(path)
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    try:
        partial.rename(path)
    except BaseException:
        if replaced.exists():
            replaced.rename(path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f".{path.name}.replaced")


def _refuse_foreign_folder(path: pathlib.Path) -> None:
    if not path.exists():
        return
    names = [p.name for p in path.iterdir()] if path.is_dir() else ["a file"]
    others = sorted(set(names) - {_CONFIG, _WEIGHTS})
    if others:
        raise CheckpointError(
            f"{path}: holds {', '.join(others[:5])}, which replacing it would delete: choose a "
            "folder of its own"
        )


def _read_config(path: pathlib.Path) -> T5Config:
    content = strict.read_json(path)
    model_type = content.pop("model_type", None)
    if model_type != MODEL_TYPE:
        raise CheckpointError(
            f"{path}: model_type={model_type!r} instead of {MODEL_TYPE!r}. Folders in Hugging "
            "Face's form are read by specdec.checkpoints.huggingface"
        )
    known = {field.name for field in dataclasses.fields(T5Config)}
    strict.fail_if_any(
        path,
        [f"unknown field {name}" for name in sorted(content.keys() - known)],
        "A newer specdec wrote it, or it was edited by hand.",
    )
    # Fields that a folder lacks take their defaults, so that older folders stay readable.
    try:
        return T5Config(**{**content, "dtype": jnp.dtype(content.get("dtype", "float32"))})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
