"""Plain decoding, one token a target call: the baseline that speculative decoding is held against.

Same models, buffers, sampling and stop rule as the speculative loop.

Dimensions: B batch, P prompt length, L buffer length, V vocabulary.
"""

from functools import partial
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jax import lax

from specdec.buffers import last_token
from specdec.config import SpecConfig, buffer_length, checked_num_ids, checked_requests
from specdec.generation import BONUS, Columns, Decoded, Generation, append, finish, start
from specdec.sampling import Settings, log_probs_of, sample_rows, standardize, uniforms
from specdec.types import Cache, LanguageModel, Params


@flax.struct.dataclass
class PlainState:
    """Attributes: generation; the model's cache; keys [B]; num_steps [B] int32."""

    generation: Generation
    cache: Cache
    keys: jax.Array
    num_steps: jax.Array


@partial(jax.jit, static_argnames=("model", "config"))
def autoregressive_decode(
    params: Params,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    model: LanguageModel,
    settings: Settings,
    config: SpecConfig,
    prompt_lengths: jax.Array | None = None,
    limits: jax.Array | None = None,
) -> Decoded:
    """Decodes a batch with the target alone.

    Args:
      params: of the model.
      inputs: whatever the model's `init_cache` takes.
      prompt: [B, P] int32 decoder tokens to go on from; for T5 one start token, 0.
      keys: [B] typed keys, one a row.
      model, config: static; gamma is ignored.
      settings: how logits become the law sampled from.
      prompt_lengths: [B] int32, default P.
      limits: [B] int32, most new tokens of each row, default (and at most) max_new_tokens.

    Returns:
      Decoded.

    Raises:
      ValueError: at trace time, see `config`.
    """
    num_ids = checked_num_ids(config, model)
    prompt, prompt_lengths, limits = checked_requests(prompt, prompt_lengths, limits, keys, config)
    state = init_state(
        params,
        inputs,
        prompt,
        keys,
        model=model,
        prompt_lengths=prompt_lengths,
        limits=limits,
        cache_length=buffer_length(config, prompt.shape[1], slack=1),
    )
    step = partial(
        plain_step, params=params, model=model, settings=settings, config=config, num_ids=num_ids
    )
    state = lax.while_loop(lambda state: state.generation.running.any(), step, state)
    return finish(
        state.generation,
        state.num_steps,
        max_new_tokens=config.max_new_tokens,
        pad_id=config.pad_id,
    )


def init_state(
    params: Params,
    inputs: Any,
    prompt: jax.Array,
    keys: jax.Array,
    *,
    model: LanguageModel,
    prompt_lengths: jax.Array,
    limits: jax.Array,
    cache_length: int,
) -> PlainState:
    """The state before the first step: the model has seen the prompt [B, P]."""
    return PlainState(
        generation=start(prompt, prompt_lengths, limits, cache_length),
        cache=prefill(params, inputs, prompt, model=model, cache_length=cache_length),
        keys=keys,
        num_steps=jnp.zeros_like(limits),
    )


def prefill(
    params: Params, inputs: Any, prompt: jax.Array, *, model: LanguageModel, cache_length: int
) -> Cache:
    """A cache that has seen the prompt [B, P].

    Only the slots before a row's last token matter; that token is fed again by the first step.
    """
    cache = model.init_cache(params, inputs, cache_length)
    if prompt.shape[1] > 1:
        _, cache = model.extend(params, cache, prompt, jnp.zeros(prompt.shape[0], jnp.int32))
    return cache


def plain_step(
    state: PlainState,
    *,
    params: Params,
    model: LanguageModel,
    settings: Settings,
    config: SpecConfig,
    num_ids: int,
) -> PlainState:
    """One token for every row that is still running."""
    context = state.generation.context
    newest = last_token(context.tokens, context.lengths)[:, None]
    logits, cache = model.extend(params, state.cache, newest, context.lengths - 1)
    rows = standardize(logits, settings, context, eos_id=config.eos_id, num_ids=num_ids)
    step_keys = jax.vmap(jax.random.fold_in)(state.keys, state.num_steps)
    drawn = jax.vmap(uniforms, in_axes=(0, None))(step_keys, 1)
    tokens = sample_rows(rows.probs[:, 0], settings, drawn[:, 0])[:, None]
    block = Columns(
        tokens=tokens,
        origins=jnp.full_like(tokens, BONUS, dtype=jnp.int8),
        log_probs=log_probs_of(rows.probs, tokens),
        model_log_probs=log_probs_of(rows.model_probs, tokens),
    )
    one_each = jnp.ones_like(context.lengths)
    generation, num_new = append(state.generation, block, one_each, config.eos_id)
    return state.replace(generation=generation, cache=cache, num_steps=state.num_steps + num_new)
