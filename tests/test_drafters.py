"""Drafters: what they propose is what they say they drew from, and what it cost."""

import functools
from typing import NamedTuple

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.config import SpecConfig
from specdec.drafters import ModelDrafter, RandomDrafter, SharedEncoderDrafter
from specdec.drafters.model import empty_proposal, up_to_eos
from specdec.sampling import settings
from specdec.types import Context

EOS = checks.EOS


def context(tokens, lengths):
    lengths = jnp.asarray(lengths, jnp.int32)
    return Context(jnp.asarray(tokens, jnp.int32), lengths, jnp.ones_like(lengths))


def propose(drafter, where, gamma, *, params=(), state=(), seed=0, how=None, **config):
    config = SpecConfig(gamma=gamma, eos_id=EOS, **config)
    run = jax.jit(functools.partial(drafter.propose, config=config))
    keys = checks.keys(seed, where.lengths.shape[0])
    return run(params, state, where, keys, settings=settings(**(how or {})))[0]


def test_up_to_eos_docstring_example():
    assert up_to_eos(jnp.array([[5, 1, 7], [5, 6, 7]]), 1).tolist() == [2, 3]


def test_up_to_eos_counts_the_first_eos():
    assert up_to_eos(jnp.array([[1, 1, 1], [5, 1, 1], [5, 6, 1]]), 1).tolist() == [1, 2, 3]


def test_gamma_0_proposes_nothing():
    where = context(np.zeros((2, 4)), [1, 2])
    for proposal in (
        empty_proposal(where, 7),
        propose(RandomDrafter(7), where, 0),
        propose(ModelDrafter(fakes.TableModel(7)), where, 0),
    ):
        assert proposal.tokens.shape == (2, 0)
        assert proposal.probs.shape == (2, 0, 7)
        assert proposal.num_drafted.tolist() == proposal.num_calls.tolist() == [0, 0]


# --- random ----------------------------------------------------------------------------------


@functools.cache
def random_proposal():
    """4000 rows of 3 tokens over 6 real ids of 8."""
    where = context(np.zeros((4000, 8)), np.ones(4000))
    return jax.tree.map(np.asarray, propose(RandomDrafter(8), where, 3, num_ids=6))


def test_random_drafts_are_uniform_over_the_ids_that_exist():
    proposal = random_proposal()
    for slot in range(3):
        ids = proposal.tokens[:, slot]
        counts = {(i,): int((ids == i).sum()) for i in np.unique(ids)}
        assert fakes.chi_square_p_value(counts, {(i,): 1 / 6 for i in range(6)}) > 1e-4
    np.testing.assert_allclose(proposal.probs[..., :6], 1 / 6)
    np.testing.assert_array_equal(proposal.probs[..., 6:], 0)


def test_random_drafts_of_a_round_are_independent():
    tokens = random_proposal().tokens
    counts = {}
    for first, second in tokens[:, :2].tolist():
        counts[first, second] = counts.get((first, second), 0) + 1
    law = {(i, j): 1 / 36 for i in range(6) for j in range(6)}
    assert fakes.chi_square_p_value(counts, law) > 1e-4


def test_random_drafts_run_no_model_and_end_at_eos():
    proposal = random_proposal()
    assert (proposal.num_calls == 0).all()
    expected = [[*row, EOS].index(EOS) + 1 for row in proposal.tokens.tolist()]
    np.testing.assert_array_equal(proposal.num_drafted, np.minimum(expected, 3))


# --- a model ---------------------------------------------------------------------------------


class Drafted(NamedTuple):
    """A proposal of a table model of 4 ids after given contexts, and the table."""

    proposal: object
    table: np.ndarray
    contexts: np.ndarray
    lengths: np.ndarray


GAMMA = 3


