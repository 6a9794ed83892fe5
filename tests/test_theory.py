"""Formulas against values worked by hand and the paper's Table 1."""

import numpy as np
import pytest

from specdec import theory


def test_expected_tokens_by_hand():
    assert theory.expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert theory.expected_tokens(0.0, 4) == 1
    assert theory.expected_tokens(1.0, 4) == 5


@pytest.mark.parametrize(
    "alpha, gamma, speed",
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_walltime_factor_equals_table_1(alpha, gamma, speed):
    assert round(float(theory.walltime_factor(alpha, gamma, 0.0)), 2) == speed


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


def test_operations_factor_counts_what_is_thrown_away():
    assert theory.operations_factor(1.0, 3, 0.0) == 1.0
    assert theory.operations_factor(0.0, 3, 0.0) == 4.0
    # (1 - a) (gamma c + gamma + 1) / (1 - a^(gamma + 1)), as the paper writes it.
    a, gamma, c_hat = 0.8, 5, 0.05
    written = (1 - a) * (gamma * c_hat + gamma + 1) / (1 - a ** (gamma + 1))
    assert theory.operations_factor(a, gamma, c_hat) == pytest.approx(written)
