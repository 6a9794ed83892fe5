"""A decoder-only language model: T5's decoder without an encoder, GELU, untied.

Dimensions: B batch, T block, S cache slots, D model width, H heads, K width of a head,
V vocabulary.

Leviathan et al. (arXiv 2211.17192, section 4.1) say of theirs no more than "GPT-like" and its
sizes. Positions are T5's relative ones, so that no length is built in; parameter names follow t5x.
"""

import dataclasses
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from specdec.models.layers import (
    Attention,
    FeedForward,
    LogitsDense,
    RelativePositionBias,
    RMSNorm,
    checked_dtype,
    dropout,
    embedded,
    empty_slots,
    head_product,
    token_embedder,
)


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Shape of a decoder-only model. The defaults are the paper's 97M.

    Attributes:
      vocab_size: ids, V.
      d_model, d_ff, num_heads, head_dim, num_layers: widths and depth.
      num_buckets, max_distance, dropout_rate, mixed_precision, dtype: see `t5.T5Config`.
    """

    vocab_size: int = 8192
    d_model: int = 768
    d_ff: int = 3072
    num_heads: int = 12
    head_dim: int = 64
    num_layers: int = 12
    num_buckets: int = 32
    max_distance: int = 128
    dropout_rate: float = 0.0
    mixed_precision: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self):
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))
        if self.num_layers < 1:
            raise ValueError(f"num_layers={self.num_layers}: must be 1 or more")

    def without_training(self) -> "GPTConfig":
        """See `t5.T5Config`."""
        return dataclasses.replace(self, dropout_rate=0.0, mixed_precision=False)


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
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.decoder_norm = RMSNorm(config.dtype)
        self.dropout = dropout(config)
        self.logits_dense = LogitsDense(config)

    def init_cache(self, num_rows: int, size: int) -> GPTCache:
        slots = [empty_slots(self.config, num_rows, size, n) for n in range(len(self.layers))]
        keys, values = zip(*slots, strict=True)
        return GPTCache(keys, values, self.relpos_bias(-jnp.arange(size)))

    def __call__(self, x, cache: GPTCache, positions, deterministic: bool = True):
        """x [B, T, D] embedded tokens at positions [B] -> logits [B, T, V] float32, cache."""
        x = self.dropout(x, deterministic=deterministic)
        written = []
        for layer, *own in zip(self.layers, cache.keys, cache.values, strict=True):
            x, *own = layer(x, *own, positions, cache.bias_by_distance, deterministic)
            written.append(own)
        keys, values = zip(*written, strict=True)
        x = self.dropout(self.decoder_norm(x), deterministic=deterministic)
        logits = head_product(self.config, x, self.logits_dense())
        return logits, cache.replace(keys=keys, values=values)


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
        x = embedded(tokens, self.token_embedder.embedding, self.config.dtype)
        return self.decoder(x, cache, positions, deterministic)

    def __call__(self, tokens: jax.Array, deterministic: bool = True) -> jax.Array:
        """tokens [B, T] -> logits [B, T, V]; row t has seen tokens 0..t."""
        cache = self.init_cache(*tokens.shape)
        positions = jnp.zeros(tokens.shape[0], jnp.int32)
        return self.extend(cache, tokens, positions, deterministic)[0]


@dataclasses.dataclass(frozen=True)
class GPTLanguageModel:
    """A GPT as a `LanguageModel`. Of its inputs only the number of rows counts.

    Unconditional generation takes as inputs, say, the prompts' lengths [B].
    """

    config: GPTConfig
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

    def _apply(self, params, *args, method):
        return GPT(self.config).apply({"params": params}, *args, method=method)
