"""What is fixed when a loop is compiled, and the checks made before it is."""

import dataclasses
import numbers
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class SpecConfig:
    """Static settings of a decoding loop. Plain decoding ignores gamma.

    Attributes:
      gamma: tokens drafted per round.
      max_new_tokens: room for new tokens, N; a row's own limit may be lower.
      eos_id: ends a row.
      pad_id: written beyond a row's end. It has no meaning inside one.
      num_ids: ids that exist, where the vocabulary table has padding rows beyond them; those are
        never emitted. None = all of the target's table.
      cache_length: slots of buffers and caches, if more than needed are wanted (so that several
        lengths share a program). None = what is needed.

    Raises:
      ValueError: for gamma < 0 or max_new_tokens < 1, or what is no whole number.
    """

    gamma: int = 4
    max_new_tokens: int = 128
    eos_id: int = 1
    pad_id: int = 0
    num_ids: int | None = None
    cache_length: int | None = None

    def __post_init__(self):
        check_count("gamma", self.gamma, least=0)
        check_count("max_new_tokens", self.max_new_tokens, least=1)


def check_count(name: str, value: Any, *, least: int) -> None:
    """Raises a ValueError that names the setting, unless it is a whole number, `least` or more."""
    if not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r}: must be a whole number, {least} or more")


def buffer_length(config: SpecConfig, prompt_length: int, slack: int) -> int:
    """Slots that prompt, new tokens and `slack` need, or the config's own number if that suffices.

    A block is written at a row's position even when the row is about to stop, hence the slack:
    gamma + 1 in speculative decoding, 1 in plain.

    Raises:
      ValueError: if the configured cache_length is too short: writes would be clamped silently.
    """
    needed = prompt_length + config.max_new_tokens + slack
    if config.cache_length is None:
        return needed
    if config.cache_length < needed:
        raise ValueError(
            f"cache_length={config.cache_length} < prompt {prompt_length} + max_new_tokens "
            f"{config.max_new_tokens} + {slack} = {needed}: raise cache_length or leave it out"
        )
    return config.cache_length


# Tables of one vocabulary may be padded differently, to a multiple of at most 128 (T5's 32100
# pieces come in tables of 32100 and 32128).
_MOST_PADDING = 128


def checked_num_ids(config: SpecConfig, target: Any, drafter: Any | None = None) -> int:
    """Ids that may be emitted, after checking that target and draft share a vocabulary.

    Raises:
      ValueError: for an eos_id or num_ids outside the target's table, or for tables that differ by
        more than padding.
    """
    num_ids = target.vocab_size if config.num_ids is None else config.num_ids
    if not 0 < num_ids <= target.vocab_size:
        raise ValueError(f"num_ids={num_ids}: must lie in 1..{target.vocab_size}, the target's ids")
    if not 0 <= config.eos_id < num_ids:
        raise ValueError(f"eos_id={config.eos_id}: must lie in 0..{num_ids - 1}")
    if drafter is not None and abs(target.vocab_size - drafter.vocab_size) >= _MOST_PADDING:
        raise ValueError(
            f"the target has {target.vocab_size} ids and the draft {drafter.vocab_size}: more than "
            "padding rows apart, so these are two vocabularies; a draft must share the target's"
        )
    return num_ids


def checked_requests(
    prompt: jax.Array, prompt_lengths: jax.Array | None, limits, keys: jax.Array, config: SpecConfig
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The prompt, its lengths and the rows' limits as arrays of one batch.

    Raises:
      ValueError: for shapes that don't agree or keys that aren't typed keys.
    """
    if prompt.ndim != 2 or prompt.shape[1] < 1:
        raise ValueError(
            f"prompt has shape {prompt.shape}: must be [B, P] with P >= 1; T5 starts from one "
            "token, 0 (decoder_start)"
        )
    batch_size = prompt.shape[0]
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) or keys.shape != (batch_size,):
        raise ValueError(
            f"keys have dtype {keys.dtype} and shape {keys.shape}: must be {batch_size} typed "
            "keys, one a row, as jax.random.split(jax.random.key(seed), B) gives"
        )
    if prompt_lengths is None:
        prompt_lengths = jnp.full(batch_size, prompt.shape[1])
    limits = config.max_new_tokens if limits is None else jnp.minimum(limits, config.max_new_tokens)
    return (
        prompt.astype(jnp.int32),
        jnp.broadcast_to(prompt_lengths, (batch_size,)).astype(jnp.int32),
        jnp.broadcast_to(limits, (batch_size,)).astype(jnp.int32),
    )
