"""The types and protocols that models, drafters, rules and loops share. No logic.

Dimensions: B batch, P prompt length, L buffer length, T block length, G gamma, V vocabulary.
p is the target, q the draft, always.
"""

from typing import Any, NamedTuple, Protocol

import jax

Params = Any
Cache = Any
DraftState = Any


class EncoderInputs(NamedTuple):
    """Source sentences of an encoder-decoder model.

    Attributes:
      tokens: [B, E] int32. What lies at and beyond a row's length has no meaning.
      lengths: [B] int32.
    """

    tokens: jax.Array
    lengths: jax.Array


class Context(NamedTuple):
    """What has been decided so far, row by row.

    Attributes:
      tokens: [B, L] int32, prompt included; garbage at and beyond a row's length.
      lengths: [B] int32, at least 1: the next token goes to this slot.
      prompt_lengths: [B] int32.
    """

    tokens: jax.Array
    lengths: jax.Array
    prompt_lengths: jax.Array


class Rows(NamedTuple):
    """A model's distributions for the T tokens that follow a context.

    Attributes:
      probs: [B, T, V] float32, the law sampled from: after temperature and filters.
      model_probs: [B, T, V] float32, the model's own: temperature 1, no filter; ids that may not
        be emitted are left out of both.
    """

    probs: jax.Array
    model_probs: jax.Array


class Proposal(NamedTuple):
    """What a drafter proposes in a round. Unbatched in the rules, with a leading B in the loop.

    Attributes:
      tokens: [G] int32.
      probs: [G, V] float32, the law q that each token was sampled from. Not the draft model's
        softmax if the token was taken otherwise: an argmax has a one-hot q.
      num_drafted: [] int32 in 0..G. Tokens beyond it are neither drafted nor tested.
      num_calls: [] int32, runs of the draft model that this took.
    """

    tokens: jax.Array
    probs: jax.Array
    num_drafted: jax.Array
    num_calls: jax.Array


class Verdict(NamedTuple):
    """A rule's decision on a round, unbatched.

    Attributes:
      n_accepted: [] int32 in 0..num_drafted.
      next_token: [] int32, the token after the accepted ones: a correction or a bonus.
    """

    n_accepted: jax.Array
    next_token: jax.Array


class LanguageModel(Protocol):
    """A decoder with a cache. Hashable (static under jit); weights are never inside.

    `extend` overwrites cache slots positions[b] .. positions[b]+T-1. Slot s is visible to query t
    iff s <= positions[b]+t, so rolling back is passing a smaller position.
    """

    @property
    def vocab_size(self) -> int: ...

    def init_cache(self, params: Params, inputs: Any, cache_length: int) -> Cache:
        """Everything done once per request (encoder, cross-attention) and `cache_length` slots."""
        ...

    def extend(
        self, params: Params, cache: Cache, tokens: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """tokens [B, T], positions [B] -> logits [B, T, V] float32, cache.

        A draft may give logits to its first ids only: q of the others is 0.
        """
        ...


class Drafter(Protocol):
    """Proposes tokens. May have neither parameters nor a state (then both are `()`)."""

    @property
    def vocab_size(self) -> int: ...

    def init(
        self,
        params: Params,
        inputs: Any,
        prompt: jax.Array,
        target_cache: Cache,
        *,
        cache_length: int,
    ) -> DraftState:
        """State for prompts [B, P]; may read the target's encoder output from its cache."""
        ...

    def propose(
        self,
        params: Params,
        state: DraftState,
        context: Context,
        keys: jax.Array,
        *,
        settings: Any,
        config: Any,
    ) -> tuple[Proposal, DraftState]:
        """Up to `config.gamma` tokens after the context; keys [B], one a row."""
        ...
