"""The paper's formulas for what speculation gains (arXiv 2211.17192, section 3).

alpha: mean acceptance probability; gamma: drafts per round; c: cost of a draft run in target runs.
All take numbers or arrays that broadcast.
"""

import numpy as np


def expected_tokens(alpha, gamma):
    """Tokens per round, (1 - alpha^(gamma+1)) / (1 - alpha): equation 1, for i.i.d. acceptances.

    Example: alpha .8, gamma 5 -> 3.69.
    """
    alpha = np.asarray(alpha, float)
    is_one = alpha == 1
    geometric = (1 - alpha ** (gamma + 1)) / np.where(is_one, 1, 1 - alpha)
    return np.where(is_one, gamma + 1.0, geometric)


def walltime_factor(alpha, gamma, c, r=1.0):
    """How many times faster: Theorem 3.8, with a round that costs gamma c + r target runs.

    The theorem has r = 1: it takes a target run over gamma + 1 tokens to cost what one over a
    single token does.

    Example: alpha .8, gamma 5, c 0 -> 3.69.
    """
    return expected_tokens(alpha, gamma) / (gamma * np.asarray(c, float) + r)


def operations_factor(alpha, gamma, c_hat):
    """How many times the arithmetic operations of plain decoding: Theorem 3.11.

    c_hat: operations of the draft per token, in the target's. A block of gamma + 1 tokens takes
    gamma + 1 times the operations of one, whatever it takes of time; a machine without operations
    to spare (a large batch) gains nothing from speculation.

    Example: alpha 1, gamma 3, c_hat 0 -> 1; alpha 0 -> 4.
    """
    return (gamma * np.asarray(c_hat, float) + gamma + 1) / expected_tokens(alpha, gamma)


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
