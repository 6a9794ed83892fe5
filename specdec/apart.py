"""Speculative decoding with the draft on devices of its own.

The same rounds, random numbers and tokens as `speculative_decode`, in two programs: the draft's
devices propose, the target's judge. A round sends the decided tokens one way and the drafts with
their laws, [B, G, V] float32, the other; the host starts both programs, so a round costs a little
more than in the one compiled loop. It pays where the draft would else wait for devices that it
can't keep busy.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from specdec.config import SpecConfig, checked_num_ids, checked_requests
from specdec.drafters.model import ModelDrafter
from specdec.generation import Decoded
from specdec.sampling import Settings
from specdec.sharding import Layout
from specdec.speculative import (
    PairParams,
    as_pytree,
    default_rule,
    finish_speculation,
    init_target,
    judge,
    round_keys,
)
from specdec.types import LanguageModel


def is_apart(target: LanguageModel, drafter: Any) -> bool:
    """Whether the two lie on different devices."""
    ours, theirs = (getattr(model, "layout", None) for model in (target, _model_of(drafter)))
    return ours is not None and theirs is not None and ours.mesh != theirs.mesh


def _model_of(drafter: Any) -> Any:
    return getattr(drafter, "model", None)


def decode_apart(
    params: PairParams,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    target: LanguageModel,
    drafter: ModelDrafter,
    settings: Settings,
    config: SpecConfig,
    draft_settings: Settings | None = None,
    verify_fn=None,
    prompt_lengths: jax.Array | None = None,
    limits: jax.Array | None = None,
) -> Decoded:
    """`speculative_decode`, with the same arguments, where target and draft have their own layouts.

    Raises:
      ValueError: see `config`.
    """
    checked_num_ids(config, target, drafter)
    here: Layout = target.layout
    there: Layout = drafter.model.layout
    prompt, prompt_lengths, limits = checked_requests(prompt, prompt_lengths, limits, keys, config)
    inputs, prompt, keys, prompt_lengths, limits = here.place_rows(
        (inputs, prompt, keys, prompt_lengths, limits)
    )
    judges = dict(target=target, config=config)
    requests = dict(prompt_lengths=prompt_lengths, limits=limits)
    state = _init_target(params.target, inputs, prompt, keys, **judges, **requests)
    # Only a draft that reads it takes the target's cache along.
    seen = there.place_rows(state.target_cache) if drafter.reads_target_cache else ()
    drafting = dict(drafter=drafter, cache_length=state.generation.size)
    draft_state = _init_draft(params.draft, *there.place_rows((inputs, prompt)), seen, **drafting)
    rule = as_pytree(verify_fn or default_rule(settings))
    while bool(jnp.any(state.generation.running)):
        draft_keys, verify_keys = _keys(state.keys, state.num_rounds)
        proposal, draft_state = _propose(
            params.draft,
            draft_state,
            *there.place_rows((state.generation.context, draft_keys)),
            drafter=drafter,
            settings=draft_settings or settings,
            config=config,
        )
        proposal = here.place_rows(proposal)
        how = dict(verify_fn=rule, settings=settings)
        state, _ = _judge(state, params.target, proposal, verify_keys, **judges, **how)
    return _finish(state, config)


def _begin(params, inputs, prompt, target_cache, *, drafter, cache_length):
    return drafter.init(params, inputs, prompt, target_cache, cache_length=cache_length)


def _draft(params, state, context, keys, *, drafter, settings, config):
    return drafter.propose(params, state, context, keys, settings=settings, config=config)


_init_target = partial(jax.jit, static_argnames=("target", "config"))(init_target)
_init_draft = partial(jax.jit, static_argnames=("drafter", "cache_length"))(_begin)
_keys = jax.jit(round_keys)
_propose = partial(jax.jit, static_argnames=("drafter", "config"), donate_argnums=1)(_draft)
_judge = partial(jax.jit, static_argnames=("target", "config"), donate_argnums=0)(judge)
_finish = partial(jax.jit, static_argnums=1)(finish_speculation)
