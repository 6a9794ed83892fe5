"""The adapter of t5x's decoding, against a stand-in that refuses what the real one refuses.

The stand-in has the real functions' signatures and state; its loops are plain and slow.
"""

import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments.baselines import t5x
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.models import T5LanguageModel
from specdec.sampling import settings
from specdec.types import EncoderInputs

CONFIG = toys.config(1)
MODEL = T5LanguageModel(CONFIG)
NUM = 6


class DecodingState(NamedTuple):
    cur_index: Any
    sequences: Any
    cur_token: Any
    cache: Any


def _expand(cache, times):
    assert all(leaf.ndim > 0 for leaf in jax.tree.leaves(cache))
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), cache)


def temperature_sample(
    inputs,
    cache,
    tokens_to_logits,
    eos_id,
    decode_rng=None,
    num_decodes=1,
    temperature=1.0,
    topk=1,
    topp=0.0,
    cache_offset=0,
    initial_index=None,
    max_decode_steps=None,
    max_decode_steps_hard_limit=None,
    rescale_log_probs=True,
    state_callback_fn=None,
    logit_callback_fn=None,
):
    assert isinstance(cache, dict) and inputs.dtype == jnp.int32
    assert num_decodes == 1 and not (topk and topp)
    rows, length = inputs.shape
    tokens, ended = jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
    sequences = jnp.zeros((rows, length), jnp.int32)
    for step in range(length):
        state = DecodingState(jnp.full(rows, step), sequences, tokens[:, None], cache)
        logits, cache = tokens_to_logits(state)
        assert logits.shape == (rows, CONFIG.vocab_size)
        if temperature == 0.0 or topk == 1:
            drawn = jnp.argmax(logits, -1)
        else:
            decode_rng, key = jax.random.split(decode_rng)
            drawn = jax.random.categorical(key, logits / temperature)
        tokens = jnp.where(ended, 0, drawn).astype(jnp.int32)
        ended |= tokens == eos_id
        sequences = sequences.at[:, step].set(tokens)
    return sequences[:, None], jnp.zeros((rows, 1))


def beam_search(
    inputs,
    cache,
    tokens_to_logits,
    eos_id,
    num_decodes=4,
    alpha=0.6,
    max_decode_len=None,
    decode_rng=None,
    cache_offset=0,
):
    """One row; no early end, no length penalty: as long as no beam holds EOS."""
    assert isinstance(cache, dict) and inputs.shape[0] == 1
    cache = _expand(cache, num_decodes)
    scores = jnp.array([0.0] + [-1e7] * (num_decodes - 1))
    sequences = jnp.zeros((num_decodes, max_decode_len), jnp.int32)
    tokens = jnp.zeros(num_decodes, jnp.int32)
    for step in range(max_decode_len):
        state = DecodingState(jnp.array(step), sequences, tokens[:, None], cache)
        logits, cache = tokens_to_logits(state)
        total = (scores[:, None] + jax.nn.log_softmax(logits)).ravel()
        scores, picked = jax.lax.top_k(total, num_decodes)
        beams, tokens = picked // logits.shape[1], picked % logits.shape[1]
        cache = jax.tree.map(lambda leaf, beams=beams: leaf[beams], cache)
        sequences = sequences[beams].at[:, step].set(tokens)
    return sequences[::-1][None], scores[::-1][None]


@pytest.fixture
def stand_in(monkeypatch):
    decoding = types.ModuleType("t5x.decoding")
    decoding.temperature_sample, decoding.beam_search = temperature_sample, beam_search
    package = types.ModuleType("t5x")
    monkeypatch.setitem(sys.modules, "t5x", package)
    monkeypatch.setitem(sys.modules, "t5x.decoding", decoding)


@pytest.fixture(scope="module")
def setting():
    params = jax.tree.map(lambda leaf: 2 * leaf, MODEL.init(jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(3, 128, (3, 7)).astype(np.int32)
    return params, EncoderInputs(jnp.asarray(tokens), jnp.array([7, 4, 5]))


def plain(params, inputs, num=NUM):
    rows = inputs.lengths.shape[0]
    return autoregressive_decode(
        params,
        inputs,
        jnp.zeros((rows, 1), jnp.int32),
        jax.random.split(jax.random.key(0), rows),
        model=MODEL,
        settings=settings(0.0),
        config=SpecConfig(max_new_tokens=num),
    )


def test_t5x_s_loop_over_our_model_gives_our_greedy_tokens(stand_in, setting):
    params, inputs = setting
    found = t5x.greedy(params, model=MODEL, max_new_tokens=NUM, is_theirs=False)(inputs)
    np.testing.assert_array_equal(found, plain(params, inputs).tokens)


def test_sampling_follows_its_key(stand_in, setting):
    params, inputs = setting
    parts = t5x.over_ours(params, inputs, model=MODEL, max_new_tokens=NUM)
    draw = lambda seed: t5x.sample(
        *parts, num_rows=3, max_new_tokens=NUM, temperature=1.0, key=jax.random.PRNGKey(seed)
    )
    np.testing.assert_array_equal(draw(0), draw(0))
    assert (draw(0) != draw(1)).any()


def test_one_beam_is_greedy_and_more_are_likelier(stand_in, setting):
    params, inputs = setting
    one = jax.tree.map(lambda leaf: leaf[:1], inputs)
    parts = t5x.over_ours(params, one, model=MODEL, max_new_tokens=NUM)
    how = dict(num_rows=1, max_new_tokens=NUM)
    narrow = t5x.beam_search(*parts, num_beams=1, **how)
    np.testing.assert_array_equal(narrow, plain(params, one).tokens)
    wide = t5x.beam_search(*parts, num_beams=8, **how)
    assert log_prob(params, one, wide) >= log_prob(params, one, narrow)


def log_prob(params, inputs, tokens):
    cache = MODEL.init_cache(params, inputs, NUM + 1)
    shifted = jnp.pad(tokens[:, :-1], [(0, 0), (1, 0)])
    logits, _ = MODEL.extend(params, cache, shifted, jnp.zeros(1, jnp.int32))
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
    return float(picked.sum())


def test_only_leaves_with_rows_are_carried(setting):
    params, inputs = setting
    _, carried = t5x.over_ours(params, inputs, model=MODEL, max_new_tokens=NUM)
    assert carried and all(leaf.shape[0] == 3 for leaf in carried.values())


@pytest.mark.skipif("t5x" in sys.modules, reason="t5x is installed")
def test_without_t5x_one_line_says_where_it_comes_from(setting):
    with pytest.raises(
        ValueError, match=r"t5x isn't installed .*: its README, google-research/t5x"
    ):
        t5x.greedy(setting[0], model=MODEL, max_new_tokens=NUM, is_theirs=False)
