"""Makes a trained T5 deeper or shallower without making it forget.

A residual layer x + f(x) is a step of a differential equation; `times` steps of f(x) / times go
about as far (Chang et al., Multi-level residual networks from dynamical systems view, arXiv
1710.10348). To go deeper, every layer becomes several in a row: the copies keep its weights, except
the matrices that write to the residual stream, which are divided by their number. To go shallower,
several layers in a row become one: the mean of their weights, except the matrices that write, which
are summed; that undoes the first exactly. Training goes on from there, on a model that no longer
has to learn from random weights what the other one knew.
"""

import dataclasses
import functools
import logging
import operator
import pathlib
from typing import Any

import jax

from specdec.checkpoints import native
from specdec.models.t5 import T5Config

logger = logging.getLogger(__name__)

# The last matrices of attention and of the feed-forward part, whose output is added to the stream.
_WRITERS = ("out", "wo")


def change(
    output_dir: str, *, model: str, num_decoder_layers: int, num_encoder_layers: int | None = None
) -> None:
    """Writes DIR/export, a model of another depth with about the outputs of `model`.

    Args:
      output_dir: the run's folder.
      model: export of the model.
      num_decoder_layers, num_encoder_layers: wanted, multiples or divisors of the model's; None =
        as they are.

    Raises:
      ValueError: if a number of layers is neither.
    """
    params, config = native.load(model)
    wanted = {
        "encoder": config.num_encoder_layers if num_encoder_layers is None else num_encoder_layers,
        "decoder": num_decoder_layers,
    }
    params, config = changed(params, config, wanted)
    folder = pathlib.Path(output_dir) / "export"
    native.save(folder, params, config)
    logger.info("%s: %d encoder and %d decoder layers", folder, *wanted.values())


def changed(params: Any, config: T5Config, num_layers: dict[str, int]) -> tuple[Any, T5Config]:
    """Parameters and config with `num_layers` layers in "encoder" and "decoder".

    Example: 2 decoder layers a, b to 6 -> a/3 a/3 a/3 b/3 b/3 b/3, where a/3 is a with what it
    adds to the residual stream divided by 3; those 6 to 2 -> a, b.

    Raises:
      ValueError: if a number of layers is neither a multiple nor a divisor.
    """
    stacks = {}
    for stack, count in num_layers.items():
        old = getattr(config, f"num_{stack}_layers")
        if count == old:
            continue
        if min(count, old) < 1 or max(count, old) % min(count, old):
            raise ValueError(
                f"num_{stack}_layers={count}: must be a multiple or a divisor of {old}, the model's"
            )
        resize = _repeated if count > old else _merged
        stacks[stack] = _with_layers(params[stack], resize(_layers(params[stack]), count))
    counts = {f"num_{stack}_layers": count for stack, count in num_layers.items()}
    return {**params, **stacks}, dataclasses.replace(config, **counts)


def _repeated(layers: list[Any], count: int) -> list[Any]:
    times = count // len(layers)
    return [_with_step(layer, 1.0 / times) for layer in layers for _ in range(times)]


def _merged(layers: list[Any], count: int) -> list[Any]:
    times = len(layers) // count
    groups = [layers[start : start + times] for start in range(0, len(layers), times)]
    means = [
        jax.tree.map(lambda *ones: functools.reduce(operator.add, ones) / times, *group)
        for group in groups
    ]
    return [_with_step(mean, float(times)) for mean in means]


def _with_step(layer: Any, step: float) -> Any:
    def scaled(path, leaf):
        return leaf * step if any(key.key in _WRITERS for key in path) else leaf

    return jax.tree_util.tree_map_with_path(scaled, layer)


def _layers(stack: Any) -> list[Any]:
    names = [name for name in stack if name.startswith("layers_")]
    return [stack[f"layers_{index}"] for index in range(len(names))]


def _with_layers(stack: Any, layers: list[Any]) -> Any:
    others = {name: value for name, value in stack.items() if not name.startswith("layers_")}
    return {**others, **{f"layers_{index}": layer for index, layer in enumerate(layers)}}
