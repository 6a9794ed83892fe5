"""From logits to probabilities to tokens: the one place where logits become p and q.

Dimensions: B batch, T block length, L buffer length, V vocabulary.

One order for target, draft and plain decoding: repetition penalty, banned ids and minimum length,
then temperature, then top-k, then top-p on what top-k left, renormalised (section 2.2 of arXiv
2211.17192 calls this standardised sampling). Ties go to the lowest id: in argmax, in top-k
(exactly k stay) and in top-p (the token that crosses the mass stays).

What a filter's value is, is traced; whether it is on, is not. So another temperature or top-p
compiles nothing, and a filter that is off costs nothing.
"""

import math

import flax
import jax
import jax.numpy as jnp
import numpy as np

from specdec.buffers import first_true
from specdec.types import Context, Rows


@flax.struct.dataclass
class Settings:
    """How logits are standardised. Made by `settings`, which checks the values.

    Attributes:
      temperature: [] float32; None is temperature 0, the argmax as a one-hot row.
      top_k: [] int32, or None for off.
      top_p: [] float32, or None for off.
      min_new_tokens: [] int32, tokens before which EOS is banned, or None.
      repetition_penalty: [] float32, or None: logits of tokens in the context are divided by it
        where positive and multiplied where negative (arXiv 1909.05858, section 4.1).
    """

    temperature: jax.Array | None
    top_k: jax.Array | None
    top_p: jax.Array | None
    min_new_tokens: jax.Array | None
    repetition_penalty: jax.Array | None


def settings(
    temperature: float = 1.0,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_new_tokens: int = 0,
    repetition_penalty: float | None = None,
) -> Settings:
    """Checked sampling settings; call it outside jit.

    Raises:
      ValueError: for a temperature that is negative or not finite, top_k < 1, top_p outside
        (0, 1], min_new_tokens < 0, a repetition penalty <= 0, or any that is no number.
    """
    given = dict(temperature=temperature, top_k=top_k, top_p=top_p)
    given |= dict(min_new_tokens=min_new_tokens, repetition_penalty=repetition_penalty)
    for name, value in given.items():
        if value is not None and (np.ndim(value) or np.asarray(value).dtype.kind not in "iuf"):
            raise ValueError(f"{name}={value!r}: must be one number")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature={temperature}: must be 0 (greedy) or a positive number")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k}: must be 1 or more; leave it out for no top-k")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p}: must lie in (0, 1]; leave it out for no top-p")
    if min_new_tokens < 0:
        raise ValueError(f"min_new_tokens={min_new_tokens}: must be 0 or more")
    if repetition_penalty is not None and not repetition_penalty > 0:
        raise ValueError(f"repetition_penalty={repetition_penalty}: must be above 0; 1 is off")

    def traced(value, dtype):
        return None if value is None else jnp.asarray(value, dtype)

    is_greedy = temperature == 0
    return Settings(
        temperature=None if is_greedy else traced(temperature, jnp.float32),
        # Neither filter can remove the argmax, so greedy decoding needs neither.
        top_k=None if is_greedy else traced(top_k, jnp.int32),
        top_p=None if is_greedy else traced(top_p, jnp.float32),
        min_new_tokens=traced(min_new_tokens or None, jnp.int32),
        repetition_penalty=traced(repetition_penalty, jnp.float32),
    )


def standardize(
    logits: jax.Array, settings: Settings, context: Context, *, eos_id: int, num_ids: int
) -> Rows:
    """The rows p (or q) for the tokens that follow a context.

    Args:
      logits: [B, T, V]. Row t predicts slot context.lengths + t.
      settings: see `Settings`.
      context: its `tokens` must hold what the T rows were computed on, drafts included: row t's
        history is tokens[: lengths + t].
      eos_id: end of sequence, banned before `min_new_tokens`.
      num_ids: ids that exist; the rows of a vocabulary table beyond it are padding and get 0.

    Returns:
      Rows of [B, T, V] float32.
    """
    logits = allowed_logits(logits, settings, context, eos_id=eos_id, num_ids=num_ids)
    return Rows(adjusted_probs(logits, settings), jax.nn.softmax(logits, axis=-1))


def allowed_logits(
    logits: jax.Array, settings: Settings, context: Context, *, eos_id: int, num_ids: int
) -> jax.Array:
    """logits [B, T, V] after penalty and bans: -inf for ids that may not be emitted."""
    logits = logits.astype(jnp.float32)
    ids = jnp.arange(logits.shape[-1])
    slots = context.lengths[:, None] + jnp.arange(logits.shape[1])  # [B, T]
    if settings.repetition_penalty is not None:
        seen = _first_slots(context.tokens, logits.shape[-1])[:, None, :] < slots[:, :, None]
        penalty = settings.repetition_penalty
        penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
        logits = jnp.where(seen, penalised, logits)
    if num_ids < logits.shape[-1]:
        logits = jnp.where(ids < num_ids, logits, -jnp.inf)
    if settings.min_new_tokens is not None:
        too_early = slots - context.prompt_lengths[:, None] < settings.min_new_tokens
        logits = jnp.where(too_early[:, :, None] & (ids == eos_id), -jnp.inf, logits)
    return logits


