"""Copying where there is something to copy, a model elsewhere.

Dimensions: B batch, P prompt length, G gamma, V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specdec.drafters.lookup import CopyDrafter
from specdec.drafters.model import ModelDrafter, empty_proposal
from specdec.types import Cache, Context, LanguageModel, Params, Proposal


@dataclasses.dataclass(frozen=True)
class CopyOrModelDrafter:
    """Each round of a row is drafted by one of the two; parameters are the model's.

    Attributes:
      copy: drafts where the context matches.
      drafter: drafts elsewhere with its model, which sees every decided token: a round that is
        copied costs one run of it, over the tokens that the last round may have added.
    """

    copy: CopyDrafter
    drafter: ModelDrafter

    @property
    def vocab_size(self) -> int:
        return self.copy.vocab_size

    @property
    def model(self) -> LanguageModel:
        return self.drafter.model

    def init(
        self,
        params: Params,
        inputs: Any,
        prompt: jax.Array,
        target_cache: Cache,
        *,
        cache_length: int,
    ) -> tuple[Any, Cache]:
        """The states of both."""
        args = (inputs, prompt, target_cache)
        return (
            self.copy.init((), *args, cache_length=cache_length),
            self.drafter.init(params, *args, cache_length=cache_length),
        )

    def propose(
        self,
        params: Params,
        state: tuple[Any, Cache],
        context: Context,
        keys: jax.Array,
        *,
        settings: Any,
        config: Any,
    ) -> tuple[Proposal, tuple[Any, Cache]]:
        """What follows the match, or the model's gamma tokens."""
        if config.gamma == 0:
            return empty_proposal(context, self.vocab_size), state
        source, cache = state
        how = dict(settings=settings, config=config)
        copied, source = self.copy.propose((), source, context, keys, **how)
        is_copied = copied.num_drafted > 0
        # A round adds up to gamma + 1 tokens; one more, for the model has not seen its own last.
        logits, cache = self.drafter.catch_up(params, cache, context, config.gamma + 2)

        def by_model(cache):
            drafted, cache = self.drafter.draft(params, cache, context, keys, logits=logits, **how)
            width = self.vocab_size - drafted.probs.shape[-1]
            probs = jnp.pad(drafted.probs, [(0, 0), (0, 0), (0, max(width, 0))])
            return drafted._replace(probs=probs[..., : self.vocab_size]), cache

        # The model's later runs are left out where no row waits for them.
        one_call = copied._replace(num_calls=jnp.ones_like(copied.num_calls))
        drafted, cache = lax.cond(is_copied.all(), lambda cache: (one_call, cache), by_model, cache)
        chosen = jax.tree.map(
            lambda a, b: jnp.where(is_copied.reshape(-1, *[1] * (a.ndim - 1)), a, b),
            one_call,
            drafted,
        )
        return chosen, (source, cache)
