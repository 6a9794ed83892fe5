"""T5 1.0 and 1.1 in Flax, with a block-wise cached decoder (Raffel et al., arXiv 1910.10683).

Dimensions: B batch, E encoder length, T decoder block, S cache slots, D model width, H heads,
K width of a head, V vocabulary.

Flax linen, because a module is then a pure function of a plain parameter tree and the cache can
be an argument and a result. Parameter names are t5x's, so t5x checkpoints load as they are.
"""

import dataclasses
import functools
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from specdec.buffers import prefix_mask
from specdec.kernels.attention import MASKED
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
    layer_of,
    token_embedder,
)
from specdec.sharding import Layout, in_force
from specdec.types import EncoderInputs


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Shape of a T5. The defaults are those of T5 1.1; `v1_0` gives the older form.

    Attributes:
      vocab_size: rows of the embedding table, V, padding rows included.
      d_model, d_ff, num_heads, head_dim: widths.
      num_encoder_layers: 0 makes a decoder that reads another model's encoder output.
      num_decoder_layers: may differ from the encoder's.
      encoder_dim: width of the encoder output the decoder attends to; None = d_model.
      gated: gated GELU feed-forward (1.1) instead of ReLU (1.0).
      tied: the output head is the embedding table (1.0).
      scale_logits: multiply logits by d_model**-0.5; None = `tied`, as T5 has it.
      num_logits: give logits to the first ids only; None = to all. For drafts, whose head costs as
        much as all the rest: where ids are sorted by frequency (experiments/vocabulary.py), few
        make up most of a text. An id without a logit has q = 0, which costs alpha, not exactness.
      num_buckets, max_distance: relative position buckets.
      dropout_rate: used in training only.
      mixed_precision: multiply by weights in bfloat16 and add up in float32; all else stays as it
        is. Used in training only, see `kernels.mixed`.
      remat: layers compute their inner values again for gradients instead of keeping them, see
        `layers.layer_of`. Used in training only.
      dtype: of activations and of the caches, float32 or bfloat16. Norms, softmax and logits are
        float32 in either. Parameters may be bfloat16 in either, too: they are widened where they
        are used, see `kernels.few_rows`.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_ff: int = 1024
    num_heads: int = 6
    head_dim: int = 64
    num_encoder_layers: int = 8
    num_decoder_layers: int = 8
    encoder_dim: int | None = None
    gated: bool = True
    tied: bool = False
    scale_logits: bool | None = None
    num_logits: int | None = None
    num_buckets: int = 32
    max_distance: int = 128
    dropout_rate: float = 0.0
    mixed_precision: bool = False
    remat: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self):
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))
        if self.num_logits is not None and not 0 < self.num_logits <= self.vocab_size:
            raise ValueError(
                f"num_logits={self.num_logits}: must lie in 1..{self.vocab_size}, vocab_size"
            )
        if self.num_decoder_layers < 1:
            raise ValueError(f"num_decoder_layers={self.num_decoder_layers}: must be 1 or more")

    def without_training(self) -> "T5Config":
        """The same model, with what is set for training only at its default."""
        return dataclasses.replace(self, dropout_rate=0.0, mixed_precision=False, remat=False)

    @property
    def logits_scale(self) -> float:
        scaled = self.tied if self.scale_logits is None else self.scale_logits
        return self.d_model**-0.5 if scaled else 1.0


@flax.struct.dataclass
class LayerCache:
    """Keys and values of one decoder layer.

    Attributes:
      keys, values: [B, H, S, K] of the decoder's own tokens.
      cross_keys, cross_values: [B, H, E, K], computed once per request.
    """

    keys: jax.Array
    values: jax.Array
    cross_keys: jax.Array
    cross_values: jax.Array


@flax.struct.dataclass
class T5Cache:
    """All that decoding needs of a request.

    Attributes:
      layers: one LayerCache a decoder layer.
      bias_by_distance: [H, S] the decoder's position bias for a key that lies 0, 1, 2 ... slots
        before its query.
      encoded: [B, E, D] encoder output, for a draft that reads it.
      encoder_lengths: [B].
    """

    layers: tuple[LayerCache, ...]
    bias_by_distance: jax.Array
    encoded: jax.Array
    encoder_lengths: jax.Array


