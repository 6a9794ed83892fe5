"""A product as flax's Dense asks for it."""

from collections.abc import Callable

import jax


def as_dot_general(product_fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`dot_general` for dense layers out of product_fn(x [..., K], w [K, N], **kwargs)."""

    def dot_general(x, w, dimension_numbers, **kwargs):
        if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
            raise ValueError(f"dimension_numbers={dimension_numbers}: not those of a dense layer")
        return product_fn(x, w, **kwargs)

    return dot_general
