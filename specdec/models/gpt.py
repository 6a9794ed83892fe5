"""A decoder-only language model: T5's decoder without an encoder, GELU, untied.

Dimensions: B batch, T block, S cache slots, D model width, H heads, K width of a head,
J tokens ahead, V vocabulary.

Leviathan et al. (arXiv 2211.17192, section 4.1) say of theirs no more than "GPT-like" and its
sizes. Positions are T5's relative ones, so that no length is built in; parameter names follow t5x.

With `num_ahead` J above 1 it also predicts the J - 1 tokens beyond the next, each by a layer of its
own on the last hidden state (Stern et al., arXiv 1811.03115; Cai et al., arXiv 2401.10774): a
non-autoregressive draft, see `drafters.heads`.
"""

import dataclasses
import functools
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from specdec.buffers import read_at
from specdec.models.layers import (
    Attention,
    FeedForward,
    LogitsDense,
    RelativePositionBias,
    RMSNorm,
    checked_dtype,
    dense,
    dropout,
    embedded,
    empty_slots,
    head_product,
    layer_of,
    token_embedder,
)
from specdec.sharding import Layout, in_force


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Shape of a decoder-only model. The defaults are the paper's 97M.

    Attributes:
      vocab_size: ids, V.
      d_model, d_ff, num_heads, head_dim, num_layers: widths and depth.
      num_ahead: tokens that one run predicts, J.
      num_buckets, max_distance, dropout_rate, mixed_precision, remat, dtype: see `t5.T5Config`.
    """

    vocab_size: int = 8192
    d_model: int = 768
    d_ff: int = 3072
    num_heads: int = 12
    head_dim: int = 64
    num_layers: int = 12
    num_ahead: int = 1
    num_buckets: int = 32
    max_distance: int = 128
    dropout_rate: float = 0.0
    mixed_precision: bool = False
    remat: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self):
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))
        if self.num_layers < 1:
            raise ValueError(f"num_layers={self.num_layers}: must be 1 or more")
        if self.num_ahead < 1:
            raise ValueError(f"num_ahead={self.num_ahead}: must be 1 or more")

    def without_training(self) -> "GPTConfig":
        """See `t5.T5Config`."""
        return dataclasses.replace(self, dropout_rate=0.0, mixed_precision=False, remat=False)


# The two that the paper pairs on LM1B: 84.9M + 12.6M and 1.6M + 4.2M parameters in layers and in
# embeddings with head.
CONFIGS: dict[str, GPTConfig] = {
    "gpt_97m": GPTConfig(),
    "gpt_6m": GPTConfig(d_model=256, d_ff=1024, num_heads=4, num_layers=2),
}


@flax.struct.dataclass
class GPTCache:
    """Attributes: keys, values: [B, H, S, K] a layer; bias_by_distance: [H, S]."""

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    bias_by_distance: jax.Array


class Layer(nn.Module):
    config: GPTConfig

    def setup(self):
        config = self.config
        self.pre_self_attention_layer_norm = RMSNorm(config.dtype)
        self.self_attention = Attention(config)
        self.pre_mlp_layer_norm = RMSNorm(config.dtype)
        self.mlp = FeedForward(config, nn.gelu, gated=False)
        self.dropout = dropout(config)

    def __call__(self, x, keys, values, positions, bias, deterministic: bool = True):
        """x [B, T, D] at positions [B] -> x, keys and values [B, H, S, K]."""
        normed = self.pre_self_attention_layer_norm(x)
        attended, keys, values = self.self_attention.extend(normed, keys, values, positions, bias)
        x = x + self.dropout(attended, deterministic=deterministic)
        fed = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
        return x + self.dropout(fed, deterministic=deterministic), keys, values


class Decoder(nn.Module):
    config: GPTConfig

    def setup(self):
        config = self.config
        self.relpos_bias = RelativePositionBias(config, bidirectional=False)
        layer = functools.partial(layer_of, Layer, config, deterministic_at=6)
        self.layers = [layer() for _ in range(config.num_layers)]
        self.decoder_norm = RMSNorm(config.dtype)
        self.dropout = dropout(config)
        self.logits_dense = LogitsDense(config)
        self.ahead = [dense(config, config.d_model) for _ in range(1, config.num_ahead)]

    def init_cache(self, num_rows: int, size: int) -> GPTCache:
        slots = [empty_slots(self.config, num_rows, size, n) for n in range(len(self.layers))]
        keys, values = zip(*slots, strict=True)
        return GPTCache(keys, values, self.relpos_bias(-jnp.arange(size)))

    def __call__(self, x, cache: GPTCache, positions, deterministic: bool = True):
        """x [B, T, D] embedded tokens at positions [B] -> hidden states [B, T, D], cache."""
        x = self.dropout(x, deterministic=deterministic)
        written = []
        for layer, *own in zip(self.layers, cache.keys, cache.values, strict=True):
            x, *own = layer(x, *own, positions, cache.bias_by_distance, deterministic)
            written.append(own)
        keys, values = zip(*written, strict=True)
        x = self.dropout(self.decoder_norm(x), deterministic=deterministic)
        return x, cache.replace(keys=keys, values=values)

    def logits(self, x: jax.Array) -> jax.Array:
        """Hidden states [B, T, D] -> logits of the next token [B, T, V] float32."""
        return head_product(self.config, x, self.logits_dense())

    def logits_ahead(self, x: jax.Array, num_ahead: int) -> jax.Array:
        """Hidden states [B, T, D] -> logits of the next num_ahead tokens [B, J, T, V] float32."""
        states = [x, *(x + nn.silu(layer(x)) for layer in self.ahead[: num_ahead - 1])]
        return self.logits(jnp.stack(states, axis=1))  # one product: the head is read once


class GPT(nn.Module):
    """The whole network. `__call__` is the uncached full pass of training and of tests."""

    config: GPTConfig

    def setup(self):
        self.token_embedder = token_embedder(self.config)
        self.decoder = Decoder(self.config)

    def init_cache(self, num_rows: int, size: int) -> GPTCache:
        return self.decoder.init_cache(num_rows, size)

    def extend(self, cache: GPTCache, tokens, positions, deterministic: bool = True):
        """tokens [B, T] written at positions [B] -> logits [B, T, V] float32, cache."""
        x, cache = self._hidden(cache, tokens, positions, deterministic)
        return self.decoder.logits(x), cache

    def extend_ahead(self, cache: GPTCache, tokens, positions, slots, num_ahead: int):
        """As `extend`; logits [B, J, V] of num_ahead tokens after entry slots[b] of the block."""
        x, cache = self._hidden(cache, tokens, positions, True)
        return self.decoder.logits_ahead(read_at(x, slots, 1), num_ahead)[:, :, 0], cache

    def __call__(self, tokens: jax.Array, deterministic: bool = True) -> jax.Array:
        """tokens [B, T] -> logits [B, T, V]; row t has seen tokens 0..t."""
        return self.full_pass_ahead(tokens, deterministic)[:, 0]

    def full_pass_ahead(self, tokens: jax.Array, deterministic: bool = True) -> jax.Array:
        """tokens [B, T] -> logits [B, J, T, V]; j of row t is for the token j + 1 after token t."""
        cache = self.init_cache(*tokens.shape)
        positions = jnp.zeros(tokens.shape[0], jnp.int32)
        x, _ = self._hidden(cache, tokens, positions, deterministic)
        return self.decoder.logits_ahead(x, self.config.num_ahead)

    def _hidden(self, cache: GPTCache, tokens, positions, deterministic: bool):
        x = embedded(tokens, self.token_embedder.embedding, self.config.dtype)
        return self.decoder(x, cache, positions, deterministic)


@dataclasses.dataclass(frozen=True)
class GPTLanguageModel:
    """A GPT as a `LanguageModel`. Of its inputs only the number of rows counts.

    Unconditional generation takes as inputs, say, the prompts' lengths [B].

    Attributes:
      config: its shape.
      layout: how it lies over several devices, see `specdec.sharding`; None = on one.
    """

    config: GPTConfig
    layout: Layout | None = None
    has_encoder = False

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def init(self, key: jax.Array) -> Any:
        """Random parameters."""
        return GPT(self.config).init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def init_cache(self, params: Any, inputs: Any, cache_length: int) -> GPTCache:
        """Empty slots; see `LanguageModel`. inputs: [B, ...] leaves."""
        num_rows = jax.tree.leaves(inputs)[0].shape[0]
        return self._apply(params, num_rows, cache_length, method=GPT.init_cache)

    def extend(self, params: Any, cache: GPTCache, tokens: jax.Array, positions: jax.Array):
        """See `LanguageModel`."""
        return self._apply(params, cache, tokens, positions, method=GPT.extend)

    def extend_ahead(
        self,
        params: Any,
        cache: GPTCache,
        tokens: jax.Array,
        positions: jax.Array,
        slots: jax.Array,
        num_ahead: int,
    ) -> tuple[jax.Array, GPTCache]:
        """As `extend`, but logits [B, J, V] of J = num_ahead tokens after entry slots[b]."""
        args = (cache, tokens, positions, slots, num_ahead)
        return self._apply(params, *args, method=GPT.extend_ahead)

    def _apply(self, params, *args, method):
        with in_force(self.layout):
            return GPT(self.config).apply({"params": params}, *args, method=method)
