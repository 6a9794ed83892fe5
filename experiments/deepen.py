"""Makes a trained T5 deeper without making it forget: every layer becomes several in a row.

A residual layer x + f(x) is a step of a differential equation; `times` steps of f(x) / times go
about as far (Chang et al., Multi-level residual networks from dynamical systems view, arXiv
1710.10348). So the copies keep the layer's weights, except the matrices that write to the residual
stream, which are divided by their number. Training goes on from there, on a model that no longer
has to learn from random weights what the shallow one knew, at the shallow one's price so far.
"""

import dataclasses
import logging
import pathlib
from typing import Any

import jax

from specdec.checkpoints import native
from specdec.models.t5 import T5Config

logger = logging.getLogger(__name__)

# The last matrices of attention and of the feed-forward part, whose output is added to the stream.
_WRITERS = ("out", "wo")


def deepen(
    output_dir: str, *, model: str, num_decoder_layers: int, num_encoder_layers: int | None = None
) -> None:
    """Writes DIR/export, a deeper model with about the outputs of `model`.

    Args:
      output_dir: the run's folder.
      model: export of the shallow model.
      num_decoder_layers, num_encoder_layers: of the deep one, multiples of the shallow one's;
        None = as they are.

    Raises:
      ValueError: if a number of layers is no multiple.
    """
    params, config = native.load(model)
    wanted = {
        "encoder": config.num_encoder_layers if num_encoder_layers is None else num_encoder_layers,
        "decoder": num_decoder_layers,
    }
    deeper, deep_config = deepened(params, config, wanted)
    folder = pathlib.Path(output_dir) / "export"
    native.save(folder, deeper, deep_config)
    logger.info("%s: %d encoder and %d decoder layers", folder, *wanted.values())


def deepened(params: Any, config: T5Config, num_layers: dict[str, int]) -> tuple[Any, T5Config]:
    """Parameters and config with `num_layers` layers in "encoder" and "decoder".

    Example: 2 decoder layers a, b to 6 -> a/3 a/3 a/3 b/3 b/3 b/3, where a/3 is a with what it
    adds to the residual stream divided by 3.

    Raises:
      ValueError: if a number of layers is no multiple.
    """
    changes = {f"num_{stack}_layers": count for stack, count in num_layers.items()}
    repeats = {}
    for stack, count in num_layers.items():
        old = getattr(config, f"num_{stack}_layers")
        if count == old:
            continue
        if old == 0 or count < old or count % old:
            raise ValueError(
                f"num_{stack}_layers={count}: must be a multiple of {old}, the shallow model's"
            )
        repeats[stack] = count // old
    stacks = {stack: _repeated(params[stack], times) for stack, times in repeats.items()}
    return {**params, **stacks}, dataclasses.replace(config, **changes)


def _repeated(stack: Any, times: int) -> Any:
    layers = sorted((name for name in stack if name.startswith("layers_")), key=_number)
    others = {name: value for name, value in stack.items() if name not in layers}
    copies = [_with_step(stack[name], 1.0 / times) for name in layers for _ in range(times)]
    return {**others, **{f"layers_{index}": layer for index, layer in enumerate(copies)}}


def _with_step(layer: Any, step: float) -> Any:
    def scaled(path, leaf):
        return leaf * step if any(key.key in _WRITERS for key in path) else leaf

    return jax.tree_util.tree_map_with_path(scaled, layer)


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
