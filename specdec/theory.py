"""The paper's formulas for what speculation gains (arXiv 2211.17192, sections 3 and A).

    p, q   laws of the next token, target's and draft's, [..., V]
    alpha  mean acceptance probability
    gamma  drafts per round
    c      cost of a draft run in target runs; c_hat: of its arithmetic operations
    r      cost of a target run over gamma + 1 tokens, in runs over one; the paper has r = 1

All take numbers, NumPy or JAX arrays that broadcast, and give what they were given.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _numpy_of(*values: Any) -> ModuleType:
    """JAX's numpy if a JAX array is among the values, else NumPy, in double precision."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


# Of two laws


def overlap(p, q, lenience=1.0):
    """beta = sum_x min(p(x), q(x)), the probability of acceptance (Theorem 3.5): [..., V] -> [...].

    Its mean over prefixes is alpha (Corollary 3.6). With lenience l it is sum_x min(p(x) / l, q(x))
    (A.5), for 0 < l <= 1.

    Example: p (.5, .5), q (.8, .2) -> .7; l = .5 -> 1.
    """
    return _numpy_of(p, q).minimum(p / lenience, q).sum(-1)


def d_lk(p, q):
    """D_LK(p, q) = sum_x |p(x) - M(x)|, M = (p + q) / 2 (Definition 3.2): [..., V] -> [...].

    The total variation distance; 1 - overlap(p, q) (Lemma 3.3).
    """
    return abs(p - (p + q) / 2).sum(-1)


def lenient_law(p, q, lenience):
    """The law of a token under lenience l (A.5): [..., V] -> [..., V].

    min(p(x) / l, q(x)) is drafted and accepted; what is rejected follows norm(max(0, p - q)), as in
    `verification.verify_lenient_sampling`. Nowhere above p(x) / l; at l = 1 it is p.
    """
    xp = _numpy_of(p, q)
    accepted = xp.minimum(p / lenience, q)
    excess = xp.maximum(0.0, p - q)
    total = excess.sum(-1, keepdims=True)
    residual = xp.where(total > 0, excess / xp.where(total > 0, total, 1.0), p)
    rejected = xp.maximum(0.0, 1 - accepted.sum(-1, keepdims=True))
    return accepted + rejected * residual


def lenience_shift(p, q, lenience):
    """How far lenience moves a token's law, total variation distance to p: [..., V] -> [...]."""
    return d_lk(lenient_law(p, q, lenience), p)


def rejection_acceptance(p, q):
    """Acceptance of one-shot rejection sampling, 1 / M with M = max_x p(x) / q(x) (A.2).

    Written as min over p(x) > 0 of q(x) / p(x). Where q(x) = 0 < p(x), M is infinite: nothing is
    ever accepted, and this is 0. Never above `overlap`.

    Args:
      p, q: [..., V].

    Returns:
      [...].
    """
    xp = _numpy_of(p, q)
    possible = xp.asarray(p) > 0
    return xp.where(possible, q / xp.where(possible, p, 1.0), xp.inf).min(-1)


# Of a round


def expected_tokens(alpha, gamma):
    """Tokens per round, (1 - alpha^(gamma+1)) / (1 - alpha): equation 1, for i.i.d. acceptances.

    Example: alpha .8, gamma 5 -> 3.69.
    """
    xp = _numpy_of(alpha, gamma)
    alpha = xp.asarray(alpha, float)
    is_one = alpha == 1
    geometric = (1 - alpha ** (xp.asarray(gamma) + 1)) / xp.where(is_one, 1.0, 1 - alpha)
    return xp.where(is_one, xp.asarray(gamma) + 1.0, geometric)


def capped_geometric(alpha: float, gamma: int):
    """Probability of 0, 1 ... gamma accepted drafts in a round: [gamma + 1] (section 3.1).

    Acceptances are taken for independent: (1 - alpha) alpha^n, and alpha^gamma for all of them.

    Example: alpha .5, gamma 2 -> .5, .25, .25.
    """
    n = np.arange(gamma + 1)
    return np.where(n < gamma, (1 - alpha) * alpha**n, alpha**n)


