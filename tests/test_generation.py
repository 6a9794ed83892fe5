"""The stop rule: EOS and limit inside a block, rows that are done, and the final blanking."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import generation as module
from specdec.generation import BONUS, DRAFT, EOS, LENGTH, NONE, RUNNING, Columns

EOS_ID = 1
SLACK = 8
append = jax.jit(functools.partial(module.append, eos_id=EOS_ID))
finish = jax.jit(module.finish, static_argnames=("max_new_tokens", "pad_id"))
start = jax.jit(module.start, static_argnames="buffer_length")


def columns(tokens):
    """A block whose log-probs name their tokens, so that columns can't come apart unseen."""
    tokens = jnp.asarray(tokens, jnp.int32)
    origins = jnp.full(tokens.shape, DRAFT, jnp.int8)
    return Columns(tokens, origins, -1.0 * tokens, -2.0 * tokens)


def started(limits, *, prompt_lengths=None, prompt=None):
    limits = jnp.asarray(limits)
    prompt = jnp.zeros((len(limits), 1), jnp.int32) if prompt is None else jnp.asarray(prompt)
    if prompt_lengths is None:
        prompt_lengths = [prompt.shape[1]] * len(limits)
    size = prompt.shape[1] + 8 + SLACK
    return start(prompt, jnp.asarray(prompt_lengths), limits, buffer_length=size)


def decided(generation, row=0):
    """The new tokens of a row."""
    begin, end = int(generation.prompt_lengths[row]), int(generation.lengths[row])
    return generation.columns.tokens[row, begin:end].tolist()


def run(tokens, limit):
    """Tokens appended to a fresh row -> (tokens, stop reason). EOS lies behind, as garbage."""
    block = columns([tokens + [EOS_ID] * (SLACK - len(tokens))])
    generation, num = append(started([limit]), block, jnp.array([len(tokens)]))
    assert int(num[0]) == len(decided(generation))
    return decided(generation), int(generation.stop_reasons[0])


def test_append_docstring_example():
    """Limit 5 with 3 tokens decided: EOS second, or EOS third, where the limit cuts it off."""
    before, _ = append(started([5, 5]), columns([[5, 5, 5]] * 2), jnp.array([3, 3]))
    block = columns([[6, EOS_ID, 8], [6, 7, EOS_ID]])
    after, num = append(before, block, jnp.array([3, 3]))
    np.testing.assert_array_equal(num, [2, 2])
    np.testing.assert_array_equal(after.stop_reasons, [EOS, LENGTH])
    assert decided(after, 0) == [5, 5, 5, 6, EOS_ID]
    assert decided(after, 1) == [5, 5, 5, 6, 7]


def test_nothing_after_eos_inside_an_accepted_run():
    """B20."""
    assert run([5, 6, EOS_ID, 7, 8], limit=8) == ([5, 6, EOS_ID], EOS)


def test_eos_and_limit_in_one_block():
    """B21: EOS first, the limit first, both on one token."""
    assert run([10, 11, EOS_ID, 20, 21, 22], limit=5) == ([10, 11, EOS_ID], EOS)
    assert run([10, 11, 12, 20, 21, 22, EOS_ID], limit=5) == ([10, 11, 12, 20, 21], LENGTH)
    assert run([10, 11, EOS_ID, 20, 21, 22], limit=3) == ([10, 11, EOS_ID], EOS)


@pytest.mark.parametrize("limit", range(1, 9))
def test_a_run_without_eos_gives_exactly_the_limit(limit):
    tokens = list(range(10, 18))
    assert run(tokens, limit) == (tokens[:limit], LENGTH)


def test_a_block_short_of_both_goes_on():
    assert run([5, 6], limit=3) == ([5, 6], RUNNING)


def test_eos_beyond_the_new_tokens_is_no_end():
    block = columns([[6, 7, EOS_ID]])
    generation, num = append(started([8]), block, jnp.array([2]))
    assert (int(num[0]), int(generation.stop_reasons[0])) == (2, RUNNING)


