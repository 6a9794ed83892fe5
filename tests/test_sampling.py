"""Logits to probabilities to tokens: order, ties, kept sets by hand, and draws at the edges."""

import functools

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from specdec import autoregressive, sampling, speculative
from specdec.drafters import model as model_drafter
from specdec.sampling import settings
from specdec.types import Context

EOS = 1
P = np.array([0.4, 0.3, 0.2, 0.1])
LARGEST_UNIFORM = 1 - 2**-24

adjusted_probs = jax.jit(sampling.adjusted_probs)
sample = jax.jit(jax.vmap(sampling.sample))
standardize = jax.jit(
    functools.partial(sampling.standardize, eos_id=EOS), static_argnames="num_ids"
)
examples = functools.partial(hypothesis_settings, deadline=None, derandomize=True, database=None)


def law(logits, **how):
    """[V] float32, through one shape."""
    return np.asarray(adjusted_probs(jnp.asarray([logits], jnp.float32), settings(**how)))[0]


def kept(logits, **how):
    return np.flatnonzero(law(logits, **how)).tolist()


def context(lengths, prompt_lengths, tokens=None):
    tokens = jnp.zeros((len(lengths), 8), jnp.int32) if tokens is None else jnp.asarray(tokens)
    return Context(tokens, jnp.asarray(lengths), jnp.asarray(prompt_lengths))


# --- order and ties --------------------------------------------------------------------------


def test_temperature_comes_before_top_p():
    """B11 (a): at T = 2 three stay; filtering at T = 1 would keep two."""
    assert kept(np.log(P), temperature=2, top_p=0.65) == [0, 1, 2]
    assert kept(np.log(P), temperature=1, top_p=0.65) == [0, 1]
    expected = np.sqrt(P) * [1, 1, 1, 0]
    np.testing.assert_allclose(
        law(np.log(P), temperature=2, top_p=0.65), expected / expected.sum(), atol=1e-6
    )


def test_top_p_works_on_what_top_k_left_renormalised():
    """.4 is short of .55; .4 / .7 = .571 isn't."""
    assert kept(np.log(P), top_p=0.55) == [0, 1]
    assert kept(np.log(P), top_k=2, top_p=0.55) == [0]


def test_the_token_that_crosses_the_mass_stays():
    assert kept(np.log(P), top_p=0.65) == [0, 1]
    assert kept(np.log(P), top_p=0.75) == [0, 1, 2]
    np.testing.assert_allclose(law(np.log(P), top_p=0.65), [4 / 7, 3 / 7, 0, 0], atol=1e-6)


def test_top_k_of_1_keeps_exactly_one():
    """B11 (b): with a second at a distance of 1e-6, and with an exact tie."""
    assert law([0.0, -1e-6, -1.0, -2.0], top_k=1).tolist() == [1, 0, 0, 0]
    assert law([-1e-6, 0.0, -1.0, -2.0], top_k=1).tolist() == [0, 1, 0, 0]
    assert law([-1.0, 0.0, 0.0, 0.0], top_k=1).tolist() == [0, 1, 0, 0]


def test_top_k_keeps_exactly_k_of_equals_the_lowest_ids():
    assert kept([0.0, 0.0, 0.0, 0.0], top_k=2) == [0, 1]
    assert kept([-1.0, 0.0, -1.0, -1.0], top_k=3) == [0, 1, 2]


def test_top_p_keeps_the_lowest_ids_of_equals():
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.5) == [0, 1]
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.51) == [0, 1, 2]
    assert kept([-9.0, 0.0, 0.0, 0.0], top_p=0.3) == [1]


def test_a_tiny_top_p_is_the_argmax():
    """B11 (c): wherever that is. (top_p = 0 is a ValueError, see test_config.)"""
    assert law(np.log(P)[::-1], top_p=1e-6).tolist() == [0, 0, 0, 1]
    assert law([0.0, 0.0, 0.0, 60.0], top_p=1e-6).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("top_k", [4, 5, 1000])
def test_top_k_of_the_vocabulary_or_more_is_off(top_k):
    """B11 (d)."""
    np.testing.assert_array_equal(law(np.log(P), top_k=top_k), law(np.log(P)))


