"""Reads and writes at per-row positions: the only index arithmetic in the library.

Dimensions: B batch, L buffer length, T block length.

Buffers have a static length and rows that fill at their own pace. A block is written by
overwriting; rolling back is passing a smaller position next time.
"""

import jax
import jax.numpy as jnp
from jax import lax


def write_at(
    buffer: jax.Array, block: jax.Array, positions: jax.Array, *, axis: int = 1
) -> jax.Array:
    """Overwrites `buffer[b, positions[b] + t]` with `block[b, t]`.

    Example: buffer [[0, 0, 0, 0]], block [[7, 8]], positions [1] -> [[0, 7, 8, 0]].

    Args:
      buffer: [B, L, ...], or with the slots along another axis.
      block: [B, T, ...] likewise, T <= L.
      positions: [B] int32. The caller keeps positions + T <= L: `dynamic_update_slice` would
        clamp silently, which is why the loops check their buffer lengths at trace time.
      axis: of the slots.

    Returns:
      The buffer with the block written.

    Raises:
      ValueError: if the block is longer than the buffer.
    """
    if block.shape[axis] > buffer.shape[axis]:
        raise ValueError(
            f"a block of {block.shape[axis]} does not fit a buffer of {buffer.shape[axis]}"
        )
    block = block.astype(buffer.dtype)
    if buffer.shape[0] == 1:
        # One row: a plain slice update, which XLA does in place. Batched, it becomes a scatter.
        return lax.dynamic_update_slice_in_dim(buffer, block, positions[0], axis)

    def write_row(row, values, start):
        return lax.dynamic_update_slice_in_dim(row, values, start, axis - 1)

    return jax.vmap(write_row)(buffer, block, positions)


def read_at(buffer: jax.Array, positions: jax.Array, length: int) -> jax.Array:
    """Returns `buffer[b, positions[b] : positions[b] + length]` for every row.

    Example: buffer [[5, 6, 7, 8]], positions [2], length 2 -> [[7, 8]].

    Args:
      buffer: [B, L, ...].
      positions: [B] int32, with positions + length <= L.
      length: static T.

    Returns:
      [B, T, ...].
    """
    return jax.vmap(lambda row, start: lax.dynamic_slice_in_dim(row, start, length, 0))(
        buffer, positions
    )


def prefix_mask(lengths: jax.Array, size: int) -> jax.Array:
    """True in the first `lengths[b]` of `size` slots: lengths [B] -> [B, size] bool."""
    return jnp.arange(size) < lengths[:, None]


def first_true(mask: jax.Array) -> jax.Array:
    """Index of the first True along the last axis, or that axis' size where there is none.

    Example: [[False, True, True], [False, False, False]] -> [1, 3].
    """
    size = mask.shape[-1]
    return jnp.min(jnp.where(mask, jnp.arange(size), size), axis=-1, initial=size)


def last_token(tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """The last decided token of every row: tokens [B, L], lengths [B] (>= 1) -> [B]."""
    return read_at(tokens, lengths - 1, 1)[:, 0]