def test_eos_in_the_prompt_is_no_end():
    generation = started([8], prompt=[[5, EOS_ID]])
    generation, _ = append(generation, columns([[6]]), jnp.array([1]))
    assert decided(generation) == [6]
    assert generation.running[0]


def test_limits_count_new_tokens_whatever_the_prompt():
    generation = started([3, 3], prompt=[[5, 6, 7], [5, 0, 0]], prompt_lengths=[3, 1])
    block = columns([[8, 9, 10, 11]] * 2)
    generation, num = append(generation, block, jnp.array([4, 4]))
    np.testing.assert_array_equal(num, [3, 3])
    np.testing.assert_array_equal(generation.lengths, [6, 4])
    assert decided(generation, 1) == [8, 9, 10]


def test_rows_that_are_done_add_nothing():
    block = columns([[5, EOS_ID, 6], [5, 6, 7], [5, 6, 7]])
    once, _ = append(started([8, 2, 8]), block, jnp.array([3, 3, 1]))
    np.testing.assert_array_equal(once.running, [False, False, True])
    twice, num = append(once, columns([[9, 9, EOS_ID]] * 3), jnp.array([3, 3, 3]))
    np.testing.assert_array_equal(num, [0, 0, 3])
    np.testing.assert_array_equal(twice.stop_reasons, [EOS, LENGTH, EOS])
    for row in (0, 1):
        assert decided(twice, row) == decided(once, row)


def test_a_limit_of_0_is_done_from_the_start():
    generation = started([0, 1])
    np.testing.assert_array_equal(generation.stop_reasons, [LENGTH, RUNNING])
    generation, num = append(generation, columns([[5], [5]]), jnp.array([1, 1]))
    np.testing.assert_array_equal(num, [0, 1])
    assert decided(generation, 0) == []


def test_columns_stay_together():
    generation, _ = append(started([8]), columns([[5, 6, 9]]), jnp.array([2]))
    generation, _ = append(generation, columns([[7, 8]]), jnp.array([2]))
    tokens = generation.columns.tokens[0, 1:5]
    assert tokens.tolist() == [5, 6, 7, 8]
    np.testing.assert_array_equal(generation.columns.log_probs[0, 1:5], -1.0 * tokens)
    np.testing.assert_array_equal(generation.columns.model_log_probs[0, 1:5], -2.0 * tokens)


def test_finish_leaves_the_prompt_out_and_blanks_what_lies_beyond():
    generation = started([4, 4, 0], prompt=[[5, 6], [5, 99], [5, 99]], prompt_lengths=[2, 1, 1])
    block = columns([[7, EOS_ID, 8], [7, 8, 9], [7, 8, 9]])
    block = block.replace(origins=block.origins.at[:, -1].set(BONUS))
    generation, _ = append(generation, block, jnp.array([3, 3, 3]))
    result = finish(generation, jnp.array([2, 2, 0]), max_new_tokens=4, pad_id=-7)
    np.testing.assert_array_equal(
        result.tokens, [[7, EOS_ID, -7, -7], [7, 8, 9, -7], [-7, -7, -7, -7]]
    )
    np.testing.assert_array_equal(result.lengths, [2, 3, 0])
    np.testing.assert_array_equal(
        result.origins,
        [[DRAFT, DRAFT, NONE, NONE], [DRAFT, DRAFT, BONUS, NONE], [NONE, NONE, NONE, NONE]],
    )
    is_real = jnp.arange(4) < result.lengths[:, None]
    np.testing.assert_array_equal(result.log_probs, jnp.where(is_real, -1.0 * result.tokens, 0))
    np.testing.assert_array_equal(
        result.model_log_probs, jnp.where(is_real, -2.0 * result.tokens, 0)
    )
    assert result.speculation is None


def test_the_result_is_a_pytree_of_arrays():
    result = finish(started([1]), jnp.array([0]), max_new_tokens=1, pad_id=0)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(result))
