"""The loop's own step, round by round on the host: for streams, traces and tests.

Same step, same random numbers, same tokens as `speculative_decode`; slower by a host round trip a
round.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from specdec.config import SpecConfig, checked_requests
from specdec.sampling import Settings
from specdec.speculative import (
    PairParams,
    SpecState,
    StepInfo,
    as_pytree,
    default_rule,
    init_state,
    speculative_step,
)
from specdec.types import Drafter, LanguageModel

_STATIC = ("target", "drafter", "config")
_init = partial(jax.jit, static_argnames=_STATIC)(init_state)
_step = partial(jax.jit, static_argnames=_STATIC)(speculative_step)


def speculative_rounds(
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
    verify_fn=None,
    prompt_lengths: jax.Array | None = None,
    limits: jax.Array | None = None,
) -> Iterator[tuple[SpecState, StepInfo]]:
    """Yields the state after each round and what happened in it, until all rows are done.

    Arguments are those of `speculative_decode`; `finish_speculation(state, config)` makes the last
    state its result.
    """
    prompt, prompt_lengths, limits = checked_requests(prompt, prompt_lengths, limits, keys, config)
    models = dict(target=target, drafter=drafter, config=config)
    state = _init(
        params, inputs, prompt, keys, prompt_lengths=prompt_lengths, limits=limits, **models
    )
    rule = as_pytree(verify_fn or default_rule(settings))
    while bool(jnp.any(state.generation.running)):
        state, info = _step(
            state,
            params,
            verify_fn=rule,
            settings=settings,
            draft_settings=draft_settings or settings,
            **models,
        )
        yield state, info