def walltime_factor(alpha, gamma, c, r=1.0):
    """How many times faster: Theorem 3.8, with a round that costs gamma c + r target runs.

    The theorem has r = 1. gamma 0 stands for a loop that drafts nothing and still pays r.

    Example: alpha .8, gamma 5, c 0 -> 3.69.
    """
    return expected_tokens(alpha, gamma) / (gamma * _numpy_of(alpha, gamma, c, r).asarray(c) + r)


def operations_factor(alpha, gamma, c_hat):
    """How many times the arithmetic operations of plain decoding: Theorem 3.11.

    c_hat: operations of the draft per token, in the target's. A block of gamma + 1 tokens takes
    gamma + 1 times the operations of one, whatever it takes of time; a machine without operations
    to spare (a large batch) gains nothing from speculation.

    Example: alpha 1, gamma 3, c_hat 0 -> 1; alpha 0 -> 4.
    """
    xp = _numpy_of(alpha, gamma, c_hat)
    return (gamma * xp.asarray(c_hat) + gamma + 1) / expected_tokens(alpha, gamma)


def memory_factor(alpha, gamma):
    """How many times fewer reads of the target's weights and cache (section 3.4).

    They are read once a round instead of once a token. The draft's own reads are not counted.

    Example: alpha .8, gamma 5 -> 3.69.
    """
    return expected_tokens(alpha, gamma)


def is_improvable(alpha, c):
    """Whether some gamma is faster than plain decoding, alpha > c (Corollary 3.9, at r = 1)."""
    return _numpy_of(alpha, c).asarray(alpha) > c


def least_improvement(alpha, c):
    """What the best gamma gains at the least where alpha > c: (1 + alpha) / (1 + c), gamma = 1's.

    Corollary 3.9, at r = 1.
    """
    return (1 + _numpy_of(alpha, c).asarray(alpha)) / (1 + c)


def optimal_gamma(alpha, c, r=1.0, *, max_gamma: int = 100):
    """The integer gamma of the largest `walltime_factor` (section 3.5); 0 where none exceeds 1.

    Args:
      alpha, c, r: broadcast; r must not depend on gamma here.
      max_gamma: the largest tried. With c = 0 the factor grows for ever, and this is the answer.

    Example: alpha .9, c .01 -> 24.
    """
    xp = _numpy_of(alpha, c, r)
    alpha, c, r = (xp.asarray(value, float)[..., None] for value in (alpha, c, r))
    factors = walltime_factor(alpha, xp.arange(1, max_gamma + 1), c, r)
    return xp.where(factors.max(-1) > 1, factors.argmax(-1) + 1, 0)


def oracle_factor(alpha, c):
    """How many times faster with gamma chosen by an oracle: 1 / (1 - alpha + c alpha).

    It drafts up to the next rejection, 1 / (1 - alpha) tokens a round in the mean, and the target
    still verifies each round once (section 3.5, at r = 1).
    """
    alpha = _numpy_of(alpha, c).asarray(alpha)
    return 1 / (1 - alpha + c * alpha)


def expected_calls(betas, gamma: int) -> float:
    """Target runs for one output, given the acceptance probability of each of its tokens.

    What equation 1 becomes where acceptances are neither alike nor endless: real betas are
    correlated, and a short output ends in the middle of a round.

    Example: betas [1, 0, 1], gamma 2: a round takes tokens 0 and 1 (one accepted, one corrected),
    the next takes token 2 -> 2.

    Args:
      betas: [N], in the order of the tokens; NaN where nothing is drafted.
      gamma: drafts per round.
    """
    betas = np.nan_to_num(np.asarray(betas, float))
    size = len(betas)
    calls = np.zeros(size + 1)  # still to come, before each token
    for start in range(size - 1, -1, -1):
        reach, total = 1.0, 1.0  # of getting so far in this round; this round
        for slot in range(start, min(start + gamma, size)):
            total += reach * (1 - betas[slot]) * calls[slot + 1]
            reach *= betas[slot]
        total += reach * calls[min(start + gamma + 1, size)]
        calls[start] = total
    return float(calls[0])
