"""Bytes of a step, counted by hand for a small T5."""

import jax
import pytest
import toys

from specdec import costs
from specdec.models import T5LanguageModel


def params_of(config):
    return jax.eval_shape(T5LanguageModel(config).init, jax.random.key(0))


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_decoder_layers_and_head(tied):
    config = toys.config(1, num_decoder_layers=2, tied=tied)
    width, inner = config.d_model, config.num_heads * config.head_dim
    attention = width * inner  # one of its matrices
    # Of the cross-attention, query and out only: keys and values are computed once a request.
    layer = 4 * attention + 2 * attention + 2 * width * config.d_ff + 3 * width
    rest = width + config.num_heads * config.num_buckets  # the last norm, position biases
    expected = 4 * (2 * layer + rest + config.vocab_size * width)
    assert costs.weight_bytes(params_of(config), config) == expected


def test_a_short_head_reads_its_rows_only():
    whole, short = (toys.config(1, num_logits=n) for n in (None, 32))
    saved = costs.weight_bytes(params_of(whole), whole) - costs.weight_bytes(
        params_of(short), short
    )
    assert saved == 4 * (whole.vocab_size - 32) * whole.d_model


def test_each_row_reads_its_own_keys_and_values():
    config = toys.config(1)
    params = params_of(config)
    bare = costs.step_bytes(params, config)
    assert bare == costs.weight_bytes(params, config)
    slots = 2 * (5 + 7) * config.num_heads * config.head_dim * 4
    found = costs.step_bytes(params, config, num_rows=3, encoder_length=5, decoder_length=7)
    assert found - bare == 3 * slots
