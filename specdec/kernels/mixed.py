"""Products for training in mixed precision: bfloat16 in, float32 sums, twice as fast on a CPU that
has instructions for it, and on matrix units many times.

Dimensions: M rows, K inputs, N outputs.

The gradients' products are of the same kind. XLA's CPU backend does only the plain one of the three
in bfloat16, so all go to oneDNN where that is installed (the extra `train`).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from specdec.kernels import library
from specdec.kernels.dense import as_dot_general


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, w: jax.Array, transposed: bool = False) -> jax.Array:
    """x [..., K] times w [K, N], or times the transpose of w [N, K]: [..., N] float32."""
    return _forward(x, w, transposed)[0]


# The types of these products are fixed, whatever Dense asks for.
dot_general = as_dot_general(lambda x, w, **_: product(x, w))


def _forward(x, w, transposed):
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.bfloat16)
    weights = w.astype(jnp.bfloat16)
    y = _matmul(rows, weights, False, transposed)
    return y.reshape(*x.shape[:-1], y.shape[-1]), (rows, weights)


def _backward(transposed, operands, gradient):
    rows, weights = operands
    g = gradient.reshape(-1, gradient.shape[-1]).astype(jnp.bfloat16)
    of_x = _matmul(g, weights, False, not transposed)
    of_w = _matmul(g, rows, True, False) if transposed else _matmul(rows, g, True, False)
    return of_x.reshape(*gradient.shape[:-1], of_x.shape[-1]), of_w


product.defvjp(_forward, _backward)


def _matmul(a, b, transposed_a, transposed_b):
    """[M, K] or its transpose, times [K, N] or its transpose -> [M, N] float32."""
    if library.is_training_available():
        shape = (a.shape[1 if transposed_a else 0], b.shape[0 if transposed_b else 1])
        call = jax.ffi.ffi_call("specdec_mixed", jax.ShapeDtypeStruct(shape, jnp.float32))
        return call(a, b, transposed_a=transposed_a, transposed_b=transposed_b)
    numbers = (((0,) if transposed_a else (1,), (1,) if transposed_b else (0,)), ((), ()))
    return lax.dot_general(a, b, numbers, preferred_element_type=jnp.float32)
