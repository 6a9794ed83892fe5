"""What compiles and what doesn't: one program per (batch, encoder bucket, buffer length, gamma).

The programs are the loop's own jit cache, counted before and after; table models compile fastest.
"""

import functools

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import compilation, speculative
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.drafters import RandomDrafter
from specdec.models.t5 import T5LanguageModel, v1_0
from specdec.sampling import settings
from specdec.speculative import PairParams, speculative_decode
from specdec.types import EncoderInputs
from specdec.verification import lenient_greedy, lenient_sampling

BASE = dict(temperature=0.9, top_p=0.8)


def request(batch_size=2, *, salt=0, limits=(3, 3), seed=0):
    return dict(
        inputs=fakes.TableInputs(jnp.full(batch_size, salt, jnp.int32)),
        prompt=jnp.zeros((batch_size, 1), jnp.int32),
        keys=checks.keys(seed, batch_size),
        limits=jnp.asarray(limits, jnp.int32)[:batch_size],
    )


def decode(how=None, *, gamma=1, cache_length=None, verify_fn=None, batch_size=2, **kwargs):
    asked = request(batch_size, **kwargs)
    return speculative_decode(
        PairParams(TABLE),
        **asked,
        target=fakes.TableModel(4),
        drafter=RandomDrafter(4),
        settings=settings(**(how or BASE)),
        config=SpecConfig(gamma=gamma, max_new_tokens=3, cache_length=cache_length),
        verify_fn=verify_fn,
    )


TABLE = jnp.asarray(fakes.random_table(0, 4))
GREEDY = {"temperature": 0}


def num_compiles(run):
    before = speculative._decode._cache_size()
    run()
    return speculative._decode._cache_size() - before


def test_other_values_compile_nothing():
    """Another temperature above 0, top-p, seed, limits, or source."""
    decode()
    for change in (
        dict(how={**BASE, "temperature": 0.1}),
        dict(how={**BASE, "temperature": 2}),
        dict(how={**BASE, "top_p": 0.3}),
        dict(how={**BASE, "top_p": 1}),
        dict(seed=7),
        dict(limits=(1, 2)),
        dict(limits=(0, 0)),
        dict(limits=(99, 3)),
        dict(salt=5),
    ):
        assert num_compiles(lambda change=change: decode(**change)) == 0, change


def test_configs_of_equal_values_share_a_program():
    """Models, drafters and configs are compared by value, not by identity."""
    decode()
    assert num_compiles(lambda: decode(gamma=int("1"))) == 0


@pytest.mark.parametrize(
    "rule, how", [(lenient_greedy, GREEDY), (lenient_sampling, BASE)], ids=["greedy", "sampling"]
)
def test_another_lenience_compiles_nothing(rule, how):
    decode(how, verify_fn=rule(0.5))
    for lenience in (0.9, 0.1, 1.0):
        assert num_compiles(lambda lenience=lenience: decode(how, verify_fn=rule(lenience))) == 0


def test_lenience_reaches_the_rule():
    """So the test above isn't met by a program that has forgotten it."""
    results = [decode(GREEDY, verify_fn=lenient_greedy(lenience)) for lenience in (1.0, 1e-6)]
    accepted = [int(np.maximum(r.speculation.accept_counts, 0).sum()) for r in results]
    assert accepted[1] == int(results[1].speculation.num_tested.sum()) > 0
    assert accepted[0] < accepted[1]


@pytest.mark.parametrize(
    "change",
    [dict(batch_size=1), dict(gamma=2), dict(cache_length=16)],
    ids=["batch", "gamma", "buffer"],
)
def test_another_shape_compiles_once(change):
    decode(GREEDY)
    assert num_compiles(lambda: decode(GREEDY, **change)) == 1
    assert num_compiles(lambda: decode(GREEDY, **change, seed=3)) == 0


def test_plain_decoding_compiles_nothing_for_other_values():
    def plain(how, **kwargs):
        asked = request(**kwargs)
        autoregressive_decode(
            TABLE,
            **asked,
            model=fakes.TableModel(4),
            settings=settings(**how),
            config=SpecConfig(max_new_tokens=3),
        )
        return autoregressive_decode._cache_size()

    before = plain(BASE)
    assert plain({"temperature": 0.1, "top_p": 0.3}, seed=7, limits=(1, 2), salt=5) == before


def test_another_source_length_in_the_bucket_compiles_nothing():
    """T5: the bucket is the width of the array, the length a number."""
    shape = dict(vocab_size=16, d_model=8, d_ff=8, num_heads=1, head_dim=4)
    model = T5LanguageModel(v1_0(**shape, num_encoder_layers=1, num_decoder_layers=1))
    params = jax.jit(model.init)(jax.random.key(0))
    run = functools.partial(
        speculative_decode,
        PairParams(params),
        prompt=jnp.zeros((1, 1), jnp.int32),
        keys=checks.keys(0, 1),
        target=model,
        drafter=RandomDrafter(16),
        settings=settings(0),
        config=SpecConfig(gamma=1, max_new_tokens=3),
    )
    source = lambda n: EncoderInputs(jnp.arange(8, dtype=jnp.int32)[None], jnp.array([n]))
    assert num_compiles(lambda: run(inputs=source(8))) == 1
    assert num_compiles(lambda: run(inputs=source(3))) == 0


def test_a_block_inside_another_is_counted_in_both():
    with compilation.counted() as outer:
        for number in range(2):
            # Both blocks have counted nothing when the inner one begins, and as much when it ends.
            with compilation.counted() as inner:
                jax.jit(lambda x, number=number: x + number)(1)
            assert inner.count == 1
    assert outer.count == 2
