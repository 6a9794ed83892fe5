"""Non-autoregressive drafts: one run a round, a product law, and nothing lost by it."""

import collections
import itertools

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.update import _mean_of_predictions
from specdec import speculative
from specdec.buffers import write_at
from specdec.config import SpecConfig
from specdec.drafters import HeadsDrafter
from specdec.models import GPTConfig, GPTLanguageModel
from specdec.models.gpt import GPT
from specdec.sampling import settings
from specdec.types import Context

SHAPE = dict(vocab_size=16, d_ff=24, num_heads=2, head_dim=8, num_layers=1)
TARGET = GPTLanguageModel(GPTConfig(**SHAPE, d_model=16))
DRAFT = GPTLanguageModel(GPTConfig(**SHAPE, d_model=16, num_ahead=3))
EOS = checks.EOS


def pair(batch_size=3):
    p = jax.tree.map(lambda leaf: 1.5 * leaf, TARGET.init(jax.random.key(0)))
    q = DRAFT.init(jax.random.key(1))
    # The target's own next token, and noise beyond.
    q = {**p, "decoder": {**q["decoder"], **p["decoder"]}}
    params = speculative.PairParams(p, q)
    return checks.Pair(TARGET, HeadsDrafter(DRAFT), params, jnp.arange(batch_size))


def test_the_first_row_is_a_language_models_and_later_ones_see_no_more():
    params = DRAFT.init(jax.random.key(1))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 16, (2, 7)))
    apply = lambda method, *args: GPT(DRAFT.config).apply({"params": params}, *args, method=method)
    rows = apply(GPT.full_pass_ahead, tokens)
    assert rows.shape == (2, 3, 7, 16)
    np.testing.assert_allclose(rows[:, 0], apply(GPT.__call__, tokens), atol=1e-6)
    changed = apply(GPT.full_pass_ahead, tokens.at[:, 5].set(3))
    np.testing.assert_allclose(rows[:, :, :5], changed[:, :, :5], atol=1e-6)
    assert not np.allclose(rows[:, 1], rows[:, 0])


def test_q_is_the_law_of_an_uncached_pass_in_every_round():
    one, config = pair(), SpecConfig(gamma=3, max_new_tokens=24, eos_id=EOS)
    how = settings(0.8)
    state = speculative.init_state(
        one.params,
        one.inputs,
        one.prompt,
        checks.keys(0, 3),
        target=one.target,
        drafter=one.drafter,
        config=config,
        prompt_lengths=jnp.ones(3, jnp.int32),
        limits=jnp.full(3, 24),
    )
    step = jax.jit(
        lambda state: speculative.speculative_step(
            state,
            one.params,
            target=one.target,
            drafter=one.drafter,
            verify_fn=speculative.default_rule(how),
            settings=how,
            draft_settings=how,
            config=config,
        )
    )
    full = jax.jit(
        lambda tokens: GPT(DRAFT.config).apply(
            {"params": one.params.draft}, tokens, method=GPT.full_pass_ahead
        )
    )
    num_accepted = set()
    for _ in range(8):
        context = state.generation.context
        running = np.asarray(state.generation.running)
        state, info = step(state)
        num_accepted |= set(np.asarray(info.n_accepted)[running].tolist())
        logits = full(context.tokens)
        for row in np.flatnonzero(running):
            expected = jax.nn.softmax(logits[row, :, int(context.lengths[row]) - 1] / 0.8)
            np.testing.assert_allclose(info.proposal.probs[row], expected, atol=1e-5)
    assert len(num_accepted) > 1  # rounds of several lengths were caught up with


def test_greedy_output_is_the_targets_with_one_draft_run_a_round():
    one, config = pair(), SpecConfig(gamma=2, max_new_tokens=20, eos_id=EOS)
    fast = one.speculate(checks.keys(0, 3), config, settings(0))
    plain = one.plain(checks.keys(0, 3), config, settings(0))
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    np.testing.assert_array_equal(fast.speculation.num_draft_calls, fast.num_target_calls)
    assert (fast.num_target_calls < plain.num_target_calls).any()


def test_more_tokens_than_heads_are_refused():
    one, config = pair(), SpecConfig(gamma=4, max_new_tokens=8, eos_id=EOS)
    with pytest.raises(ValueError, match="gamma=4: this draft predicts 3 tokens ahead"):
        one.speculate(checks.keys(0, 3), config, settings(0))
    with pytest.raises(ValueError, match="num_ahead=0"):
        GPTConfig(num_ahead=0)


def test_drafts_are_independent_draws_of_their_rows():
    drafter, params, size = HeadsDrafter(DRAFT), pair().params.draft, 6000
    state = drafter.init(params, jnp.zeros(1), jnp.zeros((1, 1), jnp.int32), None, cache_length=8)
    tokens = write_at(jnp.zeros((1, 8), jnp.int32), jnp.array([[0, 5]]), jnp.array([0]))
    context = Context(tokens, jnp.array([2]), jnp.array([1]))
    config = SpecConfig(gamma=2, eos_id=EOS)

    @jax.jit
    def propose(key):
        found, _ = drafter.propose(
            params, state, context, key[None], settings=settings(1.0), config=config
        )
        return found.tokens[0], found.probs[0]

    drawn, probs = jax.vmap(propose)(checks.keys(3, size))
    first, second = np.asarray(probs[0], np.float64)
    law = {
        pair: first[pair[0]] * second[pair[1]] for pair in itertools.product(range(16), repeat=2)
    }
    counts = collections.Counter(map(tuple, np.asarray(drawn).tolist()))
    assert fakes.chi_square_p_value(counts, law) > 1e-4


def test_mean_of_predictions_docstring_example():
    values = jnp.array([[[1.0, 2.0, 3.0]], [[jnp.nan, 4.0, 5.0]]])
    np.testing.assert_array_equal(_mean_of_predictions(values), [[1.0, 3.0, 4.0]])
