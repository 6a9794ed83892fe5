"""Non-autoregressive drafting: one run of a model gives all gamma rows (section 3.6).

The paper names it after Stern et al. (arXiv 1811.03115). Row j is the law of the token j + 1 after
the context, whatever stands between: q is the product of the rows.

Dimensions: B batch, P prompt length, G gamma, J tokens ahead, V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.buffers import prefix_mask, read_at
from specdec.drafters.model import ModelDrafter, empty_proposal, up_to_eos
from specdec.models.gpt import GPTLanguageModel
from specdec.sampling import sample_rows, standardize, uniforms
from specdec.types import Cache, Context, Params, Proposal


@dataclasses.dataclass(frozen=True)
class HeadsDrafter:
    """Attributes: model: with J tokens ahead, at least gamma."""

    model: GPTLanguageModel

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_gamma(self) -> int:
        return self.model.config.num_ahead

    def init(
        self, params: Params, inputs: Any, prompt: jax.Array, target_cache, *, cache_length: int
    ) -> Cache:
        """The draft's cache, having seen the prompt [B, P]."""
        args = (params, inputs, prompt, target_cache)
        return ModelDrafter(self.model).init(*args, cache_length=cache_length)

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
        """gamma tokens, drawn independently; the run takes what the last round may have added.

        Raises:
          ValueError: at trace time, for a gamma above J.
        """
        gamma = config.gamma
        if gamma > self.max_gamma:
            raise ValueError(
                f"gamma={gamma}: this draft predicts {self.max_gamma} tokens ahead; take gamma <= "
                f"{self.max_gamma} or train one with more"
            )
        if gamma == 0:
            return empty_proposal(context, self.vocab_size), state
        # It sees no draft, so a round leaves up to gamma + 1 tokens that it has not seen.
        start = jnp.maximum(context.lengths - (gamma + 1), 0)
        newest = read_at(context.tokens, start, gamma + 1)
        slots = context.lengths - 1 - start
        logits, state = self.model.extend_ahead(params, state, newest, start, slots, gamma)
        num_ids = min(config.num_ids or self.vocab_size, self.vocab_size)
        # What lies beyond is no history; in its place the start, once more, does no harm.
        is_decided = prefix_mask(context.lengths, context.tokens.shape[1])
        tokens = jnp.where(is_decided, context.tokens, context.tokens[:, :1])
        context = context._replace(tokens=tokens)
        rows = standardize(logits, settings, context, eos_id=config.eos_id, num_ids=num_ids)
        drawn = jax.vmap(uniforms, in_axes=(0, None))(keys, gamma)
        tokens = sample_rows(rows.probs, settings, drawn)
        proposal = Proposal(
            tokens=tokens,
            probs=rows.probs,
            num_drafted=up_to_eos(tokens, config.eos_id),
            num_calls=jnp.ones_like(context.lengths),
        )
        return proposal, state
