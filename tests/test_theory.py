"""Formulas against values worked by hand, the paper's Table 1 and the ends of its Figure 3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import theory


def test_expected_tokens_by_hand():
    assert theory.expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert theory.expected_tokens(0.0, 4) == 1
    assert theory.expected_tokens(1.0, 4) == 5


@pytest.mark.parametrize(
    "alpha, gamma, operations, speed",
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_every_cell_of_table_1(alpha, gamma, operations, speed):
    assert round(float(theory.walltime_factor(alpha, gamma, 0.0)), 2) == speed
    assert round(float(theory.operations_factor(alpha, gamma, 0.0)), 2) == operations
    assert theory.memory_factor(alpha, gamma) == pytest.approx(speed, abs=5e-3)


def test_walltime_factor_with_costs():
    # Table 4's first row: alpha .75, gamma 7, c .02 -> 3.16
    assert theory.walltime_factor(0.75, 7, 0.02) == pytest.approx(3.16, abs=5e-3)
    assert theory.walltime_factor(0.5, 1, 0.5, r=1.5) == pytest.approx(1.5 / 2.0)


def test_arrays_broadcast():
    table = theory.walltime_factor(np.array([[0.5], [0.9], [1.0]]), np.array([1, 3]), 0.1)
    assert table.shape == (3, 2) and np.isfinite(table).all()


def test_expected_calls_docstring_example_and_its_neighbours():
    assert theory.expected_calls([1, 0, 1], 2) == 2
    assert theory.expected_calls([np.nan, 0, 0], 4) == 3
    assert theory.expected_calls([1] * 7, 2) == 3  # 3 + 3 + 1 tokens
    assert theory.expected_calls([0.5, 0], 1) == 0.5 * 1 + 0.5 * 2
    assert theory.expected_calls([], 3) == 0


def test_expected_calls_of_a_long_even_output_are_equation_1s():
    calls = theory.expected_calls([0.7] * 4000, 4)
    assert 4000 / calls == pytest.approx(theory.expected_tokens(0.7, 4), rel=1e-3)


def test_capped_geometric_docstring_example_and_its_mean():
    np.testing.assert_allclose(theory.capped_geometric(0.5, 2), [0.5, 0.25, 0.25])
    shares = theory.capped_geometric(0.8, 5)
    assert shares.sum() == pytest.approx(1)
    mean = 1 + np.dot(shares, np.arange(6))
    assert mean == pytest.approx(theory.expected_tokens(0.8, 5))


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.1])
def test_a_lenient_law_is_a_law_and_nowhere_above_its_bound(lenience):
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6) / 3, (2, 200))
    p[:50, 0], q[50:100, 1] = 0, 0
    p, q = (law / law.sum(-1, keepdims=True) for law in (p, q))
    law = theory.lenient_law(p, q, lenience)
    np.testing.assert_allclose(law.sum(-1), 1)
    assert (law >= 0).all() and (law <= p / lenience + 1e-12).all()
    shift = theory.lenience_shift(p, q, lenience)
    if lenience == 1:
        np.testing.assert_allclose(law, p, atol=1e-12)
    else:
        assert shift.max() > 0.01 and (shift <= 1 / lenience - 1).all()


def test_operations_factor_counts_what_is_thrown_away():
    assert theory.operations_factor(1.0, 3, 0.0) == 1.0
    assert theory.operations_factor(0.0, 3, 0.0) == 4.0
    # (1 - a) (gamma c + gamma + 1) / (1 - a^(gamma + 1)), as the paper writes it.
    a, gamma, c_hat = 0.8, 5, 0.05
    written = (1 - a) * (gamma * c_hat + gamma + 1) / (1 - a ** (gamma + 1))
    assert theory.operations_factor(a, gamma, c_hat) == pytest.approx(written)


P, Q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.2, 0.5, 0.1])


def test_two_laws_by_hand():
    assert theory.overlap(P, Q) == pytest.approx(0.2 + 0.2 + 0.2)
    assert theory.d_lk(P, Q) == pytest.approx(0.4)
    assert theory.d_lk(P, Q) == theory.d_lk(Q, P)
    assert theory.overlap(P, P) == 1 and theory.d_lk(P, P) == 0
    # M = .5 / .2
    assert theory.rejection_acceptance(P, Q) == pytest.approx(0.4)
    assert theory.rejection_acceptance(Q, P) == 0  # where P is 0, M is infinite
    assert theory.rejection_acceptance(P, P) == 1


def test_lenience_by_hand():
    # min(p / l, q): .2, .2, .4, 0
    assert theory.overlap(P, Q, 0.5) == pytest.approx(0.8)
    assert theory.overlap(P, Q, 1e-6) == pytest.approx(0.9)  # all but q's mass where p is 0


def test_overlap_and_distance_add_up_and_bound_rejection_sampling():
    laws = np.random.default_rng(0).dirichlet(np.full(7, 0.3), (2, 200))
    assert np.allclose(theory.overlap(*laws) + theory.d_lk(*laws), 1)  # Lemma 3.3
    assert (theory.rejection_acceptance(*laws) <= theory.overlap(*laws) + 1e-12).all()


@pytest.mark.parametrize(
    "c, at_a_half, at_nine_tenths", [(0.01, 5, 24), (0.02, 4, 19), (0.05, 3, 13), (0.1, 2, 10)]
)
def test_optimal_gamma_ends_where_figure_3_does(c, at_a_half, at_nine_tenths):
    assert theory.optimal_gamma(np.array([0.5, 0.9]), c).tolist() == [at_a_half, at_nine_tenths]


def test_optimal_gamma_is_0_exactly_where_nothing_improves():
    alpha, c = np.meshgrid(np.linspace(0, 0.99, 34), np.linspace(0.005, 0.5, 23))
    np.testing.assert_array_equal(
        theory.optimal_gamma(alpha, c) > 0, theory.is_improvable(alpha, c)
    )
    best = theory.walltime_factor(alpha, theory.optimal_gamma(alpha, c), c)
    improved = theory.is_improvable(alpha, c)
    assert (best >= theory.least_improvement(alpha, c) - 1e-12)[improved].all()
    assert theory.least_improvement(0.6, 0.1) == pytest.approx(theory.walltime_factor(0.6, 1, 0.1))


def test_a_costly_verification_lowers_the_optimum_and_no_cost_of_drafts_has_none():
    assert theory.optimal_gamma(0.7, 0.05, r=3.0) == 0
    assert theory.optimal_gamma(0.7, 0.0, max_gamma=17) == 17


def test_oracle_by_hand():
    # alpha .5: two tokens a round, one draft in the mean.
    assert theory.oracle_factor(0.5, 0.1) == pytest.approx(2 / 1.1)
    alpha = np.linspace(0.5, 0.9, 9)
    best = theory.walltime_factor(alpha, theory.optimal_gamma(alpha, 0.05), 0.05)
    gain = theory.oracle_factor(alpha, 0.05) / best
    assert (gain > 1).all() and gain.max() == pytest.approx(1.48, abs=5e-3)


def test_oracle_is_a_simulated_loop_that_stops_at_the_first_rejection():
    rng = np.random.default_rng(0)
    drafts = rng.geometric(1 - 0.7, 200_000) - 1
    simulated = (drafts + 1).sum() / (1 + 0.1 * drafts).sum()
    assert theory.oracle_factor(0.7, 0.1) == pytest.approx(simulated, rel=5e-3)


@pytest.mark.parametrize(
    "function, values",
    [
        (theory.expected_tokens, (0.8, 5)),
        (theory.walltime_factor, (0.8, 5, 0.02, 1.2)),
        (theory.operations_factor, (0.8, 5, 0.02)),
        (theory.memory_factor, (0.8, 5)),
        (theory.least_improvement, (0.8, 0.02)),
        (theory.optimal_gamma, (0.8, 0.02)),
        (theory.oracle_factor, (0.8, 0.02)),
        (theory.overlap, (P, Q)),
        (theory.d_lk, (P, Q)),
        (theory.rejection_acceptance, (P, Q)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_jax_arrays_give_jax_arrays_under_jit(function, values):
    expected = function(*map(np.asarray, values))
    found = jax.jit(function)(*map(jnp.asarray, values))
    assert isinstance(found, jax.Array) and isinstance(expected, np.ndarray | np.generic)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
