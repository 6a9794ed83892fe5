"""A checkpoint of whatever form: ours, Hugging Face's or T5X's."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax.numpy as jnp

from specdec.checkpoints import folders, huggingface, native, strict, t5x
from specdec.checkpoints.folders import CONFIG
from specdec.checkpoints.leaves import Leaf, ShardingFn
from specdec.models import Config, kinds

FORMS: dict[str, ModuleType] = {"native": native, "huggingface": huggingface, "t5x": t5x}


def form_of(path: str | os.PathLike) -> str:
    """Which of FORMS lies there.

    Raises:
      CheckpointError: if none does.
    """
    if t5x.is_likely(path):
        return "t5x"
    folders.check_exists(path)
    model_type = strict.read_json(pathlib.Path(path) / CONFIG).get("model_type")
    return "native" if model_type in kinds.CONFIG_TYPES else "huggingface"


def load(
    path: str | os.PathLike,
    dtype: Any = jnp.float32,
    *,
    stays_narrow: bool = False,
    sharding_fn: ShardingFn | None = None,
) -> tuple[dict[str, Any], Config]:
    """Nested parameters and config, as the form's own `load` has it."""
    form = FORMS[form_of(path)]
    return form.load(path, dtype, stays_narrow=stays_narrow, sharding_fn=sharding_fn)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike, dtype: Any = jnp.float32
) -> Iterator[tuple[dict[str, Leaf], Config]]:
    """Yields the parameters by name, checked but not read, and the config, in a dtype."""
    with FORMS[form_of(path)].opened(path, dtype) as found:
        yield found
