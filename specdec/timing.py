"""Times that can be trusted: warmed up, blocked until ready, interleaved.

c, the cost of a draft run, and r, the cost of verifying gamma + 1 tokens, both in runs of the
target over one token, are measured apart from the decoding they are to predict, each as a chain of
steps inside one compiled program. The chains are made of the loops' own parts, sampling and rule
included, so that a round of the speculative loop costs gamma c + r. A chain goes on from the prompt
again where its texts end, so it can be longer than they are, on caches of the run's own size.

Drafts are timed between runs of the target: in a chain of their own a small draft's weights would
stay in the processor's cache, from which, in the loop, every run of the target drives them out.

Dimensions: B batch, P prompt length, G gamma.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specdec.autoregressive import init_state, plain_step, prefill
from specdec.buffers import last_token, write_at
from specdec.config import SpecConfig, buffer_length, checked_num_ids
from specdec.generation import start
from specdec.sampling import Settings, log_probs_of, sample_rows, standardize, uniforms
from specdec.speculative import default_rule, score, speculative_step
from specdec.speculative import init_state as init_speculation
from specdec.types import Context, Drafter, LanguageModel, Proposal

SECONDS = 0.2  # of a chain of target runs
_LEAST_LINKS = 96


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the function's result is ready, and the result."""
    began = time.perf_counter()
    result = jax.block_until_ready(function())
    return time.perf_counter() - began, result


