"""Attention to a cache: each query sees the first slots of its row, as many as it is told.

Dimensions: B batch, H heads, T queries, S cache slots, K width of a head.

What lies beyond is garbage by definition, NaN included, and never attended to. For few queries on
a CPU the work is done in attention.cc, which doesn't even read it.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax, nn

from specdec.kernels import library

# Scores of invisible keys. exp(-1e10 - max) is exactly 0 in float32, and, unlike -inf, a row
# without any visible key stays finite.
MASKED = -1e10
# Queries of a row that count as few.
MAX_QUERIES = 16


def attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    visible: jax.Array,
    bias: jax.Array | None = None,
    *,
    precision: lax.PrecisionLike = None,
) -> jax.Array:
    """softmax(q k + bias) v over the slots s < visible. No 1/sqrt(K): T5 learns it.

    Args:
      queries: [B, T, H * K].
      keys, values: [B, H, S, K].
      visible: [B, T] int32, how many slots each query sees. A query that sees none gets garbage.
      bias: [H, S], added to the score of a slot by its distance from the last visible one; None =
        none. Example: visible 3, bias [0, .1, .2, ...] -> .2, .1, 0 for the slots 0, 1, 2.
      precision: of XLA's products; the kernel computes in float32.

    Returns:
      [B, T, H * K].
    """
    is_float32 = queries.dtype == keys.dtype == values.dtype == jnp.float32
    if is_float32 and queries.shape[1] <= MAX_QUERIES and library.is_available():
        if bias is None:
            bias = jnp.zeros((keys.shape[1], 0), jnp.float32)
        return _few_queries(queries, keys, values, visible.astype(jnp.int32), bias)
    return _attend(queries, keys, values, visible, bias, precision)


def _attend(queries, keys, values, visible, bias, precision):
    num_slots, width = keys.shape[2:]
    by_head = jnp.swapaxes(queries.reshape(*queries.shape[:2], -1, width), 1, 2)  # [B, H, T, K]
    scores = jnp.einsum(
        "bhtk,bhsk->bhts",
        by_head,
        keys,
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    distance = visible[:, :, None] - 1 - jnp.arange(num_slots)  # [B, T, S]
    if bias is not None and bias.shape[1]:
        by_distance = bias[:, jnp.clip(distance, 0, num_slots - 1)]  # [H, B, T, S]
        scores += jnp.moveaxis(by_distance, 0, 1)
    # Replaced, not lowered: an invisible key may hold NaN, and NaN - 1e10 is NaN.
    scores = jnp.where(distance[:, None] >= 0, scores, MASKED)
    weights = nn.softmax(scores, axis=-1).astype(values.dtype)
    # The weight of an invisible slot is 0, but 0 * NaN is NaN: blank what no query sees.
    filled = (distance >= 0).any(1)[:, None, :, None]
    mixed = jnp.einsum(
        "bhts,bhsk->bthk", weights, jnp.where(filled, values, 0), precision=precision
    )
    return mixed.reshape(queries.shape)


@jax.custom_vjp
def _few_queries(queries, keys, values, visible, bias):
    call = jax.ffi.ffi_call(
        "specdec_few_queries",
        jax.ShapeDtypeStruct(queries.shape, jnp.float32),
        vmap_method="sequential",
    )
    return call(queries, keys, values, visible, bias)


def _forward(*operands):
    return _few_queries(*operands), operands


def _backward(operands, gradient):
    queries, keys, values, visible, bias = operands
    plain = functools.partial(_attend, precision=lax.Precision.HIGHEST)
    _, pull_back = jax.vjp(
        lambda q, k, v, b: plain(q, k, v, visible, b), queries, keys, values, bias
    )
    *gradients, of_bias = pull_back(gradient)
    return *gradients, None, of_bias


_few_queries.defvjp(_forward, _backward)
