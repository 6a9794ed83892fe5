"""Products of few rows with a large matrix: what decoding on a CPU consists of.

Dimensions: T rows, K inputs, N outputs.

XLA's CPU backend reads a weight matrix at the memory's speed for a single row, but packs it anew
for two or more, which makes verifying a block of 4 tokens cost 1.7 single steps. few_rows.cc reads
it once for up to 64 rows, and rounds a row alike whatever stands beside it. Weights in bfloat16 are
widened on the way: the result is that of the same numbers in float32, for half the reading.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specdec.kernels import library
from specdec.kernels.dense import as_dot_general

# Rows that count as few. For more of them XLA's way, which copies w to suit the processor, is worth
# its price.
MAX_ROWS = 64


def product(
    x: jax.Array,
    w: jax.Array,
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """x [..., K] times w [K, N]: [..., N].

    Args:
      x: [..., K].
      w: [K, N], of x's type or narrower.
      precision, preferred_element_type: of XLA's product; the kernel's is float32 throughout.
    """
    if _is_for_kernel(x, w):
        return _by_rows(x, lambda rows: _few_rows(rows, w, False, w.shape[1]))
    return _product(x, w, False, precision, preferred_element_type)


def product_with_rows(
    x: jax.Array,
    w: jax.Array,
    num_outputs: int | None = None,
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """x [..., K] times the first rows of w [V, K]: [..., num_outputs], by default all V.

    The kernel reads no other rows, and copies none.
    """
    num_outputs = w.shape[0] if num_outputs is None else num_outputs
    if _is_for_kernel(x, w):
        return _by_rows(x, lambda rows: _few_rows(rows, w, True, num_outputs))
    return _product(x, w[:num_outputs], True, precision, preferred_element_type)


def _is_for_kernel(x, w) -> bool:
    is_float32 = x.dtype == jnp.float32 and w.dtype in (jnp.float32, jnp.bfloat16)
    is_few = 1 <= math.prod(x.shape[:-1]) <= MAX_ROWS
    return is_float32 and is_few and library.is_available()


def _by_rows(x, function):
    y = function(x.reshape(-1, x.shape[-1]))
    return y.reshape(*x.shape[:-1], y.shape[-1])


dot_general = as_dot_general(product)


def _product(x, w, transposed, precision, preferred_element_type=None):
    numbers = (((x.ndim - 1,), (1 if transposed else 0,)), ((), ()))
    return lax.dot_general(
        x,
        w.astype(x.dtype),
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _few_rows(x, w, transposed, num_outputs):
    shape = (x.shape[0], num_outputs)
    call = jax.ffi.ffi_call(
        "specdec_few_rows", jax.ShapeDtypeStruct(shape, jnp.float32), vmap_method="sequential"
    )
    return call(x, w, transposed=transposed)


def _forward(x, w, transposed, num_outputs):
    return _few_rows(x, w, transposed, num_outputs), (x, w)


def _backward(transposed, num_outputs, operands, gradient):
    def product_fn(x, w):
        used = w[:num_outputs] if transposed else w
        return _product(x, used, transposed, lax.Precision.HIGHEST)

    return jax.vjp(product_fn, *operands)[1](gradient)


_few_rows.defvjp(_forward, _backward)
