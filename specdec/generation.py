"""What a decoding loop has produced so far, and the one stop rule of both loops.

Dimensions: B batch, P prompt length, N max_new_tokens, L = P + N + slack, T block length.
"""

import flax
import jax
import jax.numpy as jnp

from specdec.buffers import first_true, prefix_mask, read_at, write_at
from specdec.types import Context

# stop_reason
RUNNING, EOS, LENGTH = 0, 1, 2

# origin of a token: written by nobody, taken from the draft, put in place of a rejected draft
# token, or added by the target after all that was drafted (plain decoding: every token).
NONE, DRAFT, CORRECTION, BONUS = 0, 1, 2, 3


@flax.struct.dataclass
class Columns:
    """One entry a token.

    Attributes:
      tokens: [B, T] int32.
      origins: [B, T] int8.
      log_probs: [B, T] float32, natural log, of the law that the loop samples from.
      model_log_probs: [B, T] float32, of the model itself (temperature 1, no filter).
    """

    tokens: jax.Array
    origins: jax.Array
    log_probs: jax.Array
    model_log_probs: jax.Array


@flax.struct.dataclass
class Generation:
    """Rows that grow at their own pace.

    Attributes:
      columns: [B, L] each; prompt first; garbage at and beyond a row's length.
      lengths: [B] int32, prompt included.
      prompt_lengths: [B] int32.
      limits: [B] int32, new tokens a row may have at most.
      stop_reasons: [B] int32: RUNNING, EOS or LENGTH.
    """

    columns: Columns
    lengths: jax.Array
    prompt_lengths: jax.Array
    limits: jax.Array
    stop_reasons: jax.Array

    @property
    def size(self) -> int:
        """Slots of a row, L."""
        return self.columns.tokens.shape[1]

    @property
    def running(self) -> jax.Array:
        """[B] bool."""
        return self.stop_reasons == RUNNING

    @property
    def context(self) -> Context:
        return Context(self.columns.tokens, self.lengths, self.prompt_lengths)


def start(
    prompt: jax.Array, prompt_lengths: jax.Array, limits: jax.Array, buffer_length: int
) -> Generation:
    """A Generation that holds prompts [B, P] only. Rows with a limit of 0 or less are done."""

    def column(dtype):
        return jnp.zeros((prompt.shape[0], buffer_length), dtype)

    tokens = column(jnp.int32).at[:, : prompt.shape[1]].set(prompt)
    columns = Columns(tokens, column(jnp.int8), column(jnp.float32), column(jnp.float32))
    stop_reasons = jnp.where(limits > 0, RUNNING, LENGTH)
    return Generation(columns, prompt_lengths, prompt_lengths, limits, stop_reasons)


def append(
    generation: Generation, block: Columns, num_new: jax.Array, eos_id: int
) -> tuple[Generation, jax.Array]:
    """Appends the first `num_new[b]` entries of a block, cut after EOS and at the row's limit.

    Example: limit 5 with 3 tokens decided, block [6, EOS, 8], num_new 3: 2 are appended and the
    row stops for EOS; had the block been [6, 7, EOS], 2 and the row stops for its length.

    Args:
      generation: see `Generation`.
      block: columns of [B, T].
      num_new: [B] int32, at most T.
      eos_id: ends a row; it counts as a token of the row.

    Returns:
      The generation, and how many tokens each row got, [B] int32; 0 for rows that were done.
    """
    g = generation
    columns = jax.tree.map(lambda buffer, new: write_at(buffer, new, g.lengths), g.columns, block)
    is_new = prefix_mask(num_new, block.tokens.shape[1])
    up_to_eos = first_true((block.tokens == eos_id) & is_new) + 1
    room = g.prompt_lengths + g.limits - g.lengths
    num = jnp.minimum(jnp.minimum(num_new, up_to_eos), room)
    num = jnp.where(g.running, num, 0).astype(jnp.int32)
    reasons = jnp.where(num == up_to_eos, EOS, jnp.where(num == room, LENGTH, RUNNING))
    reasons = jnp.where(g.running, reasons, g.stop_reasons)
    return g.replace(columns=columns, lengths=g.lengths + num, stop_reasons=reasons), num


@flax.struct.dataclass
class Decoded:
    """The result of a decoding loop. The prompt is left out; N = max_new_tokens.

    Attributes:
      tokens: [B, N] int32, pad_id beyond a row's length.
      lengths: [B] int32, EOS included.
      stop_reasons: [B] int32: EOS or LENGTH.
      origins: [B, N] int8: DRAFT, CORRECTION or BONUS; NONE beyond the length.
      log_probs, model_log_probs: [B, N] float32, 0 beyond the length; see `Columns`.
      num_target_calls: [B] int32, decoder passes of the target while the row was running (the
        pass over a prompt of more than one token, which happens once, not counted).
      speculation: SpeculationCounts, or None after plain decoding.
    """

    tokens: jax.Array
    lengths: jax.Array
    stop_reasons: jax.Array
    origins: jax.Array
    log_probs: jax.Array
    model_log_probs: jax.Array
    num_target_calls: jax.Array
    speculation: "SpeculationCounts | None" = None


@flax.struct.dataclass
class SpeculationCounts:
    """Raw counts of speculative decoding; alpha and the like are derived in `metrics`.

    Nothing past EOS or a row's limit is counted, and a row that is done counts nothing.

    Attributes:
      accept_counts: [B, N] int32, accepted draft tokens of each round, -1 where there was none.
      num_tested: [B] int32, draft tokens tested: up to and including a round's first rejection.
      num_drafted: [B] int32.
      num_draft_calls: [B] int32, runs of the draft model.
      betas: [B, N] float32, sum_x min(p, q) at the token's slot; NaN where no draft was tested.
    """

    accept_counts: jax.Array
    num_tested: jax.Array
    num_drafted: jax.Array
    num_draft_calls: jax.Array
    betas: jax.Array


def finish(
    generation: Generation,
    num_target_calls: jax.Array,
    *,
    max_new_tokens: int,
    pad_id: int,
    speculation: SpeculationCounts | None = None,
) -> Decoded:
    """Takes the new tokens out of the buffers and blanks what lies beyond each row's length."""
    g = generation
    lengths = g.lengths - g.prompt_lengths
    is_real = prefix_mask(lengths, max_new_tokens)

    def new(buffer, blank):
        return jnp.where(is_real, read_at(buffer, g.prompt_lengths, max_new_tokens), blank)

    return Decoded(
        tokens=new(g.columns.tokens, pad_id),
        lengths=lengths,
        stop_reasons=g.stop_reasons,
        origins=new(g.columns.origins, NONE).astype(jnp.int8),
        log_probs=new(g.columns.log_probs, 0.0),
        model_log_probs=new(g.columns.model_log_probs, 0.0),
        num_target_calls=num_target_calls,
        speculation=speculation,
    )
