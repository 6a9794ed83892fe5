"""Losses per token, and their mean over real tokens.

Dimensions: B batch, T decoder length, V table rows, K real ids (K <= V), N logged top ids.
p is the target, q the draft, always.

Rows of the table beyond the real ids are padding: they are cut off before any softmax, in the
target and in the draft, so p and q are laws over the K real ids. A draft may know fewer ids than
the target (`T5Config.num_logits`): q of the others is 0. That is no loss that it could lower, so
the sums run over the ids it knows, and a reference token that it doesn't know costs nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class LossWeights(NamedTuple):
    """A mix of losses; each part is a mean per token, in nats (tvd: a probability).

    Attributes:
      cross_entropy: -log q(reference token).
      forward_kl: sum_x p(x) log(p(x) / q(x)).
      tvd: 1 - sum_x min(p(x), q(x)), one minus the acceptance probability beta.
    """

    cross_entropy: float = 0.0
    forward_kl: float = 0.0
    tvd: float = 0.0


def real_log_probs(logits: jax.Array, num_ids: int) -> jax.Array:
    """logits [..., V] -> log-probabilities [..., K] over the real ids, float32."""
    return jax.nn.log_softmax(logits[..., :num_ids].astype(jnp.float32), axis=-1)


def cross_entropy(log_q: jax.Array, tokens: jax.Array) -> jax.Array:
    """log_q [..., K], tokens [...] -> [...].

    Example: q = [1/2, 1/4, 1/4], token 1 -> log 4.
    """
    is_known = tokens < log_q.shape[-1]
    known = jnp.where(is_known, tokens, 0)
    return jnp.where(is_known, -jnp.take_along_axis(log_q, known[..., None], axis=-1)[..., 0], 0.0)


def forward_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """log_p, log_q [..., K] -> [...], the divergence from p to q.

    Example: p = [1/2, 1/2, 0], q = [1/4, 1/2, 1/4] -> 1/2 log 2.
    """
    log_p = log_p[..., : log_q.shape[-1]]
    p = jnp.exp(log_p)
    # 0 log 0 = 0, also where log_p is -inf.
    return jnp.sum(jnp.where(p > 0, p * (jnp.where(p > 0, log_p, 0.0) - log_q), 0.0), axis=-1)


def total_variation(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """log_p, log_q [..., K] -> [...], 1 - beta (Corollary 3.6).

    Example: p = [1/2, 1/2, 0], q = [1/4, 1/2, 1/4] -> 1 - (1/4 + 1/2 + 0) = 1/4.
    """
    log_p = log_p[..., : log_q.shape[-1]]
    return 1.0 - jnp.sum(jnp.minimum(jnp.exp(log_p), jnp.exp(log_q)), axis=-1)


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of values [B, T] where mask [B, T] holds; 0 where it holds nowhere.

    Whatever stands under the mask, NaN included, counts for nothing.
    """
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)