@pytest.mark.parametrize("logits", [np.log(P), [20.0, 0.0, 0.0, -5.0]], ids=["flat", "peaked"])
def test_top_p_of_1_is_off(logits):
    assert kept(logits, top_p=1.0) == [0, 1, 2, 3]


def test_temperature_0_is_one_hot_at_the_lowest_of_the_largest():
    assert law([1.0, 3.0, 3.0, 0.0], temperature=0).tolist() == [0, 1, 0, 0]
    assert law([-np.inf, -5.0, -np.inf, -5.0], temperature=0).tolist() == [0, 1, 0, 0]


def test_greedy_settings_carry_no_filter():
    greedy = settings(0, top_k=3, top_p=0.5)
    assert (greedy.temperature, greedy.top_k, greedy.top_p) == (None, None, None)


def test_temperature_by_hand():
    """B03: the triple at T = .5."""
    triple = [np.log(0.2), np.log(0.5), np.log(0.3), -np.inf]
    np.testing.assert_allclose(law(triple, temperature=0.5), [0.1053, 0.6579, 0.2368, 0], atol=5e-5)


@examples(max_examples=150)
@given(
    logits=st.lists(st.integers(-12, 12), min_size=6, max_size=6),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    top_k=st.integers(1, 7),
    top_p=st.floats(0.01, 0.99),
)
def test_laws_equal_an_independent_reading_of_the_rule(logits, temperature, top_k, top_p):
    """Integers / 4, so that ties are common; masses within rounding of top_p are left out."""
    logits = np.asarray(logits) / 4
    in_order = np.sort(fakes.softmax(logits / temperature))[::-1][:top_k]
    assume(np.abs(np.cumsum(in_order) / in_order.sum() - top_p).min() > 1e-5)
    how = dict(temperature=temperature, top_k=top_k, top_p=top_p)
    np.testing.assert_allclose(law(logits, **how), fakes.standardized(logits, **how), atol=1e-6)


# --- one rule --------------------------------------------------------------------------------


def test_target_draft_and_plain_decoding_share_one_function():
    assert speculative.standardize is sampling.standardize
    assert autoregressive.standardize is sampling.standardize
    assert model_drafter.standardize is sampling.standardize


def test_a_row_is_the_same_alone_and_in_a_block():
    """The draft asks for one row a run, the target for gamma + 1."""
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)), jnp.float32)
    how = settings(0.7, top_k=3, top_p=0.9, min_new_tokens=2, repetition_penalty=1.3)
    tokens = np.random.default_rng(1).integers(0, 4, (2, 8))
    block = standardize(logits, how, context([2, 4], [2, 3], tokens), num_ids=4)
    for t in range(3):
        later = context([2 + t, 4 + t], [2, 3], tokens)
        one = standardize(logits[:, t : t + 1], how, later, num_ids=4)
        np.testing.assert_array_equal(one.probs[:, 0], block.probs[:, t])
        np.testing.assert_array_equal(one.model_probs[:, 0], block.model_probs[:, t])


def test_model_probs_know_neither_temperature_nor_filter():
    logits = jnp.asarray([[np.log(P)]], jnp.float32)
    for how in (settings(0), settings(0.5), settings(2.0, top_k=1, top_p=0.3)):
        rows = standardize(logits, how, context([1], [1]), num_ids=4)
        np.testing.assert_allclose(rows.model_probs[0, 0], P, atol=1e-6)


def test_rows_are_float32_whatever_the_logits_are():
    logits = jnp.asarray([[np.log(P)]], jnp.bfloat16)
    rows = standardize(logits, settings(0.5), context([1], [1]), num_ids=4)
    assert rows.probs.dtype == rows.model_probs.dtype == jnp.float32
    np.testing.assert_allclose(rows.probs.sum(-1), 1, atol=1e-6)


# --- filters that are off --------------------------------------------------------------------


def program(**how):
    shapes = (jnp.zeros((2, 3, 4)), settings(**how), context([1, 1], [1, 1]))
    return standardize.lower(*shapes, num_ids=4).as_text()


@pytest.mark.parametrize("how", [{}, {"temperature": 0.5}, {"temperature": 0, "top_k": 3}], ids=str)
def test_filters_that_are_off_compile_no_sort(how):
    assert "sort" not in program(**how)


