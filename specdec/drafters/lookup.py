"""Drafting by copying from the context: section 3.6 of arXiv 2211.17192, known as prompt lookup.

Dimensions: B batch, E source length, L buffer length, N text length, G gamma, V vocabulary.

The last tokens decided are looked up in the source and in the output so far; what follows them
there is proposed. The longest match counts, of the longest the first, the source before the output.
Where nothing matches nothing is drafted: a plain step. q is one-hot, so a draft stands with p(x).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.buffers import read_at
from specdec.drafters.model import up_to_eos
from specdec.types import Context, EncoderInputs, Proposal

_NOTHING, _NO_TOKEN = -1, -2  # equal to no token, nor to each other


@dataclasses.dataclass(frozen=True)
class CopyDrafter:
    """Copies; no parameters, no runs of a model.

    Attributes:
      vocab_size: of the target.
      longest, shortest: tokens that must match, 3 down to 1 by default.

    Raises:
      ValueError: unless 1 <= shortest <= longest.
    """

    vocab_size: int
    longest: int = 3
    shortest: int = 1

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"shortest={self.shortest}, longest={self.longest}: take 1 <= shortest <= longest"
            )

    def init(
        self, params, inputs, prompt, target_cache, *, cache_length: int
    ) -> EncoderInputs | tuple:
        """The source to copy from; models without one copy from what they have decoded."""
        del params, prompt, target_cache, cache_length
        return inputs if isinstance(inputs, EncoderInputs) else ()

    def propose(
        self,
        params: Any,
        state: EncoderInputs | tuple,
        context: Context,
        keys: jax.Array,
        *,
        settings: Any,
        config: Any,
    ) -> tuple[Proposal, EncoderInputs | tuple]:
        """Up to gamma tokens: what follows the match, to its text's end or to EOS."""
        del params, keys, settings
        gamma = config.gamma
        suffix = _last(context, self.longest)
        matched, tokens, available = _continuation(*context[:2], suffix, gamma)
        if isinstance(state, EncoderInputs):
            in_source = _continuation(*state, suffix, gamma)
            is_better = in_source[0] >= matched
            tokens = jnp.where(is_better[:, None], in_source[1], tokens)
            available = jnp.where(is_better, in_source[2], available)
            matched = jnp.maximum(matched, in_source[0])
        num_drafted = jnp.minimum(jnp.minimum(available, gamma), up_to_eos(tokens, config.eos_id))
        is_match = matched >= self.shortest
        proposal = Proposal(
            tokens=tokens,
            probs=jax.nn.one_hot(tokens, self.vocab_size, dtype=jnp.float32),
            num_drafted=jnp.where(is_match, num_drafted, 0).astype(jnp.int32),
            num_calls=jnp.zeros_like(context.lengths),
        )
        return proposal, state


def _continuation(
    text: jax.Array, lengths: jax.Array, suffix: jax.Array, gamma: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of the first of the longest matches: its length, the gamma tokens after it, how many exist.

    text [B, N], lengths [B], suffix [B, n] -> [B], [B, G], [B].
    """
    matched = jax.vmap(match_lengths)(text, lengths, suffix)
    slots = jnp.argmax(matched, axis=1)
    room = jnp.pad(text, [(0, 0), (0, gamma)])
    return matched.max(axis=1), read_at(room, slots + 1, gamma), lengths - slots - 1


def match_lengths(text: jax.Array, length: jax.Array, suffix: jax.Array) -> jax.Array:
    """How many of a suffix's last tokens stand in a text up to each slot, and are followed by more.

    Example: text [5, 6, 7, 5, 6], length 5, suffix [9, 5, 6] -> [0, 2, 0, 0, 0]: 5 6 stands up to
    slot 1; at slot 4, too, but there nothing follows.

    Args:
      text: [N] int32; what lies at and beyond `length` has no meaning.
      length: [] int32.
      suffix: [n] int32.

    Returns:
      [N] int32, 0 to n.
    """
    size = text.shape[0]
    padded = jnp.pad(text, (suffix.shape[0], 0), constant_values=_NOTHING)
    matched, run = jnp.zeros(size, jnp.int32), jnp.ones(size, bool)
    for back in range(suffix.shape[0]):
        start = suffix.shape[0] - back
        run &= padded[start : start + size] == suffix[-1 - back]
        matched += run
    return jnp.where(jnp.arange(size) + 1 < length, matched, 0)


def _last(context: Context, size: int) -> jax.Array:
    """The last `size` decided tokens of every row [B, size], _NO_TOKEN before the first."""
    padded = jnp.pad(context.tokens, [(0, 0), (size, 0)], constant_values=_NO_TOKEN)
    return read_at(padded, context.lengths, size)
