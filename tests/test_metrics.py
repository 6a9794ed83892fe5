"""The three readings of alpha, counts, and intervals."""

import checks
import fakes
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import metrics, sampling
from specdec.config import SpecConfig
from specdec.generation import Decoded, SpeculationCounts

GAMMA = 3


@pytest.fixture(scope="module")
def measured():
    """A pair, its speculative results and the betas of plain outputs, on 400 rows at T = 1."""
    pair = checks.table_pair(batch_size=400)
    config = SpecConfig(gamma=GAMMA, max_new_tokens=12, eos_id=checks.EOS)
    how = sampling.settings(1.0)
    keys = checks.keys(0, 400)
    plain = pair.plain(keys, config, how)
    betas = metrics.overlaps_on_tokens(
        pair.params,
        pair.inputs,
        pair.prompt,
        plain.tokens,
        plain.lengths,
        keys,
        target=pair.target,
        drafter=pair.drafter,
        settings=how,
        config=config,
    )
    return pair, pair.speculate(checks.keys(1, 400), config, how), plain, np.asarray(betas)


def test_overlaps_on_tokens_are_those_of_the_tables(measured):
    pair, _, plain, betas = measured
    p, q = np.asarray(pair.params.target), np.asarray(pair.params.draft)
    for row, sequence in enumerate(fakes.sequences(plain.tokens[:20], plain.lengths[:20])):
        for slot in range(len(sequence)):
            prefix = (fakes.START, *sequence[:slot])
            both = [fakes.softmax(fakes.logits_after(table, prefix)) for table in (p, q)]
            assert betas[row, slot] == pytest.approx(np.minimum(*both).sum(), abs=1e-5)
        assert np.isnan(betas[row, len(sequence) :]).all()


def test_alpha_of_the_loop_and_of_the_counts_agree_within_error(measured):
    summary = metrics.summarize([measured[1]])
    error = np.sqrt(0.25 / summary["num_tested"])
    assert abs(summary["alpha_loop"] - summary["alpha_accepted"]) < 4 * error


def test_summary_adds_up(measured):
    result = measured[1]
    summary = metrics.summarize([result, result])
    counts = summary["accept_counts"]
    assert len(counts) <= GAMMA + 1
    assert sum(counts) == summary["num_target_calls"] == 2 * int(result.num_target_calls.sum())
    assert summary["num_draft_calls"] == GAMMA * summary["num_target_calls"]
    assert summary["num_tested"] <= summary["num_drafted"]
    assert summary["num_tokens"] == 2 * int(result.lengths.sum())


def test_a_run_that_drafted_nothing_has_no_alpha():
    none = SpeculationCounts(
        accept_counts=jnp.array([[0, 0, -1]]),
        num_tested=jnp.array([0]),
        num_drafted=jnp.array([0]),
        num_draft_calls=jnp.array([0]),
        betas=jnp.full((1, 3), jnp.nan),
    )
    blank = jnp.zeros((1, 3))
    result = Decoded(
        blank, jnp.array([2]), jnp.array([2]), blank, blank, blank, jnp.array([2]), none
    )
    summary = metrics.summarize([result])
    assert summary["tokens_per_call"] == 1
    assert np.isnan(summary["alpha_loop"]) and np.isnan(summary["alpha_accepted"])


def test_the_ratio_of_a_log_to_itself_is_exactly_one():
    seconds = np.array([0.3, 0.1, 0.7])
    assert metrics.ratio_interval(seconds, seconds) == (1.0, 1.0, 1.0)


def test_the_interval_holds_the_ratio_and_widens_with_the_spread():
    rng = np.random.default_rng(0)
    plain = np.full(50, 2.0)
    narrow = metrics.ratio_interval(plain, 1 + 0.01 * rng.random(50))
    wide = metrics.ratio_interval(plain, 1 + 0.5 * rng.random(50))
    assert narrow[1] <= narrow[0] <= narrow[2]
    assert wide[2] - wide[1] > narrow[2] - narrow[1]


def test_mean_over_rows_docstring_example():
    rows = [[1.0, 0.0, np.nan], [np.nan, 1.0, 1.0]]
    assert metrics.mean_over_rows(rows) == (0.75, pytest.approx(np.sqrt(0.5) / 4), 4)


def test_mean_over_rows_of_equal_rows_has_no_error_and_of_none_is_nan():
    assert metrics.mean_over_rows([[1.0, 0.0]] * 9) == (0.5, 0.0, 18)
    assert np.isnan(metrics.mean_over_rows([[np.nan]])[0])


def test_autocorrelation_docstring_example_and_its_edges():
    assert metrics.autocorrelation([[1, 0, 1, 0]]) == pytest.approx(-1)
    assert metrics.autocorrelation([[0, 0, 1], [1, 0, np.nan, 3]]) == pytest.approx(-0.5)
    assert np.isnan(metrics.autocorrelation([[1], [0]]))
    assert np.isnan(metrics.autocorrelation([[1, 1, 1]]))


def test_alpha_by_position_docstring_example():
    assert metrics.alpha_by_position([2, 1, 1]) == [2 / 4, 1 / 2]
    assert metrics.alpha_by_position([3]) == []