@pytest.mark.parametrize("how", [{"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_filters_that_are_on_compile_a_sort(how):
    """So the test above looks for the right word."""
    assert "sort" in program(**how)


def test_another_value_of_a_filter_is_the_same_program():
    assert program(temperature=0.5, top_k=3, top_p=0.5) == program(temperature=2, top_k=1, top_p=1)


# --- bans and penalties ----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_eos_is_banned_at_exactly_the_slots_before_the_minimum(temperature):
    """B22: min_new_tokens 4; rows with 0, 2 and 4 new tokens behind prompts of 1, 3 and 2."""
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.05, 0.9, 0.03, 0.02])), (3, 4, 4))
    rows = standardize(
        logits,
        settings(temperature, min_new_tokens=4),
        context([1, 5, 6], [1, 3, 2]),
        num_ids=4,
    )
    may_end = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], bool)
    np.testing.assert_array_equal(np.asarray(rows.probs)[:, :, EOS] > 0, may_end)
    np.testing.assert_array_equal(np.asarray(rows.model_probs)[:, :, EOS] > 0, may_end)
    np.testing.assert_allclose(rows.probs.sum(-1), 1, atol=1e-6)
    if temperature:
        np.testing.assert_allclose(rows.probs[0, 0], [0.5, 0, 0.3, 0.2], atol=1e-6)


def test_the_penalty_counts_prompt_accepted_and_earlier_drafts_once_each():
    """B23: history [3], then [3, 0], then [3, 0, 0], then [3, 0, 0, 2]; garbage [1, ...] behind."""
    constant = np.array([2.0, 1.9, 1.8, -5.0])
    seen = [[3], [3, 0], [3, 0], [3, 0, 2]]
    expected = np.tile(constant, (4, 1))
    for row, ids in zip(expected, seen, strict=True):
        for i in ids:
            row[i] = row[i] / 1.5 if row[i] > 0 else row[i] * 1.5
    rows = standardize(
        jnp.asarray(np.tile(constant, (1, 4, 1)), jnp.float32),
        settings(1.0, repetition_penalty=1.5),
        context([1], [1], [[3, 0, 0, 2, 1, 1, 1, 1]]),
        num_ids=4,
    )
    np.testing.assert_allclose(rows.probs[0], fakes.softmax(expected), atol=1e-6)
    np.testing.assert_allclose(rows.model_probs[0], fakes.softmax(expected), atol=1e-6)


def test_a_penalty_of_1_is_off():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)), jnp.float32)
    where = context([3, 4], [1, 2])
    plain = standardize(logits, settings(1.0), where, num_ids=4)
    with_penalty = standardize(logits, settings(1.0, repetition_penalty=1.0), where, num_ids=4)
    np.testing.assert_array_equal(plain.probs, with_penalty.probs)


@pytest.mark.parametrize("how", [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.99}], ids=str)
def test_padding_ids_have_probability_0_in_both_rows(how):
    """B25: their logits are large."""
    logits = jnp.asarray([[[1.0, 0.5, 50.0, 80.0]]])
    rows = standardize(logits, settings(**how), context([1], [1]), num_ids=2)
    for probs in rows:
        np.testing.assert_array_equal(probs[0, 0, 2:], [0, 0])
        np.testing.assert_allclose(probs.sum(), 1, atol=1e-6)


# --- draws -----------------------------------------------------------------------------------


NUM_DRAWS = 1024


def draws(probs, uniforms):
    """The ids of one row for many uniform numbers, through one shape a vocabulary."""
    probs = jnp.asarray(probs, jnp.float32)
    uniforms = np.resize(np.asarray(uniforms, np.float32), NUM_DRAWS)
    return np.asarray(
        sample(jnp.broadcast_to(probs, (NUM_DRAWS, len(probs))), jnp.asarray(uniforms))
    )


def test_sample_docstring_example():
    ids = draws([0.2, 0.5, 0.3, 0.0], [0, 0.19, 0.2, 0.69, 0.7])[:5]
    assert ids.tolist() == [0, 0, 1, 1, 2]


