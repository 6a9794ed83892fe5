"""Drafting with a smaller language model (Algorithm 1, lines 1 to 4 of arXiv 2211.17192).

Dimensions: B batch, P prompt length, L buffer length, G gamma, V vocabulary.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from specdec.buffers import first_true, read_at, write_at
from specdec.sampling import sample_rows, standardize, uniforms
from specdec.types import Cache, Context, LanguageModel, Params, Proposal


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
    """A language model that drafts, with an encoder of its own (the paper's set-up).

    Attributes:
      model: the draft M_q. Ids that its table lacks are fed as `unknown_id`.
      unknown_id: T5's is 2.
      reads_target_cache: whether `init` looks at the target's cache.
    """

    model: LanguageModel
    unknown_id: int = 2
    reads_target_cache = False

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def init(
        self,
        params: Params,
        inputs: Any,
        prompt: jax.Array,
        target_cache: Cache,
        *,
        cache_length: int,
    ) -> Cache:
        """The draft's cache, having seen the prompt [B, P]."""
        cache = self._init_cache(params, inputs, target_cache, cache_length)
        if prompt.shape[1] > 1:
            start = jnp.zeros(prompt.shape[0], jnp.int32)
            _, cache = self._extend(params, cache, prompt, start)
        return cache

    def propose(
        self,
        params: Params,
        state: Cache,
        context: Context,
        keys: jax.Array,
        *,
        settings: Any,
        config: Any,
    ) -> tuple[Proposal, Cache]:
        """gamma tokens, one run of the draft each; nothing counts after the draft's own EOS.

        The first run takes the last two decided tokens: after a round whose drafts were all
        accepted, the draft hasn't seen its own last token.
        """
        if config.gamma == 0:
            return empty_proposal(context, self.vocab_size), state
        logits, state = self.catch_up(params, state, context, 2)
        return self.draft(
            params, state, context, keys, logits=logits, settings=settings, config=config
        )

    def draft(
        self,
        params: Params,
        state: Cache,
        context: Context,
        keys: jax.Array,
        *,
        logits: jax.Array,
        settings: Any,
        config: Any,
    ) -> tuple[Proposal, Cache]:
        """`propose`, from the logits [B, 1, V] of the first draft; gamma is 1 or more."""
        gamma = config.gamma
        num_ids = min(config.num_ids or self.vocab_size, self.vocab_size)

        drawn = jax.vmap(uniforms, in_axes=(0, None))(keys, gamma)  # [B, G]

        def sample(logits, context, step):
            rows = standardize(logits, settings, context, eos_id=config.eos_id, num_ids=num_ids)
            token = sample_rows(rows.probs[:, 0], settings, drawn[:, step])[:, None]
            tokens = write_at(context.tokens, token, context.lengths)
            return context._replace(tokens=tokens, lengths=context.lengths + 1), rows.probs[:, 0]

        def run(carry, step):
            context, cache = carry
            newest = read_at(context.tokens, context.lengths - 1, 1)
            logits, cache = self._extend(params, cache, newest, context.lengths - 1)
            context, q = sample(logits, context, step)
            return (context, cache), q

        drafted, first_q = sample(logits, context, 0)
        (drafted, state), later_q = lax.scan(run, (drafted, state), jnp.arange(1, gamma))
        tokens = read_at(drafted.tokens, context.lengths, gamma)
        proposal = Proposal(
            tokens=tokens,
            probs=jnp.moveaxis(jnp.concatenate([first_q[None], later_q]), 0, 1),
            num_drafted=up_to_eos(tokens, config.eos_id),
            num_calls=jnp.full_like(context.lengths, gamma),
        )
        return proposal, state

    def catch_up(self, params: Params, cache: Cache, context: Context, num_tokens: int):
        """Logits [B, 1, V] for the next slot, from a run over the last num_tokens decided tokens.

        Where fewer are decided (in T5's first round one is) the run starts at slot 0, and its last
        entries are garbage that the next run overwrites before it becomes visible.
        """
        start = jnp.maximum(context.lengths - num_tokens, 0)
        newest = read_at(context.tokens, start, num_tokens)
        logits, cache = self._extend(params, cache, newest, start)
        return read_at(logits, context.lengths - 1 - start, 1), cache

    def _extend(self, params: Params, cache: Cache, tokens: jax.Array, positions: jax.Array):
        known = jnp.where(tokens < self.vocab_size, tokens, self.unknown_id)
        return self.model.extend(params, cache, known, positions)

    def _init_cache(self, params, inputs, target_cache, cache_length) -> Cache:
        del target_cache
        return self.model.init_cache(params, inputs, cache_length)


class SharedEncoderModel(LanguageModel, Protocol):
    """A model whose decoder can read the encoder output in another model's cache."""

    def share_encoder(self, params: Params, cache: Cache, cache_length: int) -> Cache: ...


@dataclasses.dataclass(frozen=True)
class SharedEncoderDrafter(ModelDrafter):
    """A decoder that drafts from the target's encoder output: no encoder run of its own."""

    model: SharedEncoderModel
    reads_target_cache = True

    def _init_cache(self, params, inputs, target_cache, cache_length) -> Cache:
        del inputs
        return self.model.share_encoder(params, target_cache, cache_length)


def up_to_eos(tokens: jax.Array, eos_id: int) -> jax.Array:
    """How many of tokens [B, G] count as drafted: up to and including the first EOS -> [B].

    Example: EOS 1, tokens [[5, 1, 7], [5, 6, 7]] -> [2, 3].
    """
    return jnp.minimum(first_true(tokens == eos_id) + 1, tokens.shape[1]).astype(jnp.int32)


def empty_proposal(context: Context, vocab_size: int) -> Proposal:
    """The proposal of gamma = 0: a plain step."""
    none = jnp.zeros_like(context.lengths)
    batch_size = none.shape[0]
    return Proposal(
        tokens=jnp.zeros((batch_size, 0), jnp.int32),
        probs=jnp.zeros((batch_size, 0, vocab_size), jnp.float32),
        num_drafted=none,
        num_calls=none,
    )
