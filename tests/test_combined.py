"""Copying and a model together: who drafts when, and that nothing is lost by it."""

import checks
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.config import SpecConfig
from specdec.drafters import CopyDrafter, CopyOrModelDrafter
from specdec.sampling import settings
from specdec.types import Context

EOS = checks.EOS


def combined(pair: checks.Pair, longest=3, shortest=1) -> checks.Pair:
    copy = CopyDrafter(pair.target.vocab_size, longest, shortest)
    drafter = CopyOrModelDrafter(copy, pair.drafter)
    return checks.Pair(pair.target, drafter, pair.params, pair.inputs)


def is_one_hot(q) -> bool:
    return bool(q.max() == 1)


def test_greedy_output_is_the_targets():
    assert checks.greedy_differences(combined(checks.table_pair(batch_size=3)), gammas=(2,)) == []


def test_greedy_output_of_a_t5_is_the_targets_and_both_draft():
    pair = combined(checks.t5_pair(), shortest=2)
    config, keys = SpecConfig(gamma=3, max_new_tokens=24, eos_id=EOS), checks.keys(0, 3)
    fast, plain = pair.speculate(keys, config, settings(0)), pair.plain(keys, config, settings(0))
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    calls, rounds = fast.speculation.num_draft_calls, fast.num_target_calls
    # One call a copied round, three a drafted one.
    assert (calls > rounds).any() and (calls < 3 * rounds).any()


def test_the_model_goes_on_with_its_own_law_after_rounds_that_were_copied():
    pair = combined(checks.t5_pair(), shortest=2)
    how = dict(temperature=1.0)
    assert checks.proposal_error(pair, how=how, is_copied=is_one_hot) < 1e-5


def test_it_copies_where_the_context_matches_and_only_there():
    pair, start = combined(checks.table_pair(vocab_size=8)), jnp.zeros((1, 1), jnp.int32)
    state = pair.drafter.init(pair.params.draft, pair.inputs, start, None, cache_length=12)

    def propose(*ids):
        tokens = jnp.array([[*ids, *[7] * (12 - len(ids))]])
        context = Context(tokens, jnp.array([len(ids)]), jnp.array([1]))
        how = dict(settings=settings(1.0), config=SpecConfig(gamma=2, eos_id=EOS))
        keys = checks.keys(0, 1)
        return pair.drafter.propose(pair.params.draft, state, context, keys, **how)[0]

    copied, drafted = propose(0, 5, 6, 2, 5), propose(0, 5, 6, 2, 3)
    assert copied.tokens.tolist() == [[6, 2]] and copied.num_calls.tolist() == [1]
    assert is_one_hot(copied.probs[0, 0]) and not is_one_hot(drafted.probs[0, 0])
    assert drafted.num_calls.tolist() == [2]


@pytest.mark.soak
def test_sampled_output_has_the_targets_law():
    assert checks.law_p_value(combined(checks.table_pair()), gamma=2, num_samples=8000) > 1e-4
