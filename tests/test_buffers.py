"""Index arithmetic: the docstrings' worked examples, and what an overwrite leaves alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.buffers import first_true, last_token, prefix_mask, read_at, write_at


def test_write_at_docstring_example():
    written = write_at(jnp.array([[0, 0, 0, 0]]), jnp.array([[7, 8]]), jnp.array([1]))
    np.testing.assert_array_equal(written, [[0, 7, 8, 0]])


def test_write_at_overwrites_each_row_at_its_own_position():
    buffer = jnp.arange(15).reshape(3, 5)
    written = write_at(buffer, -jnp.array([[1, 2], [3, 4], [5, 6]]), jnp.array([0, 3, 1]))
    expected = [[-1, -2, 2, 3, 4], [5, 6, 7, -3, -4], [10, -5, -6, 13, 14]]
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_write_at_equals_slices_for_one_row_and_for_many(batch_size):
    rng = np.random.default_rng(batch_size)
    buffer = rng.standard_normal((batch_size, 6, 2)).astype(np.float32)
    block = rng.standard_normal((batch_size, 3, 2)).astype(np.float32)
    positions = rng.integers(0, 4, batch_size)
    expected = buffer.copy()
    for b, n in enumerate(positions):
        expected[b, n : n + 3] = block[b]
    written = write_at(jnp.asarray(buffer), jnp.asarray(block), jnp.asarray(positions))
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_write_at_of_an_empty_block_changes_nothing(batch_size):
    buffer = jnp.ones((batch_size, 4), jnp.int32)
    empty = jnp.zeros((batch_size, 0), jnp.int32)
    np.testing.assert_array_equal(write_at(buffer, empty, jnp.zeros(batch_size, int)), buffer)


def test_write_at_keeps_the_type_of_the_buffer():
    written = write_at(jnp.zeros((2, 3), jnp.int8), jnp.array([[5], [6]]), jnp.array([0, 2]))
    assert written.dtype == jnp.int8
    np.testing.assert_array_equal(written, [[5, 0, 0], [0, 0, 6]])


def test_write_at_refuses_a_block_longer_than_the_buffer():
    with pytest.raises(ValueError, match=r"block of 5 .* buffer of 4"):
        write_at(jnp.zeros((1, 4)), jnp.zeros((1, 5)), jnp.array([0]))


def test_read_at_docstring_example():
    np.testing.assert_array_equal(read_at(jnp.array([[5, 6, 7, 8]]), jnp.array([2]), 2), [[7, 8]])


def test_read_at_returns_what_write_at_wrote():
    block = jnp.arange(12.0).reshape(2, 3, 2)
    positions = jnp.array([2, 0])
    buffer = write_at(jnp.full((2, 5, 2), -1.0), block, positions)
    np.testing.assert_array_equal(read_at(buffer, positions, 3), block)


def test_prefix_mask_marks_the_first_slots():
    expected = [[False, False, False], [True, True, False], [True, True, True]]
    np.testing.assert_array_equal(prefix_mask(jnp.array([0, 2, 3]), 3), expected)


def test_first_true_docstring_example():
    mask = jnp.array([[False, True, True], [False, False, False]])
    np.testing.assert_array_equal(first_true(mask), [1, 3])


def test_first_true_of_nothing_is_0():
    """gamma = 0: no draft, so the first rejection is at 0."""
    assert int(first_true(jnp.zeros(0, bool))) == 0
    np.testing.assert_array_equal(first_true(jnp.zeros((2, 0), bool)), [0, 0])


def test_last_token_is_the_one_before_the_length():
    tokens = jnp.array([[4, 5, 6], [7, 8, 9]])
    np.testing.assert_array_equal(last_token(tokens, jnp.array([1, 3])), [4, 9])
