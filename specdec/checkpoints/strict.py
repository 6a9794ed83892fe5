"""What every loader checks before it loads: names and shapes against the model's own.

A loader first reads the header (names, shapes, dtypes), compares it with `expected_shapes`, and
only then reads tensors, one by one (`leaves.py`): a checkpoint is loaded whole or not at all.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import flax
import jax

from specdec.checkpoints.leaves import FLOATS, Leaf, place
from specdec.models import Config, T5Config, language_model

ConfigT = TypeVar("ConfigT", bound=Config)


class CheckpointError(ValueError):
    """A checkpoint that can't be read, or that is not of the model asked for."""


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name ("decoder/layers_0/mlp/wo/kernel") -> shape of every parameter. Computes nothing."""
    try:
        params = jax.eval_shape(lambda: language_model(config).init(jax.random.key(0)))
    except (TypeError, ZeroDivisionError) as error:  # what JAX raises for a width of "64" or 0
        raise CheckpointError(f"{config} describes no model ({error}): mend its file") from error
    return {name: leaf.shape for name, leaf in flatten(params).items()}


def flatten(params: Mapping[str, Any]) -> dict[str, Any]:
    """Nested parameters -> {"a/b/c": leaf}."""
    return flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a/b/c": leaf} -> nested parameters."""
    return flax.traverse_util.unflatten_dict(dict(flat), sep="/")


def check_names_and_shapes(
    where: Any,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    remedy: str,
    extra_problems: Iterable[str] = (),
) -> None:
    """Raises one CheckpointError that lists all that is missing, left over or of another shape."""
    problems = [f"missing {name} {expected[name]}" for name in sorted(expected.keys() - found)]
    problems += [f"left over {name} {found[name]}" for name in sorted(found.keys() - expected)]
    problems += [
        f"wrong shape {name}: {tuple(found[name])} instead of {tuple(expected[name])}"
        for name in sorted(expected.keys() & found)
        if tuple(found[name]) != tuple(expected[name])
    ]
    fail_if_any(where, problems + list(extra_problems), remedy)


def fail_if_any(where: Any, problems: list[str], remedy: str) -> None:
    """Raises one CheckpointError with all the problems, if there are any.

    Its first line stands alone: the first problem and the remedy. The other problems follow.
    """
    if problems:
        first, *others = problems
        rest = "".join(f"\n  {problem}" for problem in others)
        raise CheckpointError(
            f"{where}: {len(problems)} problem(s), so nothing is taken: {first}. {remedy}{rest}"
        )


def check_parameters(flat: Mapping[str, Leaf], config: Config) -> None:
    """Raises a CheckpointError unless the parameters to save are the config's."""
    check_names_and_shapes(
        "parameters to save",
        expected_shapes(config),
        {name: leaf.shape for name, leaf in flat.items()},
        "Save the parameters together with the config that made them (without the outer 'params').",
    )


def partial_model_problems(config: T5Config) -> list[str]:
    """What only our own form can say of a T5, one line each."""
    problems = []
    if config.num_encoder_layers == 0:
        problems.append("num_encoder_layers=0: reads another model's encoder output")
    if config.num_logits not in (None, config.vocab_size):
        problems.append(f"num_logits={config.num_logits}: gives logits to the first ids only")
    return problems


def loaded(
    opening: AbstractContextManager[tuple[dict[str, Leaf], ConfigT]], dtype: Any, **how: Any
) -> tuple[dict[str, Any], ConfigT]:
    """Nested parameters and config of a form's `opened`; `how` as `leaves.place` takes it."""
    with opening as (flat, config):
        return unflatten(place(flat, dtype, **how)), config


def non_float_problems(leaves: Mapping[str, Leaf]) -> list[str]:
    """One line for each leaf that holds no floats (quantised weights are not read)."""
    return [
        f"wrong dtype {name}: {leaf.dtype} instead of one of {', '.join(FLOATS)}"
        for name, leaf in sorted(leaves.items())
        if leaf.dtype not in FLOATS
    ]


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object in a file, or a CheckpointError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: no JSON, or cut short ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__} instead of an object")
    return content