def _feed_forward(config: T5Config) -> FeedForward:
    return FeedForward(config, nn.gelu if config.gated else nn.relu, config.gated)


class EncoderLayer(nn.Module):
    config: T5Config

    def setup(self):
        config = self.config
        self.pre_attention_layer_norm = RMSNorm(config.dtype)
        self.attention = Attention(config)
        self.pre_mlp_layer_norm = RMSNorm(config.dtype)
        self.mlp = _feed_forward(config)
        self.dropout = dropout(config)

    def __call__(self, x: jax.Array, bias: jax.Array, deterministic: bool = True) -> jax.Array:
        normed = self.pre_attention_layer_norm(x)
        attended = self.attention.to_all(normed, bias)
        x = x + self.dropout(attended, deterministic=deterministic)
        fed = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
        return x + self.dropout(fed, deterministic=deterministic)


class DecoderLayer(nn.Module):
    config: T5Config

    def setup(self):
        config = self.config
        self.pre_self_attention_layer_norm = RMSNorm(config.dtype)
        self.self_attention = Attention(config)
        self.pre_cross_attention_layer_norm = RMSNorm(config.dtype)
        self.encoder_decoder_attention = Attention(config)
        self.pre_mlp_layer_norm = RMSNorm(config.dtype)
        self.mlp = _feed_forward(config)
        self.dropout = dropout(config)

    def cross_keys_values(self, encoded: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.encoder_decoder_attention.keys_values(encoded)

    def __call__(
        self,
        x: jax.Array,
        cache: LayerCache,
        positions: jax.Array,
        encoder_lengths: jax.Array,
        bias_by_distance: jax.Array,
        deterministic: bool = True,
    ) -> tuple[jax.Array, LayerCache]:
        """x [B, T, D] at positions [B] -> x, and the cache with the block's T slots written."""
        normed = self.pre_self_attention_layer_norm(x)
        attended, keys, values = self.self_attention.extend(
            normed, cache.keys, cache.values, positions, bias_by_distance
        )
        cache = cache.replace(keys=keys, values=values)
        x = x + self.dropout(attended, deterministic=deterministic)

        normed = self.pre_cross_attention_layer_norm(x)
        visible = jnp.broadcast_to(encoder_lengths[:, None], x.shape[:2])
        attended = self.encoder_decoder_attention.to_cache(
            normed, cache.cross_keys, cache.cross_values, visible
        )
        x = x + self.dropout(attended, deterministic=deterministic)

        fed = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
        return x + self.dropout(fed, deterministic=deterministic), cache


class Encoder(nn.Module):
    config: T5Config

    def setup(self):
        config = self.config
        self.relpos_bias = RelativePositionBias(config, bidirectional=True)
        layer = functools.partial(layer_of, EncoderLayer, config, deterministic_at=3)
        self.layers = [layer() for _ in range(config.num_encoder_layers)]
        self.encoder_norm = RMSNorm(config.dtype)
        self.dropout = dropout(config)

    def __call__(self, x: jax.Array, lengths: jax.Array, deterministic: bool = True) -> jax.Array:
        """x [B, E, D] embedded tokens, lengths [B] -> [B, E, D]."""
        slots = jnp.arange(x.shape[1])
        bias = self.relpos_bias(slots[None, :] - slots[:, None])
        visible = prefix_mask(lengths, x.shape[1])[:, None, None, :]
        bias = jnp.where(visible, bias, MASKED)
        x = self.dropout(x, deterministic=deterministic)
        for layer in self.layers:
            x = layer(x, bias, deterministic)
        return self.dropout(self.encoder_norm(x), deterministic=deterministic)


class Decoder(nn.Module):
    config: T5Config

    def setup(self):
        config = self.config
        self.relpos_bias = RelativePositionBias(config, bidirectional=False)
        layer = functools.partial(layer_of, DecoderLayer, config, deterministic_at=6)
        self.layers = [layer() for _ in range(config.num_decoder_layers)]
        self.decoder_norm = RMSNorm(config.dtype)
        self.dropout = dropout(config)
        if not config.tied:
            self.logits_dense = LogitsDense(config)

    def init_cache(self, encoded: jax.Array, encoder_lengths: jax.Array, size: int) -> T5Cache:
        layers = []
        for number, layer in enumerate(self.layers):
            keys, values = empty_slots(self.config, encoded.shape[0], size, number)
            layers.append(LayerCache(keys, values, *layer.cross_keys_values(encoded)))
        bias_by_distance = self.relpos_bias(-jnp.arange(size))
        return T5Cache(tuple(layers), bias_by_distance, encoded, encoder_lengths)

    def __call__(
        self, x: jax.Array, cache: T5Cache, positions: jax.Array, deterministic: bool = True
    ) -> tuple[jax.Array, T5Cache]:
        """x [B, T, D] embedded tokens at positions [B] -> normed x [B, T, D], cache."""
        x = self.dropout(x, deterministic=deterministic)
        layers = []
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x, layer_cache = layer(
                x,
                layer_cache,
                positions,
                cache.encoder_lengths,
                cache.bias_by_distance,
                deterministic,
            )
            layers.append(layer_cache)
        x = self.dropout(self.decoder_norm(x), deterministic=deterministic)
        return x, cache.replace(layers=tuple(layers))

    def logits(self, x: jax.Array, embedding: jax.Array) -> jax.Array:
        """x [B, T, D], the embedding table [V, D] -> logits [B, T, V or num_logits] float32."""
        config = self.config
        head = embedding if config.tied else self.logits_dense()
        logits = head_product(config, x, head, is_table=config.tied, num_logits=config.num_logits)
        return logits * config.logits_scale


class T5(nn.Module):
    """The whole network. `__call__` is the uncached full pass of training and of tests."""

    config: T5Config

    def setup(self):
        config = self.config
        self.token_embedder = token_embedder(config)
        if config.num_encoder_layers:
            self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def encode(self, tokens: jax.Array, lengths: jax.Array, deterministic: bool = True):
        """tokens [B, E] int32, lengths [B] -> encoder output [B, E, D]."""
        if not self.config.num_encoder_layers:
            raise ValueError(
                "this T5 has num_encoder_layers=0: it reads another model's encoder output "
                "(drafters.SharedEncoderDrafter)"
            )
        return self.encoder(self._embedded(tokens), lengths, deterministic)

    def _embedded(self, tokens: jax.Array) -> jax.Array:
        return embedded(tokens, self.token_embedder.embedding, self.config.dtype)

    def init_cache(self, encoded: jax.Array, encoder_lengths: jax.Array, size: int) -> T5Cache:
        """Cross-attention keys and values of an encoder output, and `size` empty slots."""
        return self.decoder.init_cache(encoded, encoder_lengths, size)

    def extend(
        self,
        cache: T5Cache,
        tokens: jax.Array,
        positions: jax.Array,
        deterministic: bool = True,
    ) -> tuple[jax.Array, T5Cache]:
        """tokens [B, T] written at positions [B] -> logits [B, T, V] float32, cache."""
        x, cache = self.decoder(self._embedded(tokens), cache, positions, deterministic)
        return self.decoder.logits(x, self.token_embedder.embedding), cache

    def __call__(
        self,
        encoder_tokens: jax.Array,
        encoder_lengths: jax.Array,
        decoder_tokens: jax.Array,
        deterministic: bool = True,
    ) -> jax.Array:
        """The full pass: tokens [B, E], lengths [B], decoder tokens [B, T] -> logits [B, T, V]."""
        encoded = self.encode(encoder_tokens, encoder_lengths, deterministic)
        return self.decode(encoded, encoder_lengths, decoder_tokens, deterministic)

    def decode(
        self,
        encoded: jax.Array,
        encoder_lengths: jax.Array,
        decoder_tokens: jax.Array,
        deterministic: bool = True,
    ) -> jax.Array:
        """The decoder's full pass over an encoder output [B, E, D] -> logits [B, T, V]."""
        cache = self.init_cache(encoded, encoder_lengths, decoder_tokens.shape[1])
        positions = jnp.zeros(decoder_tokens.shape[0], jnp.int32)
        return self.extend(cache, decoder_tokens, positions, deterministic)[0]


def v1_0(**shape) -> T5Config:
    """A T5 1.0: ReLU, tied and scaled logits."""
    return T5Config(**{"gated": False, "tied": True, **shape})


def _ladder(make, heads_and_layers: dict[str, tuple]) -> dict[str, T5Config]:
    names = ("d_model", "d_ff", "num_heads", "head_dim", "num_encoder_layers")
    return {
        name: make(**dict(zip(names, shape, strict=True)), num_decoder_layers=shape[-1])
        for name, shape in heads_and_layers.items()
    }


# Published shapes: d_model, d_ff, heads, head width, layers a side. Vocabulary 32128.
CONFIGS: dict[str, T5Config] = {
    **_ladder(
        v1_0,
        {
            "t5_small": (512, 2048, 8, 64, 6),
            "t5_base": (768, 3072, 12, 64, 12),
            "t5_large": (1024, 4096, 16, 64, 24),
            "t5_3B": (1024, 16384, 32, 128, 24),
            "t5_11B": (1024, 65536, 128, 128, 24),
        },
    ),
    **_ladder(
        T5Config,
        {
            "t5_1_1_small": (512, 1024, 6, 64, 8),
            "t5_1_1_base": (768, 2048, 12, 64, 12),
            "t5_1_1_large": (1024, 2816, 16, 64, 24),
            "t5_1_1_xl": (2048, 5120, 32, 64, 24),
            "t5_1_1_xxl": (4096, 10240, 64, 64, 24),
        },
    ),
}
# Flan-T5 is T5 1.1, trained on.
CONFIGS |= {
    name.replace("t5_1_1", "flan_t5"): config
    for name, config in CONFIGS.items()
    if name.startswith("t5_1_1")
}


@dataclasses.dataclass(frozen=True)
class T5LanguageModel:
    """A T5 as a `LanguageModel`: inputs are `EncoderInputs`, parameters a plain tree.

    Attributes:
      config: its shape.
      layout: how it lies over several devices, see `specdec.sharding`; None = on one.
    """

    config: T5Config
    layout: Layout | None = None
    has_encoder = True

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def init(self, key: jax.Array) -> Any:
        """Random parameters."""
        module = T5(self.config)
        tokens, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32)
        if self.config.num_encoder_layers:
            return module.init(key, tokens, lengths, tokens)["params"]
        width = self.config.encoder_dim or self.config.d_model
        encoded = jnp.zeros((1, 2, width), self.config.dtype)
        return module.init(key, encoded, lengths, tokens, method=T5.decode)["params"]

    def init_cache(self, params: Any, inputs: EncoderInputs, cache_length: int) -> T5Cache:
        """Runs the encoder; see `LanguageModel`."""
        encoded = self._apply(params, *inputs, method=T5.encode)
        return self.init_cache_over(params, encoded, inputs.lengths, cache_length)

    def init_cache_over(
        self, params: Any, encoded: jax.Array, lengths: jax.Array, cache_length: int
    ) -> T5Cache:
        """A cache over an encoder output [B, E, D] of whatever model."""
        return self._apply(params, encoded, lengths, cache_length, method=T5.init_cache)

    def share_encoder(self, params: Any, cache: T5Cache, cache_length: int) -> T5Cache:
        """A cache over the encoder output that another T5's cache holds."""
        return self.init_cache_over(params, cache.encoded, cache.encoder_lengths, cache_length)

    def extend(self, params: Any, cache: T5Cache, tokens: jax.Array, positions: jax.Array):
        """See `LanguageModel`."""
        return self._apply(params, cache, tokens, positions, method=T5.extend)

    def _apply(self, params, *args, method):
        with in_force(self.layout):
            return T5(self.config).apply({"params": params}, *args, method=method)