@functools.cache
def drafted():
    """The target knows 6 ids; the draft's table has 4, and is fed 2 for what it lacks."""
    table = fakes.random_table(3, 4, scale=1.0)
    contexts = np.array([[0, 5, 3, 4, 3, 9, 9, 9, 9], [0, 9, 9, 9, 9, 9, 9, 9, 9]] * 20)
    lengths = np.array([5, 1] * 20)
    model = fakes.TableModel(4)
    drafter = ModelDrafter(model, unknown_id=2)
    inputs = fakes.TableInputs(jnp.zeros(len(contexts), jnp.int32))
    cache = drafter.init(
        jnp.asarray(table), inputs, jnp.asarray(contexts[:, :3]), None, cache_length=9
    )
    proposal = propose(
        drafter, context(contexts, lengths), GAMMA, params=jnp.asarray(table), state=cache
    )
    return Drafted(jax.tree.map(np.asarray, proposal), table, contexts, lengths)


def test_ids_that_the_draft_lacks_are_fed_as_the_unknown_id():
    """Prompt and decided tokens both; q is the table's law after the known prefix."""
    d = drafted()
    for row, (ids, n) in enumerate(zip(d.contexts, d.lengths, strict=True)):
        known = [int(i) if i < 4 else 2 for i in ids[:n]]
        for j in range(GAMMA):
            expected = fakes.softmax(fakes.logits_after(d.table, tuple(known)))
            np.testing.assert_allclose(d.proposal.probs[row, j], expected, atol=1e-6)
            known.append(int(d.proposal.tokens[row, j]))


def test_a_model_draft_costs_one_run_a_token_and_ends_at_its_own_eos():
    proposal = drafted().proposal
    assert (proposal.num_calls == GAMMA).all()
    expected = [[*row, EOS].index(EOS) + 1 for row in proposal.tokens.tolist()]
    np.testing.assert_array_equal(proposal.num_drafted, np.minimum(expected, GAMMA))
    assert set(expected) == {1, 2, 3, 4}


def test_rows_of_a_round_draw_with_keys_of_their_own():
    tokens = drafted().proposal.tokens
    assert len(np.unique(tokens[::2], axis=0)) > 5


# --- a decoder on the target's encoder -------------------------------------------------------


class NoEncoder(fakes.TableModel):
    """A draft that would be wrong if it looked at the source itself."""

    def init_cache(self, params, inputs, cache_length):
        return super().init_cache(params, fakes.TableInputs(inputs.salt + 17), cache_length)

    def share_encoder(self, params, cache, cache_length):
        return fakes.TableModel.init_cache(
            self, params, fakes.TableInputs(cache.salt), cache_length
        )


def shared_pair(batch_size, drafter):
    pair = checks.table_pair(4, batch_size, drafter=drafter)
    salts = jnp.arange(batch_size, dtype=jnp.int32) * 3
    return checks.Pair(pair.target, drafter, pair.params, fakes.TableInputs(salts))


def test_a_shared_encoder_draft_proposes_its_own_law():
    """The source comes from the target's cache, row by row, in every round."""
    pair = shared_pair(3, SharedEncoderDrafter(fakes.TableModel(4)))
    assert checks.proposal_error(pair) < 1e-5


def test_a_shared_encoder_draft_leaves_the_greedy_output():
    pair = shared_pair(1, SharedEncoderDrafter(fakes.TableModel(4)))
    assert checks.greedy_differences(pair, gammas=(2,)) == []


@pytest.mark.parametrize(
    "drafter, salts", [(SharedEncoderDrafter, [0, 3]), (ModelDrafter, [17, 20])]
)
def test_only_a_shared_encoder_draft_reads_the_targets_cache(drafter, salts):
    inputs = fakes.TableInputs(jnp.array([0, 3]))
    params = jnp.zeros((5, 4))
    target_cache = fakes.TableModel(4).init_cache(params, inputs, 8)
    prompt = jnp.zeros((2, 1), jnp.int32)
    state = drafter(NoEncoder(4)).init(params, inputs, prompt, target_cache, cache_length=8)
    assert state.salt.tolist() == salts