def interleaved(
    functions: Mapping[Hashable, Callable[[], Any]], repeats: int
) -> dict[Hashable, list[float]]:
    """Seconds of each function in `repeats` rounds A B C, A B C ..., after one call each apart.

    So a machine that slows down slows all of them, and compiling is in none of the times.
    """
    for function in functions.values():
        timed(function)
    times: dict[Hashable, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(timed(function)[0])
    return times


def seconds_per_link(
    chains: Mapping[Hashable, Callable[..., Any]], num_steps: int, repeats: int
) -> dict[Hashable, np.ndarray]:
    """Seconds of a link of each chain, [repeats]; those of a repeat were taken one after the other.

    What a call costs beside its links (its start, an encoder) is in a chain of `num_steps` as in
    one of an eighth: their difference is links only. The short one is short because the noise of
    both counts.

    Args:
      chains: called with num_steps=N, a traced number, so that both lengths are one program.
      num_steps: links of the longer chain, from 2.
      repeats: of the interleaved measurement.
    """
    lengths = (max(1, num_steps // 8), num_steps)
    run = {
        (name, length): partial(chain, num_steps=length)
        for name, chain in chains.items()
        for length in lengths
    }
    times = interleaved(run, repeats)
    short, long = ({name: np.array(times[name, length]) for name in chains} for length in lengths)
    return {name: (long[name] - short[name]) / (lengths[1] - lengths[0]) for name in chains}


def step_costs(
    params: Any,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    target: LanguageModel,
    drafter: Drafter,
    settings: Settings,
    config: SpecConfig,
    draft_settings: Settings | None = None,
    seconds: float | None = None,
    repeats: int = 7,
) -> dict[str, float]:
    """Seconds of a target run, and c and r in units of it.

    Args:
      params: PairParams; inputs, prompt, keys, target, drafter, settings, config as for decoding.
      seconds: that a chain of target runs is to last, about, None = SECONDS; the others have as
        many links.
      repeats: of the interleaved measurement; medians are taken, of c and r those of ratios
        within a repeat, for a machine's pace changes.

    Returns:
      target_seconds: one target run over one token, with sampling; c: a run of the draft; r: a run
      of the target over gamma + 1 tokens, with the verdict.
    """
    found = _costs_of_parts(
        params,
        inputs,
        prompt,
        keys,
        target=target,
        drafter=drafter,
        settings=settings,
        draft_settings=draft_settings,
        config=config,
        seconds=seconds,
        repeats=repeats,
    )
    return {
        "target_seconds": float(np.median(found["target"])),
        "c": float(np.median(found["drafts"] / max(config.gamma, 1) / found["target"])),
        "r": float(np.median(found["verify"] / found["target"])),
    }


def verify_costs(
    params: Any,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    gammas: Sequence[int],
    target: LanguageModel,
    settings: Settings,
    config: SpecConfig,
    seconds: float | None = None,
    repeats: int = 7,
) -> dict[int, float]:
    """r for several gammas, all measured in turn. Args as for `step_costs`."""
    static = dict(target=target, settings=settings)
    request = (params.target, inputs, prompt, keys)
    calls: dict[Hashable, Callable[..., Any]] = {
        gamma: partial(
            _verify_chain, *request, config=dataclasses.replace(config, gamma=gamma), **static
        )
        for gamma in gammas
    }
    calls["target"] = partial(_target_chain, *request, config=config, **static)
    found = seconds_per_link(calls, links_for(seconds, calls["target"]), repeats)
    return {gamma: float(np.median(found[gamma] / found["target"])) for gamma in gammas}


def draft_costs(
    params: Any,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    gammas: Sequence[int],
    target: LanguageModel,
    drafter: Drafter,
    settings: Settings,
    config: SpecConfig,
    seconds: float | None = None,
    repeats: int = 7,
) -> dict[int, float]:
    """gamma c, the cost of all drafts of a round, for several gammas, all measured in turn.

    Args as for `step_costs`.
    """
    static = dict(target=target, settings=settings)
    request = (inputs, prompt, keys)
    calls: dict[Hashable, Callable[..., Any]] = {
        gamma: partial(
            _draft_chain,
            params,
            *request,
            drafter=drafter,
            draft_settings=settings,
            config=dataclasses.replace(config, gamma=gamma),
            **static,
        )
        for gamma in (0, *gammas)
    }
    calls["target"] = partial(_target_chain, params.target, *request, config=config, **static)
    found = seconds_per_link(calls, links_for(seconds, calls["target"]), repeats)
    return {
        gamma: float(np.median((found[gamma] - found[0]) / found["target"])) for gamma in gammas
    }


def round_costs(
    params: Any,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    target: LanguageModel,
    drafter: Drafter,
    settings: Settings,
    config: SpecConfig,
    draft_settings: Settings | None = None,
    seconds: float | None = None,
    repeats: int = 7,
) -> dict[str, np.ndarray]:
    """Where the time of a round of the speculative loop goes.

    Args: as for `step_costs`.

    Returns:
      Seconds [repeats] of: "target", a plain step; "drafts", all gamma runs of the draft; "verify",
      the target's run over gamma + 1 tokens and the verdict; "round", the whole of it. What the
      round has beyond drafts and verify is the loop's own.
    """
    return _costs_of_parts(
        params,
        inputs,
        prompt,
        keys,
        target=target,
        drafter=drafter,
        settings=settings,
        draft_settings=draft_settings,
        config=config,
        seconds=seconds,
        repeats=repeats,
        is_round_timed=True,
    )


def _costs_of_parts(
    params,
    *request,
    target: LanguageModel,
    drafter: Drafter,
    settings: Settings,
    draft_settings: Settings | None,
    config: SpecConfig,
    seconds: float | None,
    repeats: int,
    is_round_timed: bool = False,
) -> dict[str, np.ndarray]:
    """Seconds [repeats] of "target", "verify", "drafts" and, if it is timed, "round"."""
    of_target = dict(target=target, settings=settings)
    of_both = dict(of_target, drafter=drafter, draft_settings=draft_settings or settings)
    without_drafts = dataclasses.replace(config, gamma=0)
    calls: dict[Hashable, Callable[..., Any]] = {
        "target": partial(_target_chain, params.target, *request, config=config, **of_target),
        "verify": partial(_verify_chain, params.target, *request, config=config, **of_target),
        "drafts": partial(_draft_chain, params, *request, config=config, **of_both),
        "no drafts": partial(_draft_chain, params, *request, config=without_drafts, **of_both),
    }
    if is_round_timed:
        calls["round"] = partial(_round_chain, params, *request, config=config, **of_both)
    found = seconds_per_link(calls, links_for(seconds, calls["target"]), repeats)
    found["drafts"] = found["drafts"] - found.pop("no drafts")
    return found


def links_for(seconds: float | None, chain: Callable[..., Any]) -> int:
    """Links that let a chain last about so long, _LEAST_LINKS at least.

    Args:
      seconds: of the chain, None = SECONDS.
      chain: see `seconds_per_link`.
    """
    call = partial(chain, num_steps=_LEAST_LINKS)
    timed(call)  # compiles
    return math.ceil(_LEAST_LINKS * max(1.0, (seconds or SECONDS) / timed(call)[0]))


_chain = partial(jax.jit, static_argnames=("target", "config"))
_chain_of_both = partial(jax.jit, static_argnames=("target", "drafter", "config"))


def _buffer_length(prompt: jax.Array, config: SpecConfig) -> int:
    return buffer_length(config, prompt.shape[1], slack=config.gamma + 1)


@_chain
def _target_chain(params, inputs, prompt, keys, *, target, settings, config, num_steps):
    """num_steps plain steps. A row that is done stays where it is; its steps cost the same."""
    rows = prompt.shape[0]
    state = init_state(
        params,
        inputs,
        prompt,
        keys,
        model=target,
        prompt_lengths=jnp.full(rows, prompt.shape[1]),
        limits=jnp.full(rows, config.max_new_tokens),
        cache_length=_buffer_length(prompt, config),
    )
    step = partial(
        plain_step,
        params=params,
        model=target,
        settings=settings,
        config=config,
        num_ids=checked_num_ids(config, target),
    )
    state = lax.fori_loop(0, num_steps, lambda _, state: step(state), state)
    return state.generation.columns


def _context(prompt: jax.Array, size: int) -> Context:
    lengths = jnp.full(prompt.shape[0], prompt.shape[1])
    return start(prompt, lengths, lengths, size).context


def _next_context(
    context: Context, newest: jax.Array, ends: jax.Array, config: SpecConfig
) -> Context:
    """One token further; back to the prompt where the text `ends` or the run's slots do."""
    tokens = write_at(context.tokens, newest[:, None], context.lengths)
    lengths = context.lengths + 1
    ends |= lengths >= context.prompt_lengths + config.max_new_tokens
    return Context(tokens, jnp.where(ends, context.prompt_lengths, lengths), context.prompt_lengths)


@_chain_of_both
def _draft_chain(
    params, inputs, prompt, keys, *, target, drafter, settings, draft_settings, config, num_steps
):
    """num_steps times gamma drafts and a run of the target, one slot further each.

    The context is what the target itself decodes, over and over, for a draft that copies costs
    what its contexts make it cost. Drafts and q are summed up, so consumed.
    """
    size = _buffer_length(prompt, config)
    num_ids = checked_num_ids(config, target)
    cache = prefill(params.target, inputs, prompt, model=target, cache_length=size)
    draft_state = drafter.init(params.draft, inputs, prompt, cache, cache_length=size)

    def link(step, carry):
        context, cache, draft_state, total = carry
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)
        proposal, draft_state = drafter.propose(
            params.draft, draft_state, context, step_keys, settings=draft_settings, config=config
        )
        newest = last_token(context.tokens, context.lengths)[:, None]
        logits, cache = target.extend(params.target, cache, newest, context.lengths - 1)
        total += log_probs_of(proposal.probs, proposal.tokens).sum()
        rows = standardize(logits, settings, context, eos_id=config.eos_id, num_ids=num_ids)
        drawn = jax.vmap(uniforms, in_axes=(0, None))(step_keys, config.gamma + 1)[:, -1]
        token = sample_rows(rows.probs[:, 0], settings, drawn)
        context = _next_context(context, token, token == config.eos_id, config)
        return context, cache, draft_state, total

    carry = (_context(prompt, size), cache, draft_state, jnp.float32(0))
    context, _, _, total = lax.fori_loop(0, num_steps, link, carry)
    return context.tokens, total


@_chain
def _verify_chain(params, inputs, prompt, keys, *, target, settings, config, num_steps):
    """num_steps runs of the target over gamma + 1 tokens, with verdict; each feeds the next."""
    rows, size = prompt.shape[0], _buffer_length(prompt, config)
    cache = prefill(params, inputs, prompt, model=target, cache_length=size)
    num_ids = checked_num_ids(config, target)
    q = jnp.full((rows, config.gamma, target.vocab_size), 1.0 / num_ids)
    full = jnp.full(rows, config.gamma)
    rule = jax.vmap(default_rule(settings))

    def link(step, carry):
        context, cache, drafts = carry
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)
        p, cache = score(
            params, cache, context, drafts, target=target, settings=settings, config=config
        )
        verdict = rule(p, Proposal(drafts, q, full, full), step_keys)
        context = _next_context(context, verdict.next_token, jnp.zeros(rows, bool), config)
        drafts = jnp.concatenate([drafts, verdict.next_token[:, None]], axis=1)[:, 1:]
        return context, cache, drafts

    drafts = jnp.zeros((rows, config.gamma), jnp.int32)
    context, _, _ = lax.fori_loop(0, num_steps, link, (_context(prompt, size), cache, drafts))
    return context.tokens


@_chain_of_both
def _round_chain(
    params, inputs, prompt, keys, *, target, drafter, settings, draft_settings, config, num_steps
):
    """num_steps rounds of the speculative loop. A row that is done is carried along as in it."""
    rows = prompt.shape[0]
    state = init_speculation(
        params,
        inputs,
        prompt,
        keys,
        target=target,
        drafter=drafter,
        config=config,
        prompt_lengths=jnp.full(rows, prompt.shape[1]),
        limits=jnp.full(rows, config.max_new_tokens),
    )
    step = partial(
        speculative_step,
        params=params,
        target=target,
        drafter=drafter,
        verify_fn=default_rule(settings),
        settings=settings,
        draft_settings=draft_settings,
        config=config,
    )
    state = lax.fori_loop(0, num_steps, lambda _, state: step(state)[0], state)
    return state.generation.columns, state.counts
