"""Which drafted tokens stand, and what follows them: the rules of speculative decoding.

Dimensions: G gamma, V vocabulary. Everything here is unbatched and pure; the loop vmaps it.

A rule takes the target's rows, the proposal, a key and returns a Verdict. It is lossless if, for
every q, the tokens it lets through follow p (Appendix A.1 of arXiv 2211.17192):

    q(x) * acceptance(x) + (1 - beta) * residual(x) = p(x),   beta = sum_x min(p(x), q(x)).
"""

from functools import partial

import jax
import jax.numpy as jnp

from specdec.buffers import first_true
from specdec.sampling import argmax, sample, uniforms
from specdec.types import Proposal, Rows, Verdict


def acceptance_probs(p: jax.Array, q: jax.Array, tokens: jax.Array, lenience=1.0) -> jax.Array:
    """min(1, p(x) / (l q(x))) for drafted tokens x (Algorithm 1, line 7; lenience l: A.5).

    Args:
      p, q: [G, V].
      tokens: [G] int32, drawn from q.
      lenience: l in (0, 1]; 1 is exact.

    Returns:
      [G] float32. 0 where q(x) is 0: such an x isn't drawn from q.
    """
    p_x = jnp.take_along_axis(p, tokens[:, None], axis=-1)[:, 0]
    q_x = jnp.take_along_axis(q, tokens[:, None], axis=-1)[:, 0]
    ratio = p_x / jnp.where(q_x > 0, lenience * q_x, 1.0)
    return jnp.where(q_x > 0, jnp.minimum(1.0, ratio), 0.0)


def residual_probs(p: jax.Array, q: jax.Array) -> jax.Array:
    """norm(max(0, p - q)), the law of the token after a rejection (section 2.3).

    With q = 0 it is p: then nothing was drafted. Where nothing is left (q = p, so a rejection has
    probability 0 and only rounding leads here) it is p, too.

    Args:
      p, q: [..., V].

    Returns:
      [..., V].
    """
    excess = jnp.maximum(0.0, p - q)
    total = excess.sum(-1, keepdims=True)
    return jnp.where(total > 0, excess / jnp.where(total > 0, total, 1.0), p)


def is_accepted(accept: jax.Array, uniform: jax.Array) -> jax.Array:
    """u < accept, strictly: u may be 0, and a token with p(x) = 0 must never stand."""
    return uniform < accept


def verify_sampling(target: Rows, proposal: Proposal, key: jax.Array) -> Verdict:
    """Speculative sampling (Algorithm 1): lossless for every draft and every temperature.

    Args:
      target: rows [G + 1, V].
      proposal: of [G] tokens.
      key: of this row and round, not used elsewhere.

    Returns:
      Verdict; the next token comes from the residual after a rejection, from p itself when all
      that was drafted is accepted.
    """
    return verify_lenient_sampling(target, proposal, key, lenience=1.0)


def verify_lenient_sampling(
    target: Rows, proposal: Proposal, key: jax.Array, *, lenience: jax.Array
) -> Verdict:
    """Speculative sampling that compares p with l * q (A.5). Lossy for l < 1.

    The paper doesn't name the residual. norm(max(0, p - q)) is the gentler of the two natural
    choices: where q <= p no token gets more than p(x), elsewhere it gets min(p(x) / l, q(x)); so
    P(x | prefix) <= p(x | prefix) / l. (The log-probabilities that a run reports are still p's.)
    """
    gamma = proposal.tokens.shape[0]
    drawn = uniforms(key, gamma + 1)
    accept = acceptance_probs(target.probs[:gamma], proposal.probs, proposal.tokens, lenience)
    accepted = is_accepted(accept, drawn[:gamma])
    n = _num_accepted(accepted, proposal.num_drafted)
    law = residual_probs(target.probs[n], _drafted_row(proposal, n))
    return Verdict(n, sample(law, drawn[gamma]))


def verify_greedy(target: Rows, proposal: Proposal, key: jax.Array) -> Verdict:
    """Accepts while the draft's token is the target's argmax. Lossless at temperature 0.

    `verify_sampling` decides the same on one-hot rows; this needs no random numbers.
    """
    del key
    return _verdict_on_argmax(target, proposal, proposal.tokens == _argmaxes(target, proposal))


def verify_lenient_greedy(
    target: Rows, proposal: Proposal, key: jax.Array, *, lenience: jax.Array
) -> Verdict:
    """Accepts x if p(x) >= l * max p, p being the softmax before it becomes one-hot (A.5).

    The paper prints <=, which at l = 1 would not reduce to an argmax match; >= does. A tie with
    the argmax is not accepted at l = 1, so that l = 1 is plain greedy decoding.
    """
    del key
    p = target.model_probs[: proposal.tokens.shape[0]]
    p_x = jnp.take_along_axis(p, proposal.tokens[:, None], axis=-1)[:, 0]
    is_close = (p_x >= lenience * p.max(-1)) & (p_x > 0) & (lenience < 1)
    return _verdict_on_argmax(
        target, proposal, is_close | (proposal.tokens == _argmaxes(target, proposal))
    )


def lenient(rule, lenience: float):
    """A lenient rule with its l bound: traced, so another l compiles nothing.

    Raises:
      ValueError: if lenience lies outside (0, 1].
    """
    if not 0 < lenience <= 1:
        raise ValueError(f"lenience={lenience}: must lie in (0, 1]; 1 is lossless")
    return jax.tree_util.Partial(rule, lenience=jnp.float32(lenience))


lenient_sampling = partial(lenient, verify_lenient_sampling)
lenient_greedy = partial(lenient, verify_lenient_greedy)


def _num_accepted(accepted: jax.Array, num_drafted: jax.Array) -> jax.Array:
    """Length of the accepted prefix within what was drafted: accepted [G] -> []."""
    return jnp.minimum(first_true(~accepted), num_drafted).astype(jnp.int32)


def _drafted_row(proposal: Proposal, n: jax.Array) -> jax.Array:
    """Row n of q, or zeros where nothing was drafted: [V]."""
    q = jnp.pad(proposal.probs, [(0, 1), (0, 0)])
    return jnp.where(n < proposal.num_drafted, q[n], 0.0)


def _argmaxes(target: Rows, proposal: Proposal) -> jax.Array:
    return argmax(target.probs[: proposal.tokens.shape[0]])


def _verdict_on_argmax(target: Rows, proposal: Proposal, accepted: jax.Array) -> Verdict:
    n = _num_accepted(accepted, proposal.num_drafted)
    return Verdict(n, argmax(target.probs[n]))
