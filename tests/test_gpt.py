"""The decoder-only model: the contract, an independent pass, the paper's sizes, the loop's laws."""

import collections
import dataclasses
import functools
import itertools

import checks
import contract
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import speculative
from specdec.config import SpecConfig
from specdec.drafters import HeadsDrafter, ModelDrafter
from specdec.models import GPTConfig, GPTLanguageModel
from specdec.models.gpt import CONFIGS, GPT
from specdec.models.layers import relative_position_bucket
from specdec.sampling import settings

SHAPE = dict(vocab_size=24, d_model=32, d_ff=48, num_heads=4, head_dim=8)
CONFIG = GPTConfig(**SHAPE, num_layers=2)
INPUTS = jnp.arange(3)


@functools.cache
def random_params(config=CONFIG, seed=0):
    params = GPTLanguageModel(config).init(jax.random.key(seed))
    return jax.tree.map(lambda leaf: 1.5 * leaf, params)


def spoil(cache, positions, value):
    """Puts a value in all slots at and beyond positions."""
    is_beyond = (np.arange(cache.keys[0].shape[2]) >= positions[:, None])[:, None, :, None]
    spoilt = lambda slots: tuple(jnp.where(is_beyond, value, one) for one in slots)
    return cache.replace(keys=spoilt(cache.keys), values=spoilt(cache.values))


CONTRACT = contract.all_checks(spoil)


@pytest.mark.parametrize("check", CONTRACT)
def test_it_keeps_the_contract(check):
    CONTRACT[check](GPTLanguageModel(CONFIG), random_params(), INPUTS)


def test_logits_are_those_of_a_pass_written_out_in_numpy():
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), random_params())
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 40)
    length, heads = len(tokens), CONFIG.num_heads
    decoder = params["decoder"]

    def norm(x, name, layer):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer[name]["scale"]

    def gelu(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    distance = np.arange(length) - np.arange(length)[:, None]
    bucket = relative_position_bucket(
        distance, bidirectional=False, num_buckets=32, max_distance=128
    )
    bias = decoder["relpos_bias"]["rel_embedding"][:, np.asarray(bucket)]
    bias = np.where(distance <= 0, bias, -np.inf)
    x = params["token_embedder"]["embedding"][tokens]
    for number in range(CONFIG.num_layers):
        layer = decoder[f"layers_{number}"]
        normed = norm(x, "pre_self_attention_layer_norm", layer)
        q, k, v = (
            (normed @ layer["self_attention"][name]["kernel"]).reshape(length, heads, -1)
            for name in ("query", "key", "value")
        )
        scores = np.exp(np.einsum("thk,shk->hts", q, k) + bias)
        mixed = np.einsum("hts,shk->thk", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(length, -1) @ layer["self_attention"]["out"]["kernel"]
        hidden = norm(x, "pre_mlp_layer_norm", layer) @ layer["mlp"]["wi"]["kernel"]
        x = x + gelu(hidden) @ layer["mlp"]["wo"]["kernel"]
    expected = norm(x, "decoder_norm", decoder) @ decoder["logits_dense"]["kernel"]
    found = GPT(CONFIG).apply({"params": random_params()}, tokens[None])[0]
    assert np.abs(found - expected).max() < 2e-4


@pytest.mark.parametrize(
    "name, millions_in_layers, millions_in_tables",
    [("gpt_97m", 84.9, 12.6), ("gpt_6m", 1.6, 4.2)],
)
def test_the_papers_sizes(name, millions_in_layers, millions_in_tables):
    config = CONFIGS[name]
    shapes = jax.eval_shape(GPTLanguageModel(config).init, jax.random.key(0))
    sizes = jax.tree.map(lambda leaf: leaf.size, shapes)
    total = sum(jax.tree.leaves(sizes))
    tables = 2 * config.vocab_size * config.d_model
    assert round(tables / 1e6, 1) == millions_in_tables
    # Norms and the position bias are the .02M that it has more.
    assert (total - tables) / 1e6 == pytest.approx(millions_in_layers, abs=0.06)


def pair():
    target = GPTLanguageModel(CONFIG)
    draft = GPTLanguageModel(GPTConfig(**{**SHAPE, "d_model": 16}, num_layers=1))
    params = speculative.PairParams(random_params(), random_params(draft.config, seed=1))
    return checks.Pair(target, ModelDrafter(draft), params, INPUTS)


def test_greedy_speculation_is_plain_decoding():
    assert not checks.greedy_differences(pair(), gammas=(3,))


@pytest.mark.parametrize("num_ahead", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_samples_follow_the_enumerated_law(num_ahead):
    """Three tokens of four ids, every sequence enumerated by full passes."""
    config = GPTConfig(**{**SHAPE, "vocab_size": 4}, num_layers=1)
    target = GPTLanguageModel(config)
    draft = dataclasses.replace(config, num_ahead=num_ahead)
    params = speculative.PairParams(random_params(config), random_params(draft, seed=1))
    drafter = (ModelDrafter if num_ahead == 1 else HeadsDrafter)(GPTLanguageModel(draft))
    many = checks.Pair(target, drafter, params, jnp.arange(20_000))
    how = SpecConfig(gamma=2, max_new_tokens=3, eos_id=checks.EOS)
    result = many.speculate(checks.keys(0, 20_000), how, settings(1.0))
    found = fakes.sequences(np.asarray(result.tokens), np.asarray(result.lengths))
    prefixes = np.array([[fakes.START, *two] for two in itertools.product(range(4), repeat=2)])
    probs = np.asarray(jax.nn.softmax(GPT(config).apply({"params": params.target}, prefixes)))
    law = collections.Counter()
    for (_, a, b), rows in zip(prefixes.tolist(), probs, strict=True):
        for c in range(4):
            sequence = (a, b, c)
            if checks.EOS in sequence:
                sequence = sequence[: sequence.index(checks.EOS) + 1]
            law[sequence] += float(rows[0, a] * rows[1, b] * rows[2, c])
    assert fakes.chi_square_p_value(collections.Counter(found), law) > 1e-4


@pytest.mark.parametrize("bad", [dict(num_layers=0), dict(dtype=jnp.float16)])
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        GPTConfig(**bad)