def adversarial_rows():
    rng = np.random.default_rng(0)
    yield from np.eye(4)
    yield [0, 0.5, 0.5, 0]
    yield [0, 1 - 2**-24, 2**-24, 0]
    yield [0, 2**-24, 1 - 2**-24, 0]
    yield [0, 1e-38, 1, 0]
    yield [0, 1, 1e-38, 0]
    for scale in (1 - 1e-6, 1 + 1e-6, 0.999, 1.001):
        yield np.array([0, 0.3, 0.7, 0]) * scale
    for _ in range(20):
        row = rng.random(4) ** 8 * (rng.random(4) < 0.6)
        yield row / row.sum() if row.any() else np.eye(4)[2]


def long_adversarial_rows():
    """Over 300 ids: blocks of zeros first, in the middle and last; one id; tiny masses."""
    rng = np.random.default_rng(1)
    for i in (0, 127, 128, 255, 256, 299):
        yield np.eye(300)[i]
    for first, last in ((128, 256), (100, 130), (256, 300), (0, 128), (5, 290)):
        row = np.zeros(300)
        row[first:last] = rng.random(last - first) ** 6
        row[first:last:3] = 0
        yield row / row.sum()
    row = np.full(300, 1e-9)
    row[::2] = 0
    row[151] = 1
    yield row
    yield row[::-1]
    yield np.where(np.arange(300) % 150 == 1, 0.5, 0)


EDGES = [0, 2**-24, 2**-23, 0.25, 0.5, 0.75, 1 - 2**-23, LARGEST_UNIFORM]


@pytest.mark.parametrize("rows", [adversarial_rows, long_adversarial_rows])
def test_ids_of_probability_0_are_never_drawn(rows):
    for row in rows():
        fine = np.linspace(0, LARGEST_UNIFORM, NUM_DRAWS - len(EDGES), dtype=np.float32)
        ids = draws(row, np.concatenate([EDGES, fine]))
        assert ids.min() >= 0 and ids.max() < len(row)
        assert (np.asarray(row, np.float32)[ids] > 0).all(), row


@examples(max_examples=80)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-12, 1e-6, 0.1, 1.0, 3.0]), min_size=4, max_size=4),
    uniforms=st.lists(st.floats(0, LARGEST_UNIFORM, width=32), min_size=1, max_size=8),
)
def test_a_drawn_id_is_always_possible(weights, uniforms):
    assume(any(weights))
    probs = np.asarray(weights) / sum(weights)
    ids = draws(probs, uniforms)
    assert (np.asarray(probs, np.float32)[ids] > 0).all()


@pytest.mark.parametrize("rows", [adversarial_rows, long_adversarial_rows])
def test_uniforms_on_a_fine_grid_give_the_law(rows):
    """One more or less a boundary; un-normalised rows are drawn from as if normalised."""
    for row in rows():
        ids = draws(row, np.arange(NUM_DRAWS) / NUM_DRAWS)
        frequency = np.bincount(ids, minlength=len(row)) / NUM_DRAWS
        np.testing.assert_allclose(frequency, np.asarray(row) / np.sum(row), atol=1.01 / NUM_DRAWS)


def test_draws_rise_with_the_uniform_number():
    probs = np.random.default_rng(2).random(300)
    ids = draws(probs / probs.sum(), np.arange(NUM_DRAWS) / NUM_DRAWS)
    assert (np.diff(ids) >= 0).all()


def test_sample_rows_uses_one_number_a_row():
    probs = jnp.broadcast_to(jnp.asarray(P, jnp.float32), (2000, 4))
    drawn = sampling.uniforms(jax.random.key(0), 2000)
    sample_rows = jax.jit(sampling.sample_rows)
    ids = np.asarray(sample_rows(probs, settings(1.0), drawn))
    counts = {(i,): int((ids == i).sum()) for i in range(4)}
    law = {(i,): mass for i, mass in enumerate(P)}
    assert fakes.chi_square_p_value(counts, law) > 1e-4
    order = np.random.default_rng(0).permutation(2000)
    np.testing.assert_array_equal(sample_rows(probs, settings(1.0), drawn[order]), ids[order])
    assert (np.asarray(sample_rows(probs, settings(0), drawn)) == 0).all()


def test_log_probs_of_the_tokens_drawn():
    probs = jnp.asarray([[P, P[::-1]]], jnp.float32)
    log_probs = sampling.log_probs_of(probs, jnp.array([[1, 1]]))
    np.testing.assert_allclose(log_probs, np.log([[0.3, 0.2]]), atol=1e-6)
