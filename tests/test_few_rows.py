"""The kernel for products of few rows equals XLA's product, and is optional."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.kernels import few_rows, library

# One that is cut into parts, one with remainders everywhere, one smaller than a vector.
SHAPES = [(512, 1024), (129, 513), (7, 5)]


@pytest.fixture
def kernel():
    if not library.is_available():
        pytest.skip("no C++ compiler, or no CPU backend: products are XLA's")


@pytest.fixture(params=[False, True], ids=["plain", "transposed"])
def transposed(request):
    return request.param


def product(x, w, transposed):
    return (few_rows.product_with_rows if transposed else few_rows.product)(x, w)


def operands(num_inputs, num_outputs, transposed):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((few_rows.MAX_ROWS, num_inputs), np.float32)
    w = rng.standard_normal((num_inputs, num_outputs), np.float32)
    return x, np.ascontiguousarray(w.T) if transposed else w


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_is_the_product(kernel, shape, transposed):
    x, w = operands(*shape, transposed)
    expected = x.astype(np.float64) @ (w.T if transposed else w).astype(np.float64)
    found = product(x, w, transposed)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_rounds_alike_whatever_stands_beside_it(kernel, shape, transposed):
    x, w = operands(*shape, transposed)
    whole = np.asarray(product(x, w, transposed))
    for num_rows in (1, 2, 5, 8, 9, 13, 16, 17, 40):
        some = product(x[:num_rows], w, transposed)
        np.testing.assert_array_equal(some, whole[:num_rows])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 4, 8])
def test_narrow_weights_give_the_bits_of_the_same_numbers_in_float32(
    kernel, shape, transposed, num_rows
):
    x, w = operands(*shape, transposed)
    narrow = jnp.asarray(w, jnp.bfloat16)
    wide = product(x[:num_rows], narrow.astype(jnp.float32), transposed)
    np.testing.assert_array_equal(product(x[:num_rows], narrow, transposed), wide)


def test_repeated_calls_give_the_same_bits(kernel, transposed):
    """Parts are taken by whichever thread is free, and added up in one order all the same."""
    x, w = operands(512, 1024, transposed)
    call = jax.jit(lambda x: product(x, w, transposed))
    first = np.asarray(call(x))
    assert all((np.asarray(call(x)) == first).all() for _ in range(50))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_leading_axes_gradients_and_vmap_are_those_of_the_product(
    kernel, transposed, dtype, monkeypatch
):
    x, w = operands(7, 5, transposed)
    x, w = x[:6].reshape(2, 3, 7), jnp.asarray(w, dtype)

    def results():
        def loss(x, w):
            return jnp.sum(jnp.square(product(x, w, transposed)))

        return jax.grad(loss, argnums=(0, 1))(x, w), jax.vmap(loss, in_axes=(0, None))(x, w)

    found = results()
    monkeypatch.setattr(library, "is_available", lambda: False)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(results()), strict=True):
        assert mine.dtype == theirs.dtype
        mine, theirs = np.float32(mine), np.float32(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_of_the_first_rows_only_as_many_as_are_asked_for(kernel, monkeypatch):
    x, w = operands(129, 513, True)
    whole = few_rows.product_with_rows(x, w)
    w[200:] = np.nan
    some = few_rows.product_with_rows(x, w, 200)
    np.testing.assert_array_equal(some, whole[:, :200])
    gradient = jax.grad(lambda w: few_rows.product_with_rows(x, w, 200).sum())(w)
    assert gradient.shape == w.shape and not np.asarray(gradient[200:]).any()
    monkeypatch.setattr(library, "is_available", lambda: False)
    np.testing.assert_allclose(few_rows.product_with_rows(x, w, 200), some, atol=1e-4)


def test_more_rows_or_other_types_are_xlas(kernel):
    def uses_kernel(x, w):
        return "ffi_call" in str(jax.make_jaxpr(few_rows.product)(x, w))

    x, w = operands(7, 5, False)
    assert uses_kernel(x, w) and uses_kernel(x, w.astype(jnp.bfloat16))
    assert not uses_kernel(np.concatenate([x, x[:1]]), w)
    assert not uses_kernel(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))
