"""Counted tables: the counts by hand, and drafts that follow the table and leave the output."""

import functools

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import speculative
from specdec.config import SpecConfig
from specdec.drafters import BigramDrafter, UnigramDrafter
from specdec.drafters.ngram import FLOOR, PRIOR, bigram_logits, count_bigrams, unigram_logits
from specdec.sampling import settings
from specdec.types import Context

EOS = checks.EOS
ROWS = [[2, 3, EOS], [2, 2, EOS], [3, EOS]]


def test_count_bigrams_docstring_example():
    counts = count_bigrams([[2, 2, 1]], 3)
    expected = np.zeros((3, 3))
    expected[[0, 2, 2], [2, 2, 1]] = 1
    np.testing.assert_array_equal(counts, expected)


def test_counts_by_hand():
    """Start -> 2, 2, 3; 2 -> 3, 2, EOS; 3 -> EOS, EOS. Nothing follows an end of sequence."""
    counts = count_bigrams([*ROWS, []], 5)
    expected = np.zeros((5, 5))
    expected[0, [2, 3]] = 2, 1
    expected[2, [1, 2, 3]] = 1, 1, 1
    expected[3, 1] = 2
    np.testing.assert_array_equal(counts, expected)


def test_unigram_logits_docstring_example():
    counts = np.array([[2, 0, 0], [1, 1, 0], [0, 0, 0]], np.float32)
    expected = 0.99 * np.array([3 / 4, 1 / 4, 0]) + 0.01 / 3
    np.testing.assert_allclose(np.exp(unigram_logits(counts)), expected, rtol=1e-6)


def test_bigram_logits_docstring_example(monkeypatch):
    """With u = [.5, .25, .25]: no floor, and the other rows' counts make up for row 0's."""
    assert PRIOR == 8 and FLOOR == 0.01
    monkeypatch.setattr("specdec.drafters.ngram.FLOOR", 0.0)
    counts = np.array([[6, 2, 0], [0, 1, 2], [0, 0, 1]], np.float32)
    np.testing.assert_allclose(
        np.exp(bigram_logits(counts))[0], np.array([10, 4, 2]) / 16, rtol=1e-6
    )


def test_every_row_is_a_law_above_zero_and_one_never_seen_is_the_unigram():
    counts = count_bigrams(ROWS, 5)
    law = np.exp(bigram_logits(counts))
    np.testing.assert_allclose(law.sum(1), 1, rtol=1e-6)
    assert (law > 0).all()
    for unseen in (EOS, 4):
        np.testing.assert_allclose(law[unseen], np.exp(unigram_logits(counts)), rtol=1e-6)


@pytest.mark.parametrize(
    "rows, message", [([], "no tokens"), ([[]], "no tokens"), ([[2, 9, 1]], r"ids 1\.\.9 .*0\.\.4")]
)
def test_text_that_cannot_be_counted_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        count_bigrams(rows, 5)


# --- drafting --------------------------------------------------------------------------------

TABLES = {
    BigramDrafter: fakes.random_table(5, 4, num_rows=4),
    UnigramDrafter: fakes.random_table(6, 4, num_rows=1)[0],
}
both = pytest.mark.parametrize("kind", TABLES)


def pair(kind, batch_size=1):
    params = speculative.PairParams(
        jnp.asarray(fakes.random_table(0, 4)), jnp.asarray(TABLES[kind])
    )
    salts = fakes.TableInputs(jnp.arange(batch_size, dtype=jnp.int32) * 3)
    return checks.Pair(fakes.TableModel(4), kind(4), params, salts)


@functools.cache
def proposal(kind, **how):
    """4000 rows of three drafts after token 3."""
    lengths = jnp.full(4000, 2)
    where = Context(jnp.tile(jnp.array([0, 3, 9, 9, 9]), (4000, 1)), lengths, lengths - 1)
    config = SpecConfig(gamma=3, eos_id=EOS, num_ids=how.pop("num_ids", None))
    run = jax.jit(functools.partial(kind(4).propose, config=config))
    table, keys = jnp.asarray(TABLES[kind]), checks.keys(0, 4000)
    return run(table, (), where, keys, settings=settings(**how))[0]


def law_after(kind, token, size=4):
    table = TABLES[kind]
    return fakes.softmax((table[token] if table.ndim == 2 else table)[:size])


@both
def test_the_law_is_the_tables_row_of_the_token_before(kind):
    found = proposal(kind)
    tokens = np.asarray(found.tokens)
    leading = np.concatenate([np.full((4000, 1), 3), tokens[:, :-1]], axis=1)
    rows = np.array([law_after(kind, token) for token in range(4)])
    np.testing.assert_allclose(found.probs, rows[leading], atol=1e-6)


@both
def test_tokens_are_drawn_from_that_law(kind):
    tokens = np.asarray(proposal(kind).tokens)
    counts, law = {}, {}
    for first, second in tokens[:, :2].tolist():
        counts[first, second] = counts.get((first, second), 0) + 1
    for first in range(4):
        for second in range(4):
            law[first, second] = law_after(kind, 3)[first] * law_after(kind, first)[second]
    assert fakes.chi_square_p_value(counts, law) > 1e-4


@both
def test_padding_rows_of_the_table_are_never_drafted(kind):
    found = proposal(kind, num_ids=3)
    assert np.asarray(found.tokens).max() < 3
    np.testing.assert_allclose(found.probs[0, 0, :3], law_after(kind, 3, 3), atol=1e-6)
    np.testing.assert_array_equal(found.probs[..., 3], 0)


@both
def test_drafts_run_no_model_and_end_at_eos(kind):
    found = proposal(kind)
    assert (np.asarray(found.num_calls) == 0).all()
    expected = [[*row, EOS].index(EOS) + 1 for row in np.asarray(found.tokens).tolist()]
    np.testing.assert_array_equal(found.num_drafted, np.minimum(expected, 3))


@both
def test_q_is_the_tables_law_in_every_round(kind):
    assert checks.proposal_error(pair(kind, 3)) < 1e-5


@both
def test_greedy_output_is_the_targets(kind):
    assert checks.greedy_differences(pair(kind, 3), gammas=(2,)) == []


def test_sampled_output_has_the_targets_law():
    assert checks.law_p_value(pair(BigramDrafter), gamma=2, num_samples=8000) > 1e-4
