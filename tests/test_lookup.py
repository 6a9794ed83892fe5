"""Copying from the context: what is found, what is proposed, and that nothing is lost by it."""

import functools

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import speculative
from specdec.config import SpecConfig
from specdec.drafters import CopyDrafter
from specdec.drafters.lookup import match_lengths
from specdec.sampling import settings
from specdec.types import Context, EncoderInputs

EOS, GAMMA, SIZE = checks.EOS, 3, 12


@functools.cache
def _proposer(longest, shortest):
    drafter = CopyDrafter(16, longest, shortest)
    config = SpecConfig(gamma=GAMMA, eos_id=EOS)

    def propose(source, context, keys):
        state = drafter.init((), source, None, None, cache_length=SIZE)
        return drafter.propose((), state, context, keys, settings=settings(1.0), config=config)[0]

    return jax.jit(propose)


def propose(decoded, source=None, longest=3, shortest=1):
    """Tokens proposed after `decoded`; what lies beyond the lengths is 9, which must not matter."""
    row = lambda ids: jnp.array([[*ids, *[9] * (SIZE - len(ids))]])
    inputs = None if source is None else EncoderInputs(row(source), jnp.array([len(source)]))
    context = Context(row(decoded), jnp.array([len(decoded)]), jnp.array([1]))
    run = _proposer(longest, shortest)
    found = run(inputs, context, checks.keys(0, 1))
    assert found.num_calls.tolist() == [0]
    np.testing.assert_array_equal(found.probs[0].argmax(-1), found.tokens[0])
    np.testing.assert_array_equal(found.probs[0].sum(-1), 1)
    return found.tokens[0, : int(found.num_drafted[0])].tolist()


def test_match_lengths_docstring_example():
    text, suffix = jnp.array([5, 6, 7, 5, 6]), jnp.array([9, 5, 6])
    assert match_lengths(text, jnp.array(5), suffix).tolist() == [0, 2, 0, 0, 0]


@pytest.mark.parametrize(
    "decoded, expected",
    [
        ([0, 5, 6, 7, 8, 10, 11, 7, 8], [10, 11, 7]),  # after the earlier 7 8
        ([0, 2, 3], []),  # no match: a plain step
        ([0], []),  # shorter than any n-gram
        ([0, 5, 5], [5]),  # the end is near: one token follows the earlier 5
        ([0, 4, 5, 6, 3, 5, 7, 4, 5], [6, 3, 5]),  # 4 5 rather than the later, shorter 5
        ([0, 4, 6, 4, 7, 4], [6, 4, 7]),  # of two alike the first
        ([0, 4, EOS, 6, 4], [EOS]),  # nothing is drafted after EOS
    ],
)
def test_what_follows_the_longest_match_in_the_output(decoded, expected):
    assert propose(decoded) == expected


@pytest.mark.parametrize(
    "decoded, source, expected",
    [
        ([0, 5], [4, 5, 6, 7, 8, EOS], [6, 7, 8]),
        ([0, 7, 8], [4, 5, 6, 7, 8, EOS], [EOS]),
        ([0, 3], [4, 5, 6, EOS], []),
        ([0, 5, 2, 5], [4, 5, 6, EOS], [6, EOS]),  # as long in both: the source
        ([0, 3, 5, 2, 3, 5], [4, 5, 6, EOS], [2, 3, 5]),  # longer in the output
        ([0, 4, 9], [4, 5], []),  # 9 stands beyond the source's end only
    ],
)
def test_the_source_is_searched_before_the_output(decoded, source, expected):
    assert propose(decoded, source) == expected


def test_limits_of_the_match():
    assert propose([0, 5, 6, 4, 5], shortest=2) == []
    assert propose([0, 4, 5, 6, 4, 5], shortest=2) == [6, 4, 5]
    # With one token to match, 3 5 is no better than the first 5.
    assert propose([0, 5, 6, 3, 5, 7, 3, 5], longest=1) == [6, 3, 5]
    with pytest.raises(ValueError, match="shortest=3, longest=2"):
        CopyDrafter(16, 2, 3)


def pair(batch_size=1, vocab_size=4):
    params = speculative.PairParams(jnp.asarray(fakes.random_table(0, vocab_size)))
    salts = fakes.TableInputs(jnp.arange(batch_size, dtype=jnp.int32) * 3)
    return checks.Pair(fakes.TableModel(vocab_size), CopyDrafter(vocab_size), params, salts)


def test_greedy_output_is_the_targets():
    assert checks.greedy_differences(pair(3), gammas=(2,)) == []


@pytest.mark.soak
def test_sampled_output_has_the_targets_law():
    assert checks.law_p_value(pair(), gamma=2, num_samples=8000) > 1e-4


def test_a_t5_copies_from_its_source_and_gives_plain_decodings_output():
    t5 = checks.t5_pair()
    params = speculative.PairParams(t5.params.target)
    copying = checks.Pair(t5.target, CopyDrafter(t5.target.vocab_size), params, t5.inputs)
    config = SpecConfig(gamma=GAMMA, max_new_tokens=24, eos_id=EOS)
    keys, how = checks.keys(0, 3), settings(0)
    fast, plain = copying.speculate(keys, config, how), copying.plain(keys, config, how)
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    counts = fast.speculation
    assert (counts.num_draft_calls == 0).all() and counts.num_drafted.sum() > 0
    assert (fast.num_target_calls <= plain.num_target_calls).all()
