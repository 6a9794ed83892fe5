"""Every refusal comes before compiling, and says which values are wrong."""

import math

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.config import SpecConfig, buffer_length, checked_num_ids, checked_requests
from specdec.drafters import RandomDrafter
from specdec.sampling import settings
from specdec.verification import lenient_greedy, lenient_sampling

KEYS = jax.random.split(jax.random.key(0), 2)
PROMPT = jnp.zeros((2, 3), jnp.int32)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"gamma": -1}, "gamma=-1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": -3}, "max_new_tokens=-3"),
    ],
)
def test_impossible_configs_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        SpecConfig(**wrong)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"temperature": -0.5}, "temperature=-0.5"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_p": 0.0}, r"top_p=0\.0"),
        ({"top_p": 1.01}, r"top_p=1\.01"),
        ({"top_p": math.nan}, "top_p=nan"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty=0\.0"),
        ({"repetition_penalty": -1.5}, r"repetition_penalty=-1\.5"),
        ({"temperature": 0, "top_p": 0.0}, r"top_p=0\.0"),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        settings(**wrong)


@pytest.mark.parametrize("lenience", [0.0, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("rule", [lenient_sampling, lenient_greedy])
def test_impossible_lenience_is_refused(rule, lenience):
    with pytest.raises(ValueError, match=f"lenience={lenience}"):
        rule(lenience)


def test_buffer_length_has_room_for_prompt_new_tokens_and_slack():
    config = SpecConfig(gamma=4, max_new_tokens=10)
    assert buffer_length(config, prompt_length=3, slack=5) == 18
    longer = SpecConfig(gamma=4, max_new_tokens=10, cache_length=64)
    assert buffer_length(longer, prompt_length=3, slack=5) == 64


def test_a_short_cache_length_is_refused_with_the_sum():
    """dynamic_update_slice would clamp silently."""
    config = SpecConfig(gamma=4, max_new_tokens=10, cache_length=17)
    with pytest.raises(ValueError, match=r"cache_length=17 < prompt 3 .* 10 \+ 5 = 18"):
        buffer_length(config, prompt_length=3, slack=5)


@pytest.mark.parametrize("decode, needed", [("speculate", 1 + 6 + 3), ("plain", 1 + 6 + 1)])
def test_decoding_refuses_a_cache_one_slot_too_short(decode, needed):
    config = SpecConfig(gamma=2, max_new_tokens=6, cache_length=needed - 1)
    with pytest.raises(ValueError, match=f"cache_length={needed - 1} .* = {needed}"):
        getattr(checks.table_pair(batch_size=2), decode)(KEYS, config, settings(0))


@pytest.mark.parametrize("num_ids", [0, -1, 41])
def test_num_ids_outside_the_table_are_refused(num_ids):
    with pytest.raises(ValueError, match=rf"num_ids={num_ids}: .* 1\.\.40"):
        checked_num_ids(SpecConfig(num_ids=num_ids), fakes.TableModel(40))


@pytest.mark.parametrize("eos_id", [-1, 36, 39])
def test_an_eos_that_cannot_be_emitted_is_refused(eos_id):
    with pytest.raises(ValueError, match=rf"eos_id={eos_id}: .* 0\.\.35"):
        checked_num_ids(SpecConfig(num_ids=36, eos_id=eos_id), fakes.TableModel(40))


@pytest.mark.parametrize("sizes", [(32128, 32100), (32100, 32128), (40, 36), (36, 40)])
def test_vocabularies_that_differ_by_padding_are_allowed(sizes):
    target, draft = sizes
    config = SpecConfig(num_ids=36)
    assert checked_num_ids(config, fakes.TableModel(target), RandomDrafter(draft)) == 36
    assert checked_num_ids(SpecConfig(), fakes.TableModel(target), RandomDrafter(draft)) == target


@pytest.mark.parametrize("sizes", [(32128, 32000), (250112, 32128), (36, 164)])
def test_vocabularies_that_differ_by_more_are_refused(sizes):
    """B25."""
    target, draft = sizes
    with pytest.raises(ValueError, match=f"target has {target} ids and the draft {draft}"):
        checked_num_ids(SpecConfig(), fakes.TableModel(target), RandomDrafter(draft))


def test_decoding_refuses_another_vocabulary_before_compiling():
    pair = checks.table_pair(batch_size=2, drafter=RandomDrafter(4 + 128))
    with pytest.raises(ValueError, match="target has 4 ids and the draft 132"):
        pair.speculate(KEYS, SpecConfig(gamma=1, max_new_tokens=1), settings(1.0))


def test_requests_are_filled_up_to_one_batch():
    config = SpecConfig(max_new_tokens=5)
    prompt, prompt_lengths, limits = checked_requests(PROMPT, None, None, KEYS, config)
    np.testing.assert_array_equal(prompt_lengths, [3, 3])
    np.testing.assert_array_equal(limits, [5, 5])
    assert {x.dtype for x in (prompt, prompt_lengths, limits)} == {jnp.dtype(jnp.int32)}


def test_limits_never_exceed_max_new_tokens():
    config = SpecConfig(max_new_tokens=5)
    *_, limits = checked_requests(PROMPT, None, jnp.array([3, 99]), KEYS, config)
    np.testing.assert_array_equal(limits, [3, 5])


@pytest.mark.parametrize("shape", [(2,), (2, 0), (2, 3, 1)])
def test_prompts_of_another_shape_are_refused(shape):
    prompt = jnp.zeros(shape, jnp.int32)
    with pytest.raises(ValueError, match=r"prompt has shape .* \[B, P\] with P >= 1"):
        checked_requests(prompt, None, None, KEYS, SpecConfig())


@pytest.mark.parametrize(
    "keys",
    [
        jax.random.PRNGKey(0),  # one raw key: [2] uint32, the shape of a batch of 2
        jax.random.split(jax.random.PRNGKey(0), 2),
        jax.random.key(0),
        jax.random.split(jax.random.key(0), 3),
    ],
    ids=["raw", "raw_batch", "one", "one_too_many"],
)
def test_keys_must_be_typed_and_one_a_row(keys):
    with pytest.raises(ValueError, match=r"keys have dtype .* 2 typed keys"):
        checked_requests(PROMPT, None, None, keys, SpecConfig())


@pytest.mark.parametrize("decode", ["speculate", "plain"])
def test_decoding_refuses_raw_keys(decode):
    run = getattr(checks.table_pair(batch_size=2), decode)
    with pytest.raises(ValueError, match="typed keys"):
        run(jax.random.PRNGKey(0), SpecConfig(gamma=1, max_new_tokens=1), settings(1.0))
