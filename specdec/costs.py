"""What a decoding step of a T5 must read, whatever the program: the floor under its time.

Dimensions: B rows, E encoder length, S decoder tokens seen.
"""

from typing import Any

import jax

from specdec.models.t5 import T5Config

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


def _is_read_once(path: tuple) -> bool:
    names = [part.key for part in path]
    return "encoder_decoder_attention" in names and names[-2] in _ONCE_A_REQUEST


def _num_bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize
