"""The six checks that together say whether a speculative decoder is right.

Each returns what it measured; each catches faults that the others miss (`test_faults.py` plants
fifteen of them). Everything is reached through its module, so that a planted fault is met.

    1 algebra_error              the law of one token, by algebra
    2 greedy_differences         temperature 0 equals plain decoding, token for token
    3 law_p_value                sampled outputs against the exactly enumerated law
    4 rejections_of_itself       a draft that is the target is always accepted
    5 proposal_error             the proposal's q is the draft's own law in every round
    6 assert_keys_used_once      no random key serves twice
"""

import collections
import dataclasses
import itertools
from typing import Any
from unittest import mock

import fakes
import jax
import jax.numpy as jnp
import numpy as np

from specdec import autoregressive, sampling, speculative, theory, verification
from specdec.config import SpecConfig
from specdec.drafters import ModelDrafter
from specdec.models import T5LanguageModel
from specdec.models.t5 import v1_0
from specdec.types import EncoderInputs, Proposal, Rows

EOS = 1


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target, a drafter and requests for them."""

    target: Any
    drafter: Any
    params: Any
    inputs: Any

    @property
    def prompt(self):
        batch_size = jax.tree.leaves(self.inputs)[0].shape[0]
        return jnp.full((batch_size, 1), fakes.START)

    def rows(self, indices) -> "Pair":
        """The same pair with some of the requests."""
        inputs = jax.tree.map(lambda leaf: leaf[jnp.asarray(indices)], self.inputs)
        return dataclasses.replace(self, inputs=inputs)

    def speculate(self, keys, config, settings, **kwargs):
        return speculative.speculative_decode(
            self.params,
            self.inputs,
            self.prompt,
            keys,
            target=self.target,
            drafter=self.drafter,
            settings=settings,
            config=config,
            **kwargs,
        )

    def plain(self, keys, config, settings, **kwargs):
        return autoregressive.autoregressive_decode(
            self.params.target,
            self.inputs,
            self.prompt,
            keys,
            model=self.target,
            settings=settings,
            config=config,
            **kwargs,
        )


def table_pair(
    vocab_size=4, batch_size=1, *, model=fakes.TableModel, drafter=None, likeness=0.5
) -> Pair:
    """Two tables: a random one, and a blend of it and noise (likeness 1: the same)."""
    p = fakes.random_table(0, vocab_size)
    q = likeness * p + (1 - likeness) * fakes.random_table(1, vocab_size)
    target = model(vocab_size)
    return Pair(
        target,
        drafter or ModelDrafter(target),
        speculative.PairParams(jnp.asarray(p), jnp.asarray(q)),
        fakes.TableInputs(jnp.zeros(batch_size, jnp.int32)),
    )


def t5_pair(*, same=False, batch_size=3, vocab_size=24) -> Pair:
    """Two small random T5s with sources of different lengths; outputs vary, ties are unlikely."""
    shape = dict(vocab_size=vocab_size, d_model=32, d_ff=48, num_heads=4, head_dim=8)
    target = T5LanguageModel(v1_0(**shape, num_encoder_layers=1, num_decoder_layers=2))
    draft = T5LanguageModel(v1_0(**shape, num_encoder_layers=1, num_decoder_layers=1))
    p = jax.tree.map(lambda leaf: 1.8 * leaf, target.init(jax.random.key(0)))
    q = p if same else draft.init(jax.random.key(1))
    if not same:
        # The same embeddings make the small random models agree now and then.
        q = {**q, "token_embedder": p["token_embedder"]}
    rng = np.random.default_rng(0)
    inputs = EncoderInputs(
        jnp.asarray(rng.integers(2, vocab_size, (batch_size, 9))),
        jnp.asarray(2 + np.arange(batch_size) * 3 % 8),
    )
    drafter = ModelDrafter(target if same else draft)
    return Pair(target, drafter, speculative.PairParams(p, q), inputs)


def keys(seed: int, size: int):
    return jax.random.split(jax.random.key(seed), size)


# --- 1 ---------------------------------------------------------------------------------------


def algebra_error(num_cases: int = 200, vocab_size: int = 7) -> float:
    """Largest |q * accept + (1 - beta) * residual - p| over random rows with zeros and one-hots.

    Infinite if a token with p(x) = 0 stands when the uniform number is 0.
    """
    rng = np.random.default_rng(0)

    def rows():
        logits = rng.standard_normal((num_cases, vocab_size)) * rng.uniform(0.1, 5, (num_cases, 1))
        probs = fakes.softmax(logits) * (rng.random((num_cases, vocab_size)) < 0.7)
        probs[: num_cases // 10] = np.eye(vocab_size)[rng.integers(0, vocab_size, num_cases // 10)]
        probs[probs.sum(-1) == 0, 0] = 1.0
        return jnp.asarray(rng.permutation(probs / probs.sum(-1, keepdims=True)), jnp.float32)

    def output_law(p, q):
        tokens = jnp.arange(vocab_size)
        every = lambda row: jnp.broadcast_to(row, (vocab_size, vocab_size))
        accept = verification.acceptance_probs(every(p), every(q), tokens)
        return q * accept + (1 - theory.overlap(p, q)) * verification.residual_probs(p, q)

    p, q = rows(), rows()
    q = q.at[:20].set(p[:20])  # q = p: no rejection, an empty residual
    error = jnp.abs(jax.vmap(output_law)(p, q) - p).max()
    return float("inf") if _accepts_the_impossible() else float(error)


def _accepts_the_impossible() -> bool:
    """Whether a token with p(x) = 0 stands at the boundary u = 0."""
    p = jnp.array([[0.0, 1.0], [0.5, 0.5]])
    proposal = Proposal(jnp.array([0]), jnp.array([[0.5, 0.5]]), jnp.int32(1), jnp.int32(1))
    zeros = lambda key, size: jnp.zeros(size)
    with mock.patch.object(verification, "uniforms", zeros):
        verdict = verification.verify_sampling(Rows(p, p), proposal, jax.random.key(0))
    return int(verdict.n_accepted) > 0


# --- 2 ---------------------------------------------------------------------------------------


def greedy_differences(pair: Pair, *, gammas=(1, 3), max_new_tokens=24) -> list[str]:
    """Where speculative and plain decoding differ at temperature 0.

    Compared: tokens, lengths, stop reasons and model log-probs; and that a row of a ragged batch
    needs as many target calls as it does alone. Limits differ from row to row.
    """
    greedy = sampling.settings(0)
    batch_size = pair.prompt.shape[0]
    limits = jnp.asarray([max_new_tokens - 5 * (b % 3) for b in range(batch_size)])
    seeds = keys(0, batch_size)
    found = []
    for gamma in gammas:
        config = SpecConfig(gamma=gamma, max_new_tokens=max_new_tokens, eos_id=EOS)
        plain = pair.plain(seeds, config, greedy, limits=limits)
        fast = pair.speculate(seeds, config, greedy, limits=limits)
        for name in ("tokens", "lengths", "stop_reasons"):
            if not np.array_equal(getattr(plain, name), getattr(fast, name)):
                found.append(f"gamma={gamma}: {name} differ")
        error = np.abs(plain.model_log_probs - fast.model_log_probs).max()
        if not error < 1e-3:
            found.append(f"gamma={gamma}: log-probs differ by {error}")
        for b in range(batch_size) if gamma == gammas[-1] and batch_size > 1 else ():
            one = pair.rows([b]).speculate(
                seeds[b : b + 1], config, greedy, limits=limits[b : b + 1]
            )
            if int(one.num_target_calls[0]) != int(fast.num_target_calls[b]):
                found.append(f"gamma={gamma}: row {b} needs more target calls in a batch")
    return found


# --- 3 ---------------------------------------------------------------------------------------


def law_p_value(
    pair: Pair,
    *,
    gamma=2,
    num_tokens=3,
    num_samples=20_000,
    seed=0,
    how: dict | None = None,
    decode="speculate",
    **kwargs,
) -> float:
    """p-value of sampled sequences of num_tokens against the enumerated law of the target."""
    how = how or {}
    many = pair.rows([0] * num_samples)
    config = SpecConfig(gamma=gamma, max_new_tokens=num_tokens, eos_id=EOS)
    run = getattr(many, decode)
    result = run(keys(seed, num_samples), config, sampling.settings(**how), **kwargs)
    tokens, lengths = np.asarray(result.tokens), np.asarray(result.lengths)
    counts = collections.Counter(fakes.sequences(tokens, lengths))
    salt = int(pair.inputs.salt[0])
    law = fakes.enumerate_law(
        np.asarray(pair.params.target), num_tokens, eos_id=EOS, salt=salt, **how
    )
    return fakes.chi_square_p_value(counts, law)


# --- 4 ---------------------------------------------------------------------------------------


def rejections_of_itself(pair: Pair, *, gamma=4, max_new_tokens=40, seed=0) -> tuple[int, float]:
    """(rejected drafts, mean accept probability) where draft and target are one model, T = 1."""
    batch_size = pair.prompt.shape[0]
    config = SpecConfig(gamma=gamma, max_new_tokens=max_new_tokens, eos_id=EOS)
    once = pair.speculate(keys(seed, batch_size), config, sampling.settings(1.0))
    accepted = np.asarray(once.speculation.accept_counts)
    rejected = int(once.speculation.num_tested.sum()) - int(accepted[accepted > 0].sum())
    return rejected, float(np.nanmean(once.speculation.betas))


# --- 5 ---------------------------------------------------------------------------------------


def proposal_error(
    pair: Pair, *, gamma=3, num_rounds=6, how: dict | None = None, is_copied=lambda q: False
) -> float:
    """Largest |q - the draft's law by a full uncached pass over the same prefix|, every round.

    Rows of q that `is_copied` holds of are no model's, and are passed over. A stale draft cache
    breaks no output test: it only lowers alpha, and quietly spoils the numbers.
    """
    settings = sampling.settings(**(how or {}))
    batch_size = pair.prompt.shape[0]
    config = SpecConfig(gamma=gamma, max_new_tokens=num_rounds * (gamma + 1) + 1, eos_id=EOS)
    state = speculative.init_state(
        pair.params,
        pair.inputs,
        pair.prompt,
        keys(0, batch_size),
        target=pair.target,
        drafter=pair.drafter,
        config=config,
        prompt_lengths=jnp.ones(batch_size, jnp.int32),
        limits=jnp.full(batch_size, config.max_new_tokens),
    )

    @jax.jit
    def step(state):
        return speculative.speculative_step(
            state,
            pair.params,
            target=pair.target,
            drafter=pair.drafter,
            verify_fn=speculative.default_rule(settings),
            settings=settings,
            draft_settings=settings,
            config=config,
        )

    size = state.generation.columns.tokens.shape[1]
    model = pair.drafter.model

    @jax.jit
    def full_pass(tokens, lengths):
        cache = model.init_cache(pair.params.draft, pair.inputs, size)
        logits, _ = model.extend(pair.params.draft, cache, tokens, jnp.zeros_like(lengths))
        return sampling.adjusted_probs(logits, settings)

    worst = 0.0
    for _ in range(num_rounds):
        before = state.generation
        state, info = step(state)
        tokens, lengths = np.array(before.columns.tokens), np.asarray(before.lengths)
        for b, n in enumerate(lengths):
            tokens[b, n : n + gamma] = info.proposal.tokens[b]
        expected = np.asarray(full_pass(jnp.asarray(tokens), before.lengths))
        for b in np.flatnonzero(before.running):
            for j in range(int(info.proposal.num_drafted[b])):
                if is_copied(info.proposal.probs[b, j]):
                    continue
                error = info.proposal.probs[b, j] - expected[b, lengths[b] - 1 + j]
                worst = max(worst, float(np.abs(error).max()))
    return worst


# --- 6 ---------------------------------------------------------------------------------------


def assert_keys_used_once(pair: Pair) -> None:
    """Decodes both ways under JAX's own key-reuse checker, which raises at a second use."""
    config = SpecConfig(gamma=2, max_new_tokens=3, eos_id=EOS)
    with jax.debug_key_reuse(True):
        for decode, seed in itertools.product((pair.speculate, pair.plain), (0, 1)):
            decode(keys(seed, pair.prompt.shape[0]), config, sampling.settings(1.0))
