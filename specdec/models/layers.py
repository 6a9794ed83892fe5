"""Layers that the models share. Parameter names are t5x's.

Dimensions: B batch, T decoder block, S cache slots, D model width, H heads, K width of a head,
V vocabulary.

A cache slot s is visible to query t of a block at position n iff s <= n + t. Blocks are written by
overwriting, so what lies beyond a row's position is garbage by definition and never attended to.
"""

from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from specdec.buffers import write_at
from specdec.kernels import few_rows, mixed
from specdec.kernels.attention import MASKED, attend
from specdec.sharding import constrain

# Logical axes of keys and values, see `specdec.sharding`.
BY_HEAD = ("batch", "heads", None, None)


class Config(Protocol):
    """What the layers read of a model's configuration, see `t5.T5Config`."""

    vocab_size: int
    d_model: int
    d_ff: int
    num_heads: int
    head_dim: int
    num_buckets: int
    max_distance: int
    dropout_rate: float
    mixed_precision: bool
    remat: bool
    dtype: Any


def checked_dtype(dtype: Any) -> jnp.dtype:
    """One spelling of float32 or bfloat16.

    np.dtype("float32") == jnp.float32, but their hashes differ, and jit would compile equal
    configurations twice.

    Raises:
      ValueError: for another one.
    """
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(
            f"dtype={dtype.name}: models run in float32 or bfloat16 (float16 overflows in T5's "
            "feed-forward layers)"
        )
    return dtype


def precision_of(dtype: Any) -> lax.Precision:
    """float32 means float32: JAX's default is TF32 on GPUs and bfloat16 passes on TPUs."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


def relative_position_bucket(
    distance: jax.Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
    """Bucket of each (key position - query position): exact when near, logarithmic when far.

    Example: causal, 32 buckets, distances 0, -1, -15, -16, -127, -1000 -> 0, 1, 15, 16, 31, 31.
    """
    bucket = jnp.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        bucket = jnp.where(distance > 0, num_buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    num_exact = num_buckets // 2
    # The same float32 expression as t5x and Hugging Face: another order of operations moves the
    # edges of the buckets.
    log_ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / num_exact) / jnp.log(
        max_distance / num_exact
    )
    far = num_exact + (log_ratio * (num_buckets - num_exact)).astype(jnp.int32)
    return bucket + jnp.where(distance < num_exact, distance, jnp.minimum(far, num_buckets - 1))


class RelativePositionBias(nn.Module):
    """Learned bias of attention scores by bucketed distance."""

    config: Config
    bidirectional: bool

    @nn.compact
    def __call__(self, distance: jax.Array) -> jax.Array:
        """distance [...] int32 (key - query) -> bias [H, ...] float32."""
        table = self.param(
            "rel_embedding",
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
            (self.config.num_heads, self.config.num_buckets),
            jnp.float32,
        )
        bucket = relative_position_bucket(
            distance,
            bidirectional=self.bidirectional,
            num_buckets=self.config.num_buckets,
            max_distance=self.config.max_distance,
        )
        return table.astype(jnp.float32)[:, bucket]


class RMSNorm(nn.Module):
    """T5's layer norm: no mean, no bias, float32 inside."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        x = x.astype(jnp.float32)
        x = x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
        return (x * scale.astype(jnp.float32)).astype(self.dtype)


def dense(config: Config, features: int, init_scale: float = 1.0, name=None) -> nn.Dense:
    kernel_init = nn.initializers.variance_scaling(init_scale, "fan_in", "truncated_normal")
    return nn.Dense(
        features,
        use_bias=False,
        dtype=config.dtype,
        precision=precision_of(config.dtype),
        dot_general=(mixed if config.mixed_precision else few_rows).dot_general,
        promote_dtype=_promote,
        kernel_init=kernel_init,
        name=name,
    )


def _promote(x, kernel, bias, *, dtype, **_):
    """What Dense multiplies: bfloat16 weights stay narrow, the product widens them."""
    return x.astype(dtype), weights_in(kernel, dtype), bias


def weights_in(w: jax.Array, dtype: Any) -> jax.Array:
    return w if w.dtype == jnp.bfloat16 else w.astype(dtype)


def layer_of(layer_type: type[nn.Module], config: Config, *, deterministic_at: int) -> nn.Module:
    """A layer whose inner values, with `config.remat`, are computed again for gradients.

    Gradients are the same; between its forward and its backward pass a layer then keeps its input
    alone, for one more forward pass (gradient checkpointing, arXiv 1604.06174). XLA's compiler for
    CPUs merges both forward passes again, so nothing is saved there.

    Args:
      layer_type: a module over `config`.
      config: see `t5.T5Config`.
      deterministic_at: which argument of its __call__, self counted, is a Python bool.
    """
    if config.remat:
        layer_type = nn.remat(layer_type, static_argnums=(deterministic_at,))
    return layer_type(config)


def dropout(config: Config) -> nn.Dropout:
    # One mask for all positions of a row, as t5x has it: random numbers cost much on a CPU.
    return nn.Dropout(config.dropout_rate, broadcast_dims=(-2,))


