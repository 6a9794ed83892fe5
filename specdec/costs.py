"""What a decoding step costs besides time: bytes it must read, operations, memory.

Dimensions: B rows, E encoder length, S decoder tokens seen.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specdec.kernels import library
from specdec.models.t5 import T5Config
from specdec.types import Cache, LanguageModel

# The cross-attention's keys and values are computed once a request, from these.
_ONCE_A_REQUEST = ("key", "value")


def step_bytes(
    params: Any,
    config: T5Config,
    *,
    num_rows: int = 1,
    encoder_length: int = 0,
    decoder_length: int = 0,
) -> int:
    """Bytes that one pass of the decoder reads: weights once for all rows, each row's caches.

    Args:
      params: of a T5, arrays or `jax.ShapeDtypeStruct`s.
      config: its own.
      num_rows: B.
      encoder_length: E, real tokens.
      decoder_length: S, tokens that attention looks back on.
    """
    return weight_bytes(params, config) + num_rows * cache_bytes(
        config, encoder_length=encoder_length, decoder_length=decoder_length
    )


def weight_bytes(params: Any, config: T5Config) -> int:
    """Bytes of the weights that a step reads: decoder layers and the head."""
    decoder = {name: part for name, part in params["decoder"].items() if name != "logits_dense"}
    leaves = jax.tree_util.tree_leaves_with_path(decoder)
    layers = sum(_num_bytes(leaf) for path, leaf in leaves if not _is_read_once(path))
    table = (
        params["token_embedder"]["embedding"]
        if config.tied
        else params["decoder"]["logits_dense"]["kernel"]
    )
    num_logits = config.num_logits or config.vocab_size
    return layers + _num_bytes(table) * num_logits // config.vocab_size


def cache_bytes(config: T5Config, *, encoder_length: int, decoder_length: int) -> int:
    """Bytes of keys and values that a row's attention reads."""
    per_slot = 2 * config.num_heads * config.head_dim * config.dtype.itemsize
    return config.num_decoder_layers * (encoder_length + decoder_length) * per_slot


def step_operations(params: Any, cache: Cache, *, model: LanguageModel) -> float:
    """Floating-point operations of one pass over one token a row, by XLA's count.

    Args:
      params, cache: of the model, arrays or `jax.ShapeDtypeStruct`s.
      model: whose `extend` is counted.
    """
    num_rows = cache.encoder_lengths.shape[0]
    tokens = jax.ShapeDtypeStruct((num_rows, 1), jnp.int32)
    at = jax.ShapeDtypeStruct((num_rows,), jnp.int32)
    with library.switched_off():  # XLA can't count inside of them
        lowered = jax.jit(lambda *args: model.extend(*args)[0]).lower(params, cache, tokens, at)
    return float(lowered.cost_analysis()["flops"])


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """Memory that a compiled program takes: arguments, temporaries, results, by XLA's account."""
    memory = compiled.memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays (or `jax.ShapeDtypeStruct`s) of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _is_read_once(path: tuple) -> bool:
    names = [part.key for part in path]
    return "encoder_decoder_attention" in names and names[-2] in _ONCE_A_REQUEST


def _num_bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize
