"""T5 1.0 and 1.1: the model contract, shapes, names, dtypes, and that the contract has teeth."""

import dataclasses
import functools
from typing import NamedTuple

import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specdec.checkpoints import strict
from specdec.kernels import library
from specdec.models import layers, t5
from specdec.models.t5 import T5, T5Config, T5LanguageModel
from specdec.types import EncoderInputs

SMALL = {"vocab_size": 24, "d_model": 16, "d_ff": 24, "num_heads": 2, "head_dim": 8}
V1_0 = t5.v1_0(**SMALL, num_encoder_layers=1, num_decoder_layers=2)
V1_1 = T5Config(**SMALL, num_encoder_layers=2, num_decoder_layers=1)
BOTH = pytest.mark.parametrize("config", [V1_0, V1_1], ids=["v1_0", "v1_1"])


@functools.cache
def random_params(config, seed=0):
    """Random parameters in which norms and position biases matter, too. Compiles nothing."""
    rng = np.random.default_rng(seed)
    flat = {}
    for name, shape in strict.expected_shapes(config).items():
        if name.endswith("scale"):
            leaf = rng.uniform(0.6, 1.4, shape)
        else:
            fan_in = shape[0] if name.endswith("kernel") else 1
            fan_in *= config.head_dim if "query" in name else 1
            leaf = rng.normal(0, fan_in**-0.5, shape)
        flat[name] = jnp.asarray(leaf, jnp.float32)
    return strict.unflatten(flat)


def encoder_inputs(lengths=(7, 12, 4), width=12, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, SMALL["vocab_size"], (len(lengths), width)).astype(np.int32)
    return EncoderInputs(jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32))


def spoil(cache, positions, value):
    """Puts a value in all self-attention slots at and beyond positions."""
    num_slots = cache.layers[0].keys.shape[2]
    is_beyond = (np.arange(num_slots) >= positions[:, None])[:, None, :, None]

    def spoilt(layer):
        keys, values = (jnp.where(is_beyond, value, x) for x in (layer.keys, layer.values))
        return layer.replace(keys=keys, values=values)

    return cache.replace(layers=tuple(spoilt(layer) for layer in cache.layers))


@functools.partial(jax.jit, static_argnames="model")
def _uncached_logits(model, params, inputs, tokens):
    return T5(model.config).apply({"params": params}, *inputs, tokens)


def uncached_pass(model, params, inputs, tokens):
    """The pass that training uses."""
    return np.asarray(_uncached_logits(model, params, inputs, tokens))


@BOTH
def test_blocks_of_one_and_of_gamma_plus_one_equal_the_full_pass(config):
    contract.check_blocks_equal_full_pass(
        T5LanguageModel(config),
        random_params(config),
        encoder_inputs(),
        full_pass_fn=uncached_pass,
        tolerance=2e-5,
    )


@BOTH
def test_rolled_back_tokens_leave_no_trace(config):
    contract.check_rolled_back_tokens_leave_no_trace(
        T5LanguageModel(config), random_params(config), encoder_inputs(), tolerance=2e-5
    )


@BOTH
def test_nan_and_huge_values_beyond_the_position_never_leak(config):
    contract.check_slots_beyond_the_position_never_leak(
        T5LanguageModel(config), random_params(config), encoder_inputs(), spoil_fn=spoil
    )


@BOTH
def test_rows_are_independent(config):
    contract.check_rows_are_independent(
        T5LanguageModel(config), random_params(config), encoder_inputs()
    )


@BOTH
def test_a_token_of_a_block_changes_its_own_and_later_rows_only(config):
    contract.check_a_token_changes_its_own_and_later_rows_only(
        T5LanguageModel(config), random_params(config), encoder_inputs()
    )


@BOTH
def test_every_way_to_cut_six_tokens_gives_the_same_logits(config):
    contract.check_every_chunking_agrees(
        T5LanguageModel(config), random_params(config), encoder_inputs(), tolerance=2e-5
    )


