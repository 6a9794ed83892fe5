"""Attention to a cache: the kernel and the plain form are the same function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.kernels import library
from specdec.kernels.attention import MAX_QUERIES, attend


@pytest.fixture(params=[False, True], ids=["plain", "kernel"])
def form(request, monkeypatch):
    if request.param and not library.is_available():
        pytest.skip("no C++ compiler, or no CPU backend")
    if not request.param:
        monkeypatch.setattr(library, "is_available", lambda: False)


# H heads of a width with and without a remainder; the second is large enough for several threads.
SHAPES = [(3, 2, 5, 9, 7), (2, 4, 4, 70, 64)]
BOTH_SHAPES = pytest.mark.parametrize("shape", SHAPES, ids=["small", "large"])


def operands(shape, seed=0):
    batch, heads, num_queries, slots, width = shape
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return (
        draw(batch, num_queries, heads * width),
        draw(batch, heads, slots, width),
        draw(batch, heads, slots, width),
        rng.integers(1, slots + 1, (batch, num_queries)).astype(np.int32),
        draw(heads, slots),
    )


def by_loops(queries, keys, values, visible, bias):
    batch, heads, _, width = keys.shape
    out = np.zeros(queries.shape, np.float64)
    for b, t, h in np.ndindex(batch, queries.shape[1], heads):
        count, here = visible[b, t], slice(h * width, (h + 1) * width)
        scores = keys[b, h, :count].astype(np.float64) @ queries[b, t, here]
        if bias is not None:
            scores += bias[h, :count][::-1]
        weights = np.exp(scores - scores.max())
        out[b, t, here] = weights / weights.sum() @ values[b, h, :count]
    return out


@BOTH_SHAPES
@pytest.mark.parametrize("with_bias", [False, True])
def test_each_query_attends_to_the_slots_it_sees(form, shape, with_bias):
    *given, bias = operands(shape)
    bias = bias if with_bias else None
    np.testing.assert_allclose(attend(*given, bias), by_loops(*given, bias), atol=1e-5)


def test_the_bias_counts_back_from_the_last_visible_slot(form):
    """The docstring's example: visible 3, bias [0, .1, .2] -> .2, .1, 0 for the slots 0, 1, 2."""
    values = np.eye(4, dtype=np.float32)[None, None]
    bias = np.array([[0, 0.1, 0.2, 9]], np.float32)
    zeros = np.zeros_like(values)
    found = attend(np.zeros((1, 1, 4), np.float32), zeros, values, np.array([[3]]), bias)
    expected = np.exp([0.2, 0.1, 0, -np.inf])
    np.testing.assert_allclose(found[0, 0], expected / expected.sum(), rtol=1e-6)


@BOTH_SHAPES
def test_what_lies_beyond_is_not_read(form, shape):
    queries, keys, values, visible, bias = operands(shape)
    last = visible.max(1)
    expected = attend(queries, keys, values, visible, bias)
    for row, count in enumerate(last):
        keys[row, :, count:] = values[row, :, count:] = np.nan
    np.testing.assert_array_equal(attend(queries, keys, values, visible, bias), expected)


@pytest.mark.skipif(not library.is_available(), reason="the plain form rounds by block")
@BOTH_SHAPES
def test_a_query_rounds_alike_whatever_is_asked_beside_it(shape):
    queries, keys, values, visible, bias = operands(shape)
    whole = np.asarray(attend(queries, keys, values, visible, bias))
    for t in range(queries.shape[1]):
        alone = attend(queries[:, t : t + 1], keys, values, visible[:, t : t + 1], bias)
        np.testing.assert_array_equal(alone[:, 0], whole[:, t])


def test_gradients_are_those_of_the_plain_form(monkeypatch):
    *given, visible, bias = operands(SHAPES[0])

    def gradients():
        def loss(queries, keys, values, bias):
            return jnp.sum(jnp.square(attend(queries, keys, values, visible, bias)))

        return jax.grad(loss, argnums=(0, 1, 2, 3))(*given, bias)

    found = gradients()
    monkeypatch.setattr(library, "is_available", lambda: False)
    for mine, theirs in zip(found, gradients(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_many_queries_or_other_types_are_xlas():
    def uses_kernel(*given):
        return "ffi_call" in str(jax.make_jaxpr(attend)(*given))

    few, many = operands(SHAPES[0]), operands((1, 2, MAX_QUERIES + 1, 20, 4))
    assert uses_kernel(*few) == library.is_available()
    assert not uses_kernel(*many)
    assert not uses_kernel(*(jnp.asarray(x, jnp.bfloat16) for x in few[:3]), *few[3:])
