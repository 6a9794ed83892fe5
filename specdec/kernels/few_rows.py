"""Products of few rows with a large matrix: what decoding on a CPU consists of.

Dimensions: T rows, K inputs, N outputs.

XLA's CPU backend reads a weight matrix at the memory's speed for a single row, but packs it anew
for two or more, which makes verifying a block of 4 tokens cost 1.7 single steps. few_rows.cc reads
it once for up to 16 rows, and rounds a row alike whatever stands beside it.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specdec.kernels import library


def product(
    x: jax.Array,
    w: jax.Array,
    *,
    transposed: bool = False,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """x times w, or times w's transpose.

    Args:
      x: [..., K].
      w: [K, N], or [N, K] if transposed.
      precision, preferred_element_type: of XLA's product; the kernel's is float32 throughout.

    Returns:
      [..., N].
    """
    num_rows = math.prod(x.shape[:-1])
    is_float32 = x.dtype == w.dtype == jnp.float32
    if is_float32 and 1 <= num_rows <= library.MAX_ROWS and library.is_available():
        y = _few_rows(x.reshape(num_rows, x.shape[-1]), w, transposed)
        return y.reshape(*x.shape[:-1], y.shape[-1])
    return _product(x, w, transposed, precision, preferred_element_type)


def dot_general(x, w, dimension_numbers, **kwargs):
    """`product` in the form in which flax's Dense asks for it."""
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        raise ValueError(f"dimension_numbers={dimension_numbers}: not those of a dense layer")
    return product(x, w, **kwargs)


def _product(x, w, transposed, precision, preferred_element_type=None):
    numbers = (((x.ndim - 1,), (1 if transposed else 0,)), ((), ()))
    return lax.dot_general(
        x, w, numbers, precision=precision, preferred_element_type=preferred_element_type
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _few_rows(x, w, transposed):
    shape = (x.shape[0], w.shape[0 if transposed else 1])
    call = jax.ffi.ffi_call(
        "specdec_few_rows", jax.ShapeDtypeStruct(shape, jnp.float32), vmap_method="sequential"
    )
    return call(x, w, transposed=transposed)


def _forward(x, w, transposed):
    return _few_rows(x, w, transposed), (x, w)


def _backward(transposed, operands, gradient):
    product_fn = functools.partial(_product, transposed=transposed, precision=lax.Precision.HIGHEST)
    return jax.vjp(product_fn, *operands)[1](gradient)


_few_rows.defvjp(_forward, _backward)