@BOTH
def test_encoder_padding_never_matters(config):
    tokens = np.random.default_rng(9).integers(0, SMALL["vocab_size"], (2, 5))
    lengths = jnp.array([5, 3], jnp.int32)
    variants = []
    # Padding that is 0, another id, and no id at all: none of it has a meaning.
    for width, fill in ((5, 0), (8, 0), (17, 3), (32, 0), (8, 23), (8, 10**6), (8, -7)):
        padded = np.full((2, width), fill, np.int32)
        padded[0, :5], padded[1, :3] = tokens[0], tokens[1, :3]
        variants.append(EncoderInputs(jnp.asarray(padded), lengths))
    contract.check_inputs_are_equivalent(T5LanguageModel(config), random_params(config), variants)


class Encoded(NamedTuple):
    """Encoder output as the inputs of a decoder that has no encoder."""

    encoded: jax.Array
    lengths: jax.Array


@dataclasses.dataclass(frozen=True)
class DecoderOnly(T5LanguageModel):
    def init_cache(self, params, inputs, cache_length):
        return self._apply(params, *inputs, cache_length, method=T5.init_cache)


def test_a_decoder_without_encoder_reads_another_models_encoder_output():
    draft_config = T5Config(
        **{**SMALL, "d_model": 8},
        num_encoder_layers=0,
        num_decoder_layers=1,
        encoder_dim=SMALL["d_model"],
    )
    target, draft = T5LanguageModel(V1_0), T5LanguageModel(draft_config)
    draft_params, inputs = random_params(draft_config), encoder_inputs()
    assert "encoder" not in draft_params
    target_cache = contract.init_cache(target, random_params(V1_0), inputs, 8)
    encoded = Encoded(target_cache.encoded, target_cache.encoder_lengths)
    tokens = contract.random_tokens(draft, 3, 5, seed=0)
    expected = contract.full_pass(DecoderOnly(draft_config), draft_params, encoded, tokens)

    @jax.jit
    def logits_of(target_cache):
        cache = draft.share_encoder(draft_params, target_cache, 8)
        return draft.extend(draft_params, cache, tokens, jnp.zeros(3, jnp.int32))[0]

    np.testing.assert_allclose(logits_of(target_cache), expected, atol=1e-5)
    other_inputs = encoder_inputs(seed=1)
    other_cache = contract.init_cache(target, random_params(V1_0), other_inputs, 8)
    assert np.abs(logits_of(other_cache) - expected).max() > 1e-2
    with pytest.raises(ValueError, match="num_encoder_layers=0"):
        draft.init_cache(draft_params, inputs, 8)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("t5_1_1_small", 76_961_152),
        ("t5_1_1_base", 247_577_856),
        ("t5_1_1_large", 783_150_080),
        ("t5_1_1_xl", 2_849_757_184),
        ("t5_1_1_xxl", 11_135_332_352),
        ("t5_small", 60_506_624),
        ("t5_base", 222_903_552),
    ],
)
def test_named_configs_have_the_published_number_of_parameters(name, expected):
    init = T5LanguageModel(t5.CONFIGS[name]).init
    shapes = jax.eval_shape(init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected


def _expected_names(config):
    """Names as t5x's checkpoints have them, with shapes."""
    c, width = config, config.num_heads * config.head_dim
    into, out = (c.d_model, width), (width, c.d_model)
    attention = {"query": into, "key": into, "value": into, "out": out}
    mlp = {"wi_0": (c.d_model, c.d_ff), "wi_1": (c.d_model, c.d_ff)}
    mlp = {**(mlp if c.gated else {"wi": (c.d_model, c.d_ff)}), "wo": (c.d_ff, c.d_model)}
    kernels = {
        "encoder": (c.num_encoder_layers, ["attention"]),
        "decoder": (c.num_decoder_layers, ["self_attention", "encoder_decoder_attention"]),
    }
    norms = {
        "encoder": ["pre_attention", "pre_mlp"],
        "decoder": ["pre_self_attention", "pre_cross_attention", "pre_mlp"],
    }
    names = {"token_embedder/embedding": (c.vocab_size, c.d_model)}
    for side, (num_layers, attentions) in kernels.items():
        names[f"{side}/relpos_bias/rel_embedding"] = (c.num_heads, c.num_buckets)
        names[f"{side}/{side}_norm/scale"] = (c.d_model,)
        for layer in (f"{side}/layers_{i}" for i in range(num_layers)):
            names |= {f"{layer}/{norm}_layer_norm/scale": (c.d_model,) for norm in norms[side]}
            names |= {f"{layer}/mlp/{name}/kernel": shape for name, shape in mlp.items()}
            names |= {
                f"{layer}/{kind}/{name}/kernel": shape
                for kind in attentions
                for name, shape in attention.items()
            }
    return names if c.tied else {**names, "decoder/logits_dense/kernel": (c.d_model, c.vocab_size)}


@BOTH
def test_parameters_have_t5x_names(config):
    assert strict.expected_shapes(config) == _expected_names(config)


def test_relative_position_bucket_worked_example():
    distances = jnp.array([0, -1, -15, -16, -127, -1000, 5])
    buckets = layers.relative_position_bucket(
        distances, bidirectional=False, num_buckets=32, max_distance=128
    )
    assert buckets.tolist() == [0, 1, 15, 16, 31, 31, 0]
    both_ways = layers.relative_position_bucket(
        jnp.array([0, -1, 1, -7, 7, -8, 8, 1000, -1000]),
        bidirectional=True,
        num_buckets=32,
        max_distance=128,
    )
    assert both_ways.tolist() == [0, 1, 17, 7, 23, 8, 24, 31, 15]


def _exact_bucket(distance, num_buckets, max_distance):
    """The log-spaced bucket in whole numbers: the k of the largest edge at or below distance."""
    num_exact = num_buckets // 2
    num_far = num_buckets - num_exact
    if distance < num_exact:
        return distance
    # distance >= num_exact * (max_distance / num_exact) ** (k / num_far), without a logarithm
    reached = [
        k
        for k in range(num_far + 1)
        if distance**num_far * num_exact**k >= num_exact**num_far * max_distance**k
    ]
    return min(num_exact + reached[-1], num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_buckets_have_exact_edges(bidirectional):
    """Edges at 16, 32 and 64 are powers of two: one rounding error would move them."""
    distances = np.arange(-300, 301)
    bucket_fn = functools.partial(
        layers.relative_position_bucket,
        bidirectional=bidirectional,
        num_buckets=32,
        max_distance=128,
    )
    if bidirectional:
        expected = [_exact_bucket(abs(int(d)), 16, 128) + 16 * (d > 0) for d in distances]
    else:
        expected = [_exact_bucket(max(-int(d), 0), 32, 128) for d in distances]
    assert bucket_fn(jnp.asarray(distances)).tolist() == expected
    assert jax.jit(bucket_fn)(distances).tolist() == expected


def test_float16_is_refused():
    with pytest.raises(ValueError, match=r"float16.*float32 or bfloat16"):
        T5Config(**SMALL, dtype=jnp.float16)


def test_equal_configs_hash_alike_however_their_dtype_is_spelled():
    """Else jit compiles the same model twice."""
    spellings = [jnp.float32, jnp.dtype("float32"), np.float32, "float32"]
    configs = {T5Config(**SMALL, dtype=dtype) for dtype in spellings}
    assert len(configs) == 1
    assert len({hash(config) for config in configs | {T5Config(**SMALL)}}) == 1


@BOTH
def test_bfloat16_gives_unrounded_float32_logits_near_those_of_float32(config):
    inputs, params = encoder_inputs(), random_params(config)
    halved = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    low = T5LanguageModel(dataclasses.replace(config, dtype=jnp.bfloat16))
    tokens = contract.random_tokens(low, 3, contract.SEQUENCE_LENGTH, seed=0)
    expected = contract.full_pass(T5LanguageModel(config), params, inputs, tokens)
    cache = contract.init_cache(low, halved, inputs, tokens.shape[1])
    assert cache.layers[0].keys.dtype == cache.layers[0].cross_values.dtype == jnp.bfloat16
    positions = np.zeros(tokens.shape[0], np.int32)
    logits, _ = contract.extend(low, halved, cache, tokens, positions)
    assert logits.dtype == jnp.float32
    assert (logits != logits.astype(jnp.bfloat16)).mean() > 0.9, "rounded to bfloat16"
    error = np.sqrt(np.mean(np.square(logits - expected))) / np.std(expected)
    assert error < 0.05


@BOTH
@pytest.mark.parametrize("has_kernels", [False, True])
def test_bfloat16_weights_in_float32_arithmetic_are_the_same_numbers(
    config, has_kernels, monkeypatch
):
    if not has_kernels:
        monkeypatch.setattr(library, "is_available", lambda: False)
    inputs = encoder_inputs()
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(config))
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), narrow)
    tokens = contract.random_tokens(T5LanguageModel(config), 3, 6, seed=0)
    logits = [T5(config).apply({"params": p}, *inputs, tokens) for p in (narrow, wide)]
    np.testing.assert_array_equal(*logits)


