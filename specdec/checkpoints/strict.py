"""What every loader checks before it loads: names and shapes against the model's own.

A loader first reads the header (names, shapes, dtypes), compares it with `expected_shapes`, and
only then reads tensors, one by one: a checkpoint is loaded whole or not at all.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import flax
import jax
from safetensors import SafetensorError, safe_open

from specdec.models import Config, language_model

_FLOATS = ("F64", "F32", "F16", "BF16")


class CheckpointError(ValueError):
    """A checkpoint that can't be read, or that is not of the model asked for."""


class Stored(NamedTuple):
    """A tensor that lies in a file.

    Attributes:
      shape, dtype: as the header has them; dtype in safetensors' spelling ("F32", "BF16").
      read_fn: reads it, to a jax array.
    """

    shape: tuple[int, ...]
    dtype: str
    read_fn: Callable[[], jax.Array]


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


def non_float_problems(tensors: Mapping[str, Stored]) -> list[str]:
    """One line for each tensor that holds no floats (quantised weights are not read)."""
    return [
        f"wrong dtype {name}: {tensor.dtype} instead of one of {', '.join(_FLOATS)}"
        for name, tensor in sorted(tensors.items())
        if tensor.dtype not in _FLOATS
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


@contextlib.contextmanager
def open_safetensors(paths: Iterable[pathlib.Path]) -> Iterator[dict[str, Stored]]:
    """Yields the tensors of one or several files by name; only their headers are read here."""
    with contextlib.ExitStack() as stack:
        tensors: dict[str, Stored] = {}
        for path in paths:
            try:
                file = stack.enter_context(safe_open(str(path), framework="flax"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{path}: can't be read ({error}). Missing or cut short: copy it again"
                ) from error
            for name in file.keys():  # noqa: SIM118 (a safe_open is no mapping)
                if name in tensors:
                    raise CheckpointError(f"{path}: {name} is in another shard as well")
                header = file.get_slice(name)
                tensors[name] = Stored(
                    tuple(header.get_shape()),
                    header.get_dtype(),
                    lambda file=file, name=name: file.get_tensor(name),
                )
        yield tensors
