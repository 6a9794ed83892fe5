"""Speculative decoding in one compiled loop (Leviathan, Kalman, Matias, arXiv 2211.17192).

Dimensions: B batch, P prompt length, L buffer length, G gamma, V vocabulary, N max_new_tokens.

A round drafts up to gamma tokens, runs the target once over them, lets a rule decide how many
stand, and adds one token of the target's own (Algorithm 1). Rows advance by their own counts:
each has its own position, and all a rejected draft leaves behind is garbage beyond that position,
overwritten by the next round.

The random numbers of a row come from its own key, folded with its own round count, then split by
purpose. Folding by position alone would be exact for Algorithm 1 only: a rule that looks ahead
would draw again a position whose draw already influenced a verdict.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
from jax import lax

from specdec.autoregressive import prefill
from specdec.buffers import last_token, prefix_mask, read_at, write_at
from specdec.config import SpecConfig, buffer_length, checked_num_ids, checked_requests
from specdec.generation import (
    BONUS,
    CORRECTION,
    DRAFT,
    Columns,
    Decoded,
    Generation,
    SpeculationCounts,
    append,
    finish,
    start,
)
from specdec.sampling import Settings, log_probs_of, standardize
from specdec.theory import overlap
from specdec.types import (
    Cache,
    Context,
    Drafter,
    DraftState,
    LanguageModel,
    Params,
    Proposal,
    Rows,
    Verdict,
)
from specdec.verification import verify_greedy, verify_sampling


class PairParams(NamedTuple):
    """Parameters of target and drafter; `()` for a drafter without any."""

    target: Params
    draft: Params = ()


@flax.struct.dataclass
class SpecState:
    """What the next round needs.

    Attributes:
      generation: tokens decided so far.
      target_cache, draft_state: of the two models.
      keys: [B] typed keys, never used themselves, only folded.
      num_rounds: [B] int32, rounds of each row: the target's calls.
      counts: SpeculationCounts, its columns of length N and, for betas, L.
    """

    generation: Generation
    target_cache: Cache
    draft_state: DraftState
    keys: jax.Array
    num_rounds: jax.Array
    counts: SpeculationCounts


class StepInfo(NamedTuple):
    """What an observer of a round may want. For rows that are done, all counts are 0.

    Attributes:
      proposal: [B, G, ...], as clipped to the row's limit.
      target: Rows of [B, G + 1, V].
      n_accepted, num_tested, num_new: [B] int32, after the cut at EOS and limit.
    """

    proposal: Proposal
    target: Rows
    n_accepted: jax.Array
    num_tested: jax.Array
    num_new: jax.Array


def speculative_decode(
    params: PairParams,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    target: LanguageModel,
    drafter: Drafter,
    settings: Settings,
    config: SpecConfig,
    draft_settings: Settings | None = None,
    verify_fn: Callable | None = None,
    prompt_lengths: jax.Array | None = None,
    limits: jax.Array | None = None,
) -> Decoded:
    """Decodes a batch: the target's law, in fewer runs of the target.

    Args:
      params: of target and drafter.
      inputs: whatever the models' `init_cache` takes.
      prompt: [B, P] int32 decoder tokens to go on from; for T5 one start token, 0.
      keys: [B] typed keys, one a row. A row's sample depends on its own key only.
      target, drafter, config: static.
      settings: how the target's logits become p.
      draft_settings: how the draft's become q, default the same. They change alpha, not the law.
      verify_fn: a rule of `verification`, as a `jax.tree_util.Partial` if it has arguments;
        default: exact for the settings' temperature.
      prompt_lengths: [B] int32, default P.
      limits: [B] int32, most new tokens of each row, default (and at most) max_new_tokens.

    Returns:
      Decoded, with `speculation` counts.

    Raises:
      ValueError: at trace time, see `config`.
    """
    return _decode(
        params,
        inputs,
        prompt,
        keys,
        target=target,
        drafter=drafter,
        settings=settings,
        config=config,
        draft_settings=draft_settings or settings,
        verify_fn=as_pytree(verify_fn or default_rule(settings)),
        prompt_lengths=prompt_lengths,
        limits=None if limits is None else jnp.asarray(limits, jnp.int32),
    )


def default_rule(settings: Settings) -> Callable:
    """The exact rule for the settings' temperature."""
    return verify_greedy if settings.temperature is None else verify_sampling


def as_pytree(rule: Callable) -> jax.tree_util.Partial:
    """A rule to be passed into jit: itself static, what is bound to it (lenience) traced.

    A Partial stays as it is: inside another its arguments would be static, too.
    """
    return rule if isinstance(rule, jax.tree_util.Partial) else jax.tree_util.Partial(rule)


@partial(jax.jit, static_argnames=("target", "drafter", "config"))
def _decode(
    params, inputs, prompt, keys, *, target, drafter, config, prompt_lengths, limits, **step_args
) -> Decoded:
    prompt, prompt_lengths, limits = checked_requests(prompt, prompt_lengths, limits, keys, config)
    state = init_state(
        params,
        inputs,
        prompt,
        keys,
        target=target,
        drafter=drafter,
        config=config,
        prompt_lengths=prompt_lengths,
        limits=limits,
    )

    def step(state: SpecState) -> SpecState:
        return speculative_step(
            state, params, target=target, drafter=drafter, config=config, **step_args
        )[0]

    state = lax.while_loop(lambda state: state.generation.running.any(), step, state)
    return finish_speculation(state, config)


def init_state(
    params: PairParams,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    target: LanguageModel,
    drafter: Drafter,
    config: SpecConfig,
    prompt_lengths: jax.Array,
    limits: jax.Array,
) -> SpecState:
    """The state before the first round: both models have seen the prompt [B, P]."""
    checked_num_ids(config, target, drafter)
    requests = dict(prompt_lengths=prompt_lengths, limits=limits)
    state = init_target(
        params.target, inputs, prompt, keys, target=target, config=config, **requests
    )
    size = state.generation.size
    draft_state = drafter.init(params.draft, inputs, prompt, state.target_cache, cache_length=size)
    return state.replace(draft_state=draft_state)


def init_target(
    params: Params,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    target: LanguageModel,
    config: SpecConfig,
    prompt_lengths: jax.Array,
    limits: jax.Array,
) -> SpecState:
    """The state before the first round, without the drafter's part."""
    size = buffer_length(config, prompt.shape[1], slack=config.gamma + 1)
    target_cache = prefill(params, inputs, prompt, model=target, cache_length=size)
    zeros = jnp.zeros_like(limits)
    counts = SpeculationCounts(
        # One slot more than rounds: a row that is done goes on writing -1 behind its last.
        accept_counts=jnp.full((prompt.shape[0], config.max_new_tokens + 1), -1),
        num_tested=zeros,
        num_drafted=zeros,
        num_draft_calls=zeros,
        betas=jnp.full((prompt.shape[0], size), jnp.nan, jnp.float32),
    )
    generation = start(prompt, prompt_lengths, limits, size)
    return SpecState(generation, target_cache, (), keys, zeros, counts)


def speculative_step(
    state: SpecState,
    params: PairParams,
    *,
    target: LanguageModel,
    drafter: Drafter,
    verify_fn: Callable,
    settings: Settings,
    draft_settings: Settings,
    config: SpecConfig,
) -> tuple[SpecState, StepInfo]:
    """One round (Algorithm 1): draft, run the target over the drafts, verify, append.

    Rows that are done are carried along unchanged.
    """
    draft_keys, verify_keys = round_keys(state.keys, state.num_rounds)
    proposal, draft_state = drafter.propose(
        params.draft,
        state.draft_state,
        state.generation.context,
        draft_keys,
        settings=draft_settings,
        config=config,
    )
    judged = dict(target=target, verify_fn=verify_fn, settings=settings, config=config)
    state, info = judge(state, params.target, proposal, verify_keys, **judged)
    return state.replace(draft_state=draft_state), info


def judge(
    state: SpecState,
    params: Params,
    proposal: Proposal,
    keys: jax.Array,
    *,
    target: LanguageModel,
    verify_fn: Callable,
    settings: Settings,
    config: SpecConfig,
) -> tuple[SpecState, StepInfo]:
    """What the target does in a round: it runs over the drafts, and what stands is appended.

    Args:
      state: whose drafter's part stays as it is.
      params: of the target.
      proposal: [B, G, ...].
      keys: [B], of the rule.
      target, verify_fn, settings, config: see `speculative_decode`.
    """
    generation = state.generation
    proposal = _fit(proposal, generation, target.vocab_size)
    rows, target_cache = score(
        params,
        state.target_cache,
        generation.context,
        proposal.tokens,
        target=target,
        settings=settings,
        config=config,
    )
    verdict = jax.vmap(verify_fn)(rows, proposal, keys)
    block = decided_block(rows, proposal, verdict)
    appended, num_new = append(generation, block, verdict.n_accepted + 1, config.eos_id)
    info = StepInfo(
        proposal=proposal,
        target=rows,
        n_accepted=jnp.minimum(verdict.n_accepted, num_new),
        num_tested=jnp.minimum(proposal.num_drafted, num_new),
        num_new=num_new,
    )
    state = state.replace(
        generation=appended,
        target_cache=target_cache,
        num_rounds=state.num_rounds + generation.running,
        counts=count(state, info),
    )
    return state, info


def round_keys(keys: jax.Array, num_rounds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two fresh keys a row, for drafting and for verifying: [B], [B]."""
    purposes = 2 * num_rounds[:, None] + jnp.arange(2)  # never the same number twice
    fresh = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))(keys, purposes)
    return fresh[:, 0], fresh[:, 1]


def _fit(proposal: Proposal, generation: Generation, vocab_size: int) -> Proposal:
    """Clips drafts to the row's room (none for a row that is done), and q to the target's ids.

    Ids that the draft's table lacks get q = 0; rows that the target's lacks are padding.
    """
    room = generation.prompt_lengths + generation.limits - generation.lengths
    room = jnp.where(generation.running, room, 0)
    q = proposal.probs[..., :vocab_size]
    q = jnp.pad(q, [(0, 0), (0, 0), (0, vocab_size - q.shape[-1])])
    return proposal._replace(probs=q, num_drafted=jnp.minimum(proposal.num_drafted, room))


def score(
    params: Params,
    cache: Cache,
    context: Context,
    drafts: jax.Array,
    *,
    target: LanguageModel,
    settings: Settings,
    config: SpecConfig,
) -> tuple[Rows, Cache]:
    """p at all gamma + 1 positions in one run of the target: drafts [B, G] -> Rows [B, G + 1, V].

    The block starts with the last decided token, which the target hasn't seen: row j of the result
    is the law of slot lengths + j, given the drafts before it.
    """
    newest = last_token(context.tokens, context.lengths)[:, None]
    block = jnp.concatenate([newest, drafts], axis=1)
    logits, cache = target.extend(params, cache, block, context.lengths - 1)
    context = context._replace(tokens=write_at(context.tokens, drafts, context.lengths))
    num_ids = checked_num_ids(config, target)
    rows = standardize(logits, settings, context, eos_id=config.eos_id, num_ids=num_ids)
    return rows, cache


def decided_block(rows: Rows, proposal: Proposal, verdict: Verdict) -> Columns:
    """The accepted drafts, then the next token; garbage behind. Columns of [B, G + 1].

    Example: drafts [5, 6, 7], 1 accepted, next token 9 -> tokens [5, 9, ...], origins [DRAFT,
    CORRECTION, ...]. All 3 accepted -> [5, 6, 7, 9], the last of origin BONUS.
    """
    n = verdict.n_accepted[:, None]
    slots = jnp.arange(proposal.tokens.shape[1] + 1)
    drafts = jnp.pad(proposal.tokens, [(0, 0), (0, 1)])
    tokens = jnp.where(slots < n, drafts, verdict.next_token[:, None])
    last_origin = jnp.where(n < proposal.num_drafted[:, None], CORRECTION, BONUS)
    return Columns(
        tokens=tokens,
        origins=jnp.where(slots < n, DRAFT, last_origin).astype(jnp.int8),
        log_probs=log_probs_of(rows.probs, tokens),
        model_log_probs=log_probs_of(rows.model_probs, tokens),
    )


def count(state: SpecState, info: StepInfo) -> SpeculationCounts:
    """The counts after a round; rows that were done before it add nothing."""
    counts, generation = state.counts, state.generation
    gamma = info.proposal.tokens.shape[1]
    n_accepted = jnp.where(generation.running, info.n_accepted, -1)[:, None]
    betas = overlap(info.target.probs[:, :gamma], info.proposal.probs)
    betas = jnp.where(prefix_mask(info.num_tested, gamma), betas, jnp.nan)
    return counts.replace(
        accept_counts=write_at(counts.accept_counts, n_accepted, state.num_rounds),
        num_tested=counts.num_tested + info.num_tested,
        num_drafted=counts.num_drafted + info.proposal.num_drafted,
        num_draft_calls=counts.num_draft_calls
        + jnp.where(generation.running, info.proposal.num_calls, 0),
        betas=write_at(counts.betas, betas, generation.lengths),
    )


def finish_speculation(state: SpecState, config: SpecConfig) -> Decoded:
    """The result of a loop that has ended (or of one that was watched step by step)."""
    size = config.max_new_tokens
    generation, counts = state.generation, state.counts
    is_real = prefix_mask(generation.lengths - generation.prompt_lengths, size)
    betas = read_at(counts.betas, generation.prompt_lengths, size)
    counts = counts.replace(
        accept_counts=counts.accept_counts[:, :size], betas=jnp.where(is_real, betas, jnp.nan)
    )
    return finish(
        generation,
        state.num_rounds,
        max_new_tokens=size,
        pad_id=config.pad_id,
        speculation=counts,
    )
