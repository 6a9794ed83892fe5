"""Acceptance at a given alpha, to time shapes whose trained weights are not at hand.

With random weights a draft never agrees with its target. Here the exact rule runs as always, on
p and q of the models, but how many drafts stand is drawn instead: each with probability alpha, up
to the first that doesn't (the i.i.d. assumption of section 3.1, arXiv 2211.17192). The next token
is still the rule's own, so all it was computed from is consumed: otherwise XLA would remove the
models, and the time would be fiction. The tokens mean nothing.
"""

import jax
import jax.numpy as jnp

from specdec.buffers import first_true
from specdec.types import Proposal, Rows, Verdict


def simulated(rule, alpha: float) -> jax.tree_util.Partial:
    """A rule for `speculative_decode(verify_fn=...)`; another alpha compiles nothing.

    Args:
      rule: of `verification`, whose work is done.
      alpha: probability that a draft stands.

    Raises:
      ValueError: if alpha lies outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: must lie in [0, 1]")
    return jax.tree_util.Partial(_simulate, jax.tree_util.Partial(rule), jnp.float32(alpha))


def _simulate(rule, alpha, target: Rows, proposal: Proposal, key: jax.Array) -> Verdict:
    for_rule, for_draws = jax.random.split(key)
    real = rule(target, proposal, for_rule)
    stands = jax.random.uniform(for_draws, proposal.tokens.shape) < alpha
    n_accepted = jnp.minimum(first_true(~stands), proposal.num_drafted)
    return Verdict(n_accepted.astype(jnp.int32), real.next_token)