def _first_slots(tokens: jax.Array, vocab_size: int) -> jax.Array:
    """The first slot of every id in tokens [B, L], L where it doesn't occur -> [B, V]."""
    size = tokens.shape[1]
    never = jnp.full(vocab_size, size)
    return jax.vmap(lambda row: never.at[row].min(jnp.arange(size)))(tokens)


def adjusted_probs(logits: jax.Array, settings: Settings) -> jax.Array:
    """Temperature, top-k and top-p: logits [..., V] -> probabilities [..., V]."""
    if settings.temperature is None:
        return jax.nn.one_hot(argmax(logits), logits.shape[-1], dtype=jnp.float32)
    # Relative to the largest, so that no temperature, however low, makes inf - inf.
    logits = (logits - logits.max(-1, keepdims=True)) / settings.temperature
    if settings.top_k is not None or settings.top_p is not None:
        logits = jnp.where(_kept(logits, settings), logits, -jnp.inf)
    return jax.nn.softmax(logits, axis=-1)


def _kept(logits: jax.Array, settings: Settings) -> jax.Array:
    """Which ids top-k, then top-p on the renormalised rest, leave: [..., V] bool.

    Example: probabilities [.4 .3 .2 .1] with top_p .65 keep ids 0 and 1: .4 is short of .65, and
    the token that crosses it stays.
    """
    order = jnp.argsort(logits, axis=-1, descending=True, stable=True)  # ties: lowest id first
    descending = jnp.take_along_axis(logits, order, axis=-1)
    keep = jnp.ones_like(descending, dtype=bool)
    if settings.top_k is not None:
        keep = jnp.broadcast_to(jnp.arange(logits.shape[-1]) < settings.top_k, keep.shape)
    if settings.top_p is not None:
        probs = jax.nn.softmax(jnp.where(keep, descending, -jnp.inf), axis=-1)
        mass_before = jnp.cumsum(probs, axis=-1) - probs
        # The first token always stays. At top_p = 1 all do: a rounded sum may reach 1 too early.
        is_short = (mass_before < settings.top_p) | (settings.top_p >= 1)
        keep &= is_short.at[..., 0].set(True)
    return jnp.put_along_axis(jnp.zeros_like(keep), order, keep, axis=-1, inplace=False)


def argmax(x: jax.Array) -> jax.Array:
    """The lowest index of the largest entry along the last axis: [..., V] -> [...] int32.

    Two reductions that vectorise; XLA's own argmax carries pairs and takes thirty times as long on
    a CPU, longer than a run of a small draft.
    """
    first = first_true(x == x.max(-1, keepdims=True))
    return jnp.minimum(first, x.shape[-1] - 1).astype(jnp.int32)  # a row of NaN has no largest


# Width of the blocks in which `sample` looks for its token.
_BLOCK = 128


def sample(probs: jax.Array, uniform: jax.Array) -> jax.Array:
    """The id at which the cumulative distribution passes `uniform`.

    Example: probs [.2, .5, .3] and uniforms 0, .19, .2, .69, .7 -> ids 0, 0, 1, 1, 2.

    One uniform number draws a token, so a row's randomness is a handful of numbers, and a test can
    enumerate it. Ids of probability 0 are never returned, whatever the sums round to. The search
    is in two steps, over the sums of blocks and inside one block: a running sum over a whole
    vocabulary is slow.

    Args:
      probs: [V], at least one entry above 0; normalised up to rounding.
      uniform: [] in [0, 1).

    Returns:
      [] int32.
    """
    width = min(_BLOCK, probs.shape[0])
    blocks = jnp.pad(probs, (0, -probs.shape[0] % width)).reshape(-1, width)
    masses = blocks.sum(-1)
    block, rest = _passing(masses, uniform * masses.sum())
    slot, _ = _passing(blocks[block], rest)
    return (block * width + slot).astype(jnp.int32)


def _passing(masses: jax.Array, threshold: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Index at which the running sum of masses [N] passes a threshold, and what is left of it.

    It is always an index of positive mass: the last, if rounding lets the sum fall short.
    """
    cumulative = jnp.cumsum(masses)
    is_possible = masses > 0
    first = first_true(is_possible & (cumulative > threshold))
    last = jnp.max(jnp.where(is_possible, jnp.arange(masses.shape[0]), 0))
    index = jnp.minimum(first, last)
    return index, threshold - (cumulative[index] - masses[index])


def uniforms(key: jax.Array, size: int) -> jax.Array:
    """Independent numbers in [0, 1): [size]. One call for many: on a CPU a call costs 20 us."""
    return jax.random.uniform(key, (size,))


def sample_rows(probs: jax.Array, settings: Settings, uniform: jax.Array) -> jax.Array:
    """A token for every row: probs [..., V], uniform [...] -> [...] int32.

    Temperature 0 draws none.
    """
    if settings.temperature is None:
        return argmax(probs)
    draw = sample
    for _ in uniform.shape:
        draw = jax.vmap(draw)
    return draw(probs, uniform)


def log_probs_of(probs: jax.Array, tokens: jax.Array) -> jax.Array:
    """Natural logarithm of the tokens' probabilities: probs [B, T, V], tokens [B, T] -> [B, T]."""
    return jnp.log(jnp.take_along_axis(probs, tokens[..., None], axis=-1)[..., 0])
