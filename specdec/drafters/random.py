"""Drafting uniformly random tokens: the floor case of section 3.6 (arXiv 2211.17192).

Dimensions: B batch, G gamma, V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.drafters.model import up_to_eos
from specdec.types import Context, Proposal


@dataclasses.dataclass(frozen=True)
class RandomDrafter:
    """Every id with the same probability: no parameters, no state, no runs of a model."""

    vocab_size: int

    def init(self, params, inputs, prompt, target_cache, *, cache_length: int) -> tuple:
        del params, inputs, prompt, target_cache, cache_length
        return ()

    def propose(
        self, params, state, context: Context, keys: jax.Array, *, settings: Any, config: Any
    ) -> tuple[Proposal, tuple]:
        """gamma tokens; the sampling settings play no part: q is uniform whatever they are."""
        del params, settings
        num_ids = min(config.num_ids or self.vocab_size, self.vocab_size)
        draw = lambda key: jax.random.randint(key, (config.gamma,), 0, num_ids)
        tokens = jax.vmap(draw)(keys)
        q = jnp.where(jnp.arange(self.vocab_size) < num_ids, 1.0 / num_ids, 0.0)
        proposal = Proposal(
            tokens=tokens,
            probs=jnp.broadcast_to(q, (*tokens.shape, self.vocab_size)),
            num_drafted=up_to_eos(tokens, config.eos_id),
            num_calls=jnp.zeros_like(context.lengths),
        )
        return proposal, state
