"""Rounding is told from bugs by the logits of a full uncached pass."""

import checks
import fakes
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import identity, sampling
from specdec.config import SpecConfig

V = 6


@pytest.fixture
def pair():
    return checks.table_pair(V, batch_size=2)


@pytest.fixture
def plain(pair):
    config = SpecConfig(gamma=0, max_new_tokens=5, eos_id=checks.EOS)
    return pair.plain(checks.keys(0, 2), config, sampling.settings(0))


def found(pair, plain, other, table=None, **kwargs):
    params = pair.params.target if table is None else jnp.asarray(table)
    return identity.differences(
        plain, other, params, pair.inputs, pair.prompt, model=pair.target, **kwargs
    )


def test_equal_outputs_have_no_differences(pair, plain):
    assert found(pair, plain, plain) == []


def test_another_token_is_a_bug_where_the_logits_are_apart(pair, plain):
    right = int(plain.tokens[1, 0])
    other = plain.replace(tokens=plain.tokens.at[1, 0].set((right + 1) % V))
    (one,) = found(pair, plain, other)
    logits = fakes.logits_after(np.asarray(pair.params.target), (fakes.START,))
    assert (one.row, one.slot, one.plain, one.other) == (1, 0, right, (right + 1) % V)
    assert one.gap == pytest.approx(logits.max() - logits[one.other], abs=1e-5)
    assert not one.is_tie


def test_another_token_is_a_tie_where_the_logits_all_but_tie(pair, plain):
    right = int(plain.tokens[0, 0])
    twin = (right + 1) % V
    table = np.array(pair.params.target)
    table[:, twin] = table[:, right] - 5e-5
    table[:, [right, twin]] += 20
    other = plain.replace(tokens=plain.tokens.at[0, 0].set(twin))
    (one,) = found(pair, plain, other, table)
    assert one.is_tie and one.gap <= 1e-4
    (one,) = found(pair, plain, other, table, tie=1e-6)
    assert not one.is_tie


def test_an_id_that_does_not_exist_is_a_bug(pair, plain):
    other = plain.replace(tokens=plain.tokens.at[1, 0].set(V + 3))
    (one,) = found(pair, plain, other)
    assert (one.row, one.slot, one.other, one.gap) == (1, 0, V + 3, float("inf"))
    assert not one.is_tie


def test_an_output_that_goes_on_past_the_other_is_a_bug(pair, plain):
    shorter = plain.replace(lengths=plain.lengths - 1)
    assert {one.row for one in found(pair, plain, shorter)} == {0, 1}
    assert not any(one.is_tie for one in found(pair, plain, shorter))
