"""T5X's own decoding, `t5x.decoding`: the paper's baseline, over its network and over ours.

t5x isn't on PyPI: its README (google-research/t5x) says how to install it, and the extra `t5x` of
setup.py brings what it needs from there. It asks a function for logits, one token a call, and gives
sequences that are sorted from worst to best.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from specdec.models.t5 import T5Config, T5LanguageModel
from specdec.types import EncoderInputs, LanguageModel

# (state of t5x's loop) -> logits [B, V], cache
TokensToLogits = Callable[[Any], tuple[jax.Array, Any]]


def t5x_module(name: str) -> ModuleType:
    """A module of t5x; ValueError where it isn't installed."""
    try:
        return importlib.import_module(f"t5x.{name}")
    except ImportError as error:
        raise ValueError(
            f"t5x isn't installed ({error}): its README, google-research/t5x, says how"
        ) from error


def sample(
    tokens_to_logits: TokensToLogits,
    cache: Any,
    *,
    num_rows: int,
    max_new_tokens: int,
    temperature: float,
    eos_id: int = 1,
    key: jax.Array | None = None,
) -> jax.Array:
    """`temperature_sample` without filters: [B, N] tokens, 0 behind EOS.

    Args:
      tokens_to_logits, cache: of `over_ours` or `over_theirs`.
      num_rows: B; max_new_tokens: N.
      temperature: 0 is greedy.
      eos_id: ends a row; -1 never.
      key: a legacy key, as t5x takes it; needed above temperature 0.
    """
    decodes, _ = t5x_module("decoding").temperature_sample(
        jnp.zeros((num_rows, max_new_tokens), jnp.int32),  # no prompt
        cache,
        tokens_to_logits,
        eos_id,
        decode_rng=key,
        num_decodes=1,
        temperature=temperature,
        topk=0,  # off; t5x's default, 1, would be greedy at every temperature
    )
    return decodes[:, -1]


def beam_search(
    tokens_to_logits: TokensToLogits,
    cache: Any,
    *,
    num_rows: int,
    max_new_tokens: int,
    num_beams: int = 4,
    alpha: float = 0.6,
    eos_id: int = 1,
) -> jax.Array:
    """`beam_search`: the best sequence of each row, [B, N] tokens.

    alpha is its brevity penalty. Other arguments as in `sample`.
    """
    decodes, _ = t5x_module("decoding").beam_search(
        jnp.zeros((num_rows, max_new_tokens), jnp.int32),
        cache,
        tokens_to_logits,
        eos_id,
        num_decodes=num_beams,
        alpha=alpha,
        max_decode_len=max_new_tokens,
    )
    return decodes[:, -1]


def over_ours(
    params: Any, inputs: EncoderInputs, *, model: LanguageModel, max_new_tokens: int
) -> tuple[TokensToLogits, dict[str, jax.Array]]:
    """Our model as t5x's loops call it, and the cache they carry: a map of arrays [B, ...].

    They copy rows of the cache for beams, so what has no row (a bias) stays outside of it.
    """
    size = max_new_tokens + 1
    leaves, structure = jax.tree.flatten(model.init_cache(params, inputs, size))
    has_rows = _has_rows(params, inputs, model, size)
    carried = {str(i): leaf for i, leaf in enumerate(leaves) if has_rows[i]}

    def tokens_to_logits(state: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = [state.cache.get(str(i), leaf) for i, leaf in enumerate(leaves)]
        tokens = jnp.reshape(state.cur_token, (-1, 1))
        positions = jnp.broadcast_to(state.cur_index, tokens.shape[:1])
        cache = jax.tree.unflatten(structure, found)
        logits, cache = model.extend(params, cache, tokens, positions)
        updated = jax.tree.leaves(cache)
        return logits[:, 0], {name: updated[int(name)] for name in carried}

    return tokens_to_logits, carried


def _has_rows(params: Any, inputs: EncoderInputs, model: LanguageModel, size: int) -> list[bool]:
    """Which leaves of a cache grow with the batch."""

    def shapes(repeats: int):
        wider = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * repeats), inputs)
        made = jax.eval_shape(lambda given: model.init_cache(params, given, size), wider)
        return [leaf.shape for leaf in jax.tree.leaves(made)]

    return [one != two for one, two in zip(shapes(1), shapes(2), strict=True)]


def over_theirs(
    params: Any, inputs: EncoderInputs, *, config: T5Config, max_new_tokens: int
) -> tuple[TokensToLogits, Any]:
    """The same weights in t5x's own network (`t5x.examples.t5.network`), padding as id 0."""
    network = t5x_module("examples.t5.network")
    module = network.Transformer(
        network.T5Config(
            vocab_size=config.vocab_size,
            dtype=config.dtype,
            emb_dim=config.d_model,
            num_heads=config.num_heads,
            num_encoder_layers=config.num_encoder_layers,
            num_decoder_layers=config.num_decoder_layers,
            head_dim=config.head_dim,
            mlp_dim=config.d_ff,
            mlp_activations=("gelu", "linear") if config.gated else ("relu",),
            dropout_rate=0.0,
            logits_via_embedding=config.tied,
        )
    )
    is_real = jnp.arange(inputs.tokens.shape[1]) < inputs.lengths[:, None]
    sources = jnp.where(is_real, inputs.tokens, 0)
    weights = {"params": params}
    encoded = module.apply(weights, sources, enable_dropout=False, method=module.encode)
    blank = jnp.ones((sources.shape[0], max_new_tokens), jnp.int32)
    _, variables = module.apply(
        weights, sources, blank, blank, decode=True, enable_dropout=False, mutable=["cache"]
    )

    def tokens_to_logits(state: Any) -> tuple[jax.Array, Any]:
        tokens = jnp.reshape(state.cur_token, (-1, 1))
        num_beams = tokens.shape[0] // sources.shape[0]
        logits, updated = module.apply(
            {**weights, "cache": state.cache},
            jnp.repeat(encoded, num_beams, axis=0),
            jnp.repeat(sources, num_beams, axis=0),  # which of them is padding
            tokens,
            tokens,
            enable_dropout=False,
            decode=True,
            max_decode_length=max_new_tokens,
            mutable=["cache"],
            method=module.decode,
        )
        return jnp.squeeze(logits, axis=1), updated["cache"]

    return tokens_to_logits, variables["cache"]


def greedy(
    params: Any, *, model: T5LanguageModel, max_new_tokens: int, is_theirs: bool
) -> Callable[[EncoderInputs], jax.Array]:
    """A jitted greedy decoder, over t5x's network or over ours."""

    @jax.jit
    def decode(params: Any, inputs: EncoderInputs) -> jax.Array:
        most = dict(max_new_tokens=max_new_tokens)
        if is_theirs:
            parts = over_theirs(params, inputs, config=model.config, **most)
        else:
            parts = over_ours(params, inputs, model=model, **most)
        return sample(*parts, num_rows=inputs.lengths.shape[0], temperature=0.0, **most)

    t5x_module("decoding")  # before anything compiles
    return lambda inputs: decode(params, inputs)