class Attention(nn.Module):
    """Multi-head attention. No 1/sqrt(K): T5 learns it."""

    config: Config

    def setup(self):
        config = self.config
        width = config.num_heads * config.head_dim
        # The missing 1/sqrt(K) of the scores sits in the query's initial scale.
        self.query = dense(config, width, init_scale=1.0 / config.head_dim)
        self.key = dense(config, width)
        self.value = dense(config, width)
        self.out = dense(config, config.d_model)

    def keys_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x [B, S, D] -> keys, values [B, H, S, K]. Heads first: attention then copies nothing."""
        return self._by_head(self.key(x)), self._by_head(self.value(x))

    def to_all(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Self-attention of x [B, T, D] in both directions, bias broadcasting to [B, H, T, T]."""
        config = self.config
        keys, values = self.keys_values(x)
        scores = jnp.einsum(
            "bhtk,bhsk->bhts",
            self._by_head(self.query(x)),
            keys,
            precision=precision_of(config.dtype),
            preferred_element_type=jnp.float32,
        )
        # Replaced, not lowered: an invisible key may hold NaN, and NaN - 1e10 is NaN.
        scores = jnp.where(bias > MASKED, scores + bias, MASKED)
        weights = nn.softmax(scores, axis=-1).astype(config.dtype)
        mixed = jnp.einsum("bhts,bhsk->bthk", weights, values, precision=precision_of(config.dtype))
        return self.out(mixed.reshape(*x.shape[:2], -1))

    def extend(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        positions: jax.Array,
        bias: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Self-attention of a block to itself and what came before it.

        Args:
          x: [B, T, D], at positions [B].
          keys, values: [B, H, S, K] of the tokens so far.
          bias: [H, S] by distance, see `attend`.

        Returns:
          x [B, T, D], keys and values with the block's T slots written.
        """
        block_keys, block_values = self.keys_values(x)
        keys = write_at(keys, block_keys, positions, axis=2)
        values = write_at(values, block_values, positions, axis=2)
        visible = positions[:, None] + 1 + jnp.arange(x.shape[1])
        return self.to_cache(x, keys, values, visible, bias), keys, values

    def to_cache(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        visible: jax.Array,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, T, D] to keys and values [B, H, S, K], of which it sees the first, see `attend`."""
        precision = precision_of(self.config.dtype)
        return self.out(attend(self.query(x), keys, values, visible, bias, precision=precision))

    def _by_head(self, x: jax.Array) -> jax.Array:
        """[B, S, H * K] -> [B, H, S, K]."""
        x = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
        return constrain(jnp.swapaxes(x, 1, 2), *BY_HEAD)


class FeedForward(nn.Module):
    """Two dense layers; gated, the first has a twin that its activation is multiplied by."""

    config: Config
    activation: Callable[[jax.Array], jax.Array]
    gated: bool

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        config = self.config
        hidden = self.activation(dense(config, config.d_ff, name="wi_0" if self.gated else "wi")(x))
        if self.gated:
            hidden = hidden * dense(config, config.d_ff, name="wi_1")(x)
        hidden = dropout(config)(hidden, deterministic=deterministic)
        hidden = constrain(hidden, "batch", "length", "mlp")
        return dense(config, config.d_model, name="wo")(hidden)


def token_embedder(config: Config) -> nn.Embed:
    return nn.Embed(
        config.vocab_size,
        config.d_model,
        dtype=config.dtype,
        embedding_init=nn.initializers.normal(1.0),
    )


def empty_slots(
    config: Config, num_rows: int, size: int, layer: int
) -> tuple[jax.Array, jax.Array]:
    """Keys and values [B, H, S, K] of a layer that has seen nothing."""
    shape = (num_rows, config.num_heads, size, config.head_dim)
    # Garbage of its own for every buffer: of equal ones XLA makes one, and copies it.
    keys, values = (jnp.full(shape, 2 * layer + i, config.dtype) for i in range(2))
    return constrain(keys, *BY_HEAD), constrain(values, *BY_HEAD)


def embedded(tokens: jax.Array, table: jax.Array, dtype: Any) -> jax.Array:
    """Rows of a table [V, D] for tokens [B, T] -> [B, T, D].

    An id outside the table (a target's, fed to a draft with fewer rows; padding that is no id)
    would come back as NaN, and spoil rows that must not see it.
    """
    known = jnp.clip(tokens, 0, table.shape[0] - 1)
    # Rows first, then their type: flax's Embed would convert the whole table.
    return constrain(table[known].astype(dtype), "batch", "length", "embed")


def head_product(
    config: Config,
    x: jax.Array,
    head: jax.Array,
    *,
    is_table: bool = False,
    num_logits: int | None = None,
) -> jax.Array:
    """Logits of the first ids, by default all.

    Args:
      config: of the model.
      x: [..., D].
      head: [D, V], or an embedding table [V, D].
      is_table: which of the two.
      num_logits: how many ids, None = V.

    Returns:
      [..., num_logits] float32.
    """
    if config.mixed_precision:
        used = head[:num_logits] if is_table else head[:, :num_logits]
        return mixed.product(x, used, is_table)
    head = weights_in(head, config.dtype)
    types = dict(precision=precision_of(config.dtype), preferred_element_type=jnp.float32)
    if is_table:
        logits = few_rows.product_with_rows(x, head, num_logits, **types)
    else:
        logits = few_rows.product(x, head[:, :num_logits], **types)
    # Where the head lies, then whole rows, which sampling needs: they travel, not the head.
    return constrain(constrain(logits, "batch", "length", "vocab"), "batch", "length", None)


class LogitsDense(nn.Module):
    """The untied head. Not a flax Dense, which would round logits to the activations' dtype."""

    config: Config

    @nn.compact
    def __call__(self) -> jax.Array:
        """The kernel, [D, V]."""
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        return self.param("kernel", init, (self.config.d_model, self.config.vocab_size))