@BOTH
@pytest.mark.parametrize("mixed_precision", [False, True])
def test_a_short_head_gives_the_first_ids_their_logits(config, mixed_precision):
    config = dataclasses.replace(config, mixed_precision=mixed_precision)
    short = dataclasses.replace(config, num_logits=9)
    params, inputs = random_params(config), encoder_inputs()
    tokens = contract.random_tokens(T5LanguageModel(config), 3, 6, seed=0)
    whole, some = (
        uncached_pass(T5LanguageModel(c), params, inputs, tokens) for c in (config, short)
    )
    assert some.shape[-1] == 9
    np.testing.assert_allclose(some, whole[..., :9], atol=2e-5)
    with pytest.raises(ValueError, match=r"num_logits=25: must lie in 1\.\.24"):
        dataclasses.replace(config, num_logits=25)


def _equations(jaxpr):
    """All equations, those of inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


@BOTH
def test_every_product_in_float32_has_the_highest_precision(config, monkeypatch):
    """JAX's default is TF32 on GPUs, bfloat16 passes on TPUs; neither has the kernel."""
    monkeypatch.setattr(library, "is_available", lambda: False)
    model, inputs = T5LanguageModel(config), encoder_inputs()

    def whole(params, inputs, tokens, positions):
        return model.extend(params, model.init_cache(params, inputs, 8), tokens, positions)[0]

    tokens, positions = np.zeros((3, 5), np.int32), np.zeros(3, np.int32)
    jaxpr = jax.make_jaxpr(whole)(random_params(config), inputs, tokens, positions)
    products = [e for e in _equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
    highest = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
    assert len(products) > 20
    assert {e.params["precision"] for e in products} == {highest}


# The contract's own test: one attention layer, sound or with one fault at a time.


@dataclasses.dataclass(frozen=True)
class Toy:
    """A LanguageModel of a few lines: embedding, one attention, position bias, source mean."""

    fault: str = ""
    vocab_size: int = 24

    def init(self):
        keys = jax.random.split(jax.random.key(0), 2)
        embedding = jax.random.normal(keys[0], (self.vocab_size, 8))
        return {"embedding": embedding, "bias": 2 * jax.random.normal(keys[1], (64,))}

    def init_cache(self, params, inputs, cache_length):
        tokens, lengths = inputs
        is_real = np.arange(tokens.shape[1]) < lengths[:, None]
        if self.fault == "padding counted":
            is_real = jnp.ones_like(is_real)
        x = jnp.where(is_real[:, :, None], params["embedding"][tokens], 0)
        source = x.sum(1) / is_real.sum(1, keepdims=True)
        return {"slots": jnp.zeros((tokens.shape[0], cache_length, 8)), "source": source}

    def extend(self, params, cache, tokens, positions):
        fault = self.fault
        if fault == "the batch's smallest position":
            positions = jnp.full_like(positions, positions.min())
        x = params["embedding"][tokens]
        queries = positions[:, None] + jnp.arange(tokens.shape[1])  # [B, T]
        rows = jnp.arange(tokens.shape[0])[:, None]
        at = cache["slots"].at[rows, queries]
        stored = slots = at.add(x) if fault == "adds into its slots" else at.set(x)
        num_slots = slots.shape[1]
        distance = queries[:, :, None] - jnp.arange(num_slots)  # [B, T, S]
        is_visible = distance >= 0
        if fault == "sees its block's future":
            is_visible = is_visible | (distance > -tokens.shape[1])
        if fault == "sees all that was written":
            is_visible = (slots != 0).any(-1)[:, None, :] | is_visible
        if fault == "bias without offset":
            distance = distance - positions[:, None, None]
        bias = params["bias"][jnp.clip(distance, 0, 63)]
        scores = jnp.einsum("btd,bsd->bts", x, slots, precision="highest") / 4 + bias
        if fault == "adds a mask to NaN":
            weights = jax.nn.softmax(scores + jnp.where(is_visible, 0, -1e10))
        else:
            weights = jax.nn.softmax(jnp.where(is_visible, scores, -1e10))
        if fault != "multiplies NaN by 0":
            is_filled = jnp.arange(num_slots) < (positions + tokens.shape[1])[:, None]
            slots = jnp.where(is_filled[:, :, None], slots, 0)
        mixed = jnp.einsum("bts,bsd->btd", weights, slots, precision="highest")
        hidden = x + mixed + cache["source"][:, None]
        logits = jnp.einsum("btd,vd->btv", hidden, params["embedding"], precision="highest")
        return logits, {**cache, "slots": stored}


def spoil_toy(cache, positions, value):
    is_beyond = (np.arange(cache["slots"].shape[1]) >= positions[:, None])[:, :, None]
    return {**cache, "slots": jnp.where(is_beyond, value, cache["slots"])}


def _equivalent(model, params, inputs):
    tokens, lengths = inputs
    longer = EncoderInputs(jnp.pad(tokens, ((0, 0), (0, 5)), constant_values=3), lengths)
    contract.check_inputs_are_equivalent(model, params, [inputs, longer])


CONTRACT = {
    "blocks": contract.check_blocks_equal_full_pass,
    "roll-back": contract.check_rolled_back_tokens_leave_no_trace,
    "leaks": functools.partial(
        contract.check_slots_beyond_the_position_never_leak, spoil_fn=spoil_toy
    ),
    "rows": contract.check_rows_are_independent,
    "causality": contract.check_a_token_changes_its_own_and_later_rows_only,
    "chunking": contract.check_every_chunking_agrees,
    "padding": _equivalent,
}


@pytest.mark.parametrize("check", CONTRACT)
def test_a_sound_toy_model_passes_the_contract(check):
    CONTRACT[check](Toy(), Toy().init(), encoder_inputs())


@pytest.mark.parametrize(
    "fault, check",
    [
        ("adds into its slots", "roll-back"),
        ("sees all that was written", "roll-back"),
        ("sees its block's future", "causality"),
        ("sees its block's future", "blocks"),
        ("bias without offset", "chunking"),
        ("bias without offset", "blocks"),
        ("the batch's smallest position", "rows"),
        ("adds a mask to NaN", "leaks"),
        ("multiplies NaN by 0", "leaks"),
        ("padding counted", "padding"),
    ],
)
def test_the_contract_fails_where_a_fault_is_planted(fault, check):
    with pytest.raises(AssertionError, match=r"logits differ|doesn't reach"):
        CONTRACT[check](Toy(fault), Toy().init(), encoder_inputs())
