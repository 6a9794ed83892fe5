"""Rematerialised layers: the same gradients, of fewer kept values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models import GPTConfig, GPTLanguageModel
from specdec.models.gpt import GPT
from specdec.models.t5 import T5, T5Config, T5LanguageModel

SHAPE = dict(vocab_size=24, d_model=32, d_ff=128, num_heads=2, head_dim=16, dropout_rate=0.1)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 24, (4, 48)), jnp.int32)
LENGTHS = jnp.full(4, 48)
MODELS = {
    "t5": (T5LanguageModel, T5, T5Config(**SHAPE, num_encoder_layers=1, num_decoder_layers=2)),
    "gpt": (GPTLanguageModel, GPT, GPTConfig(**SHAPE, num_layers=2)),
}


def loss_of(module, has_encoder):
    """The mean squared logit, with dropout."""

    def loss(params):
        inputs = (TOKENS, LENGTHS, TOKENS) if has_encoder else (TOKENS,)
        rngs = {"dropout": jax.random.key(0)}
        logits = module.apply({"params": params}, *inputs, deterministic=False, rngs=rngs)
        return (logits**2).mean()

    return loss


def kept_bytes(loss, params):
    """Of all that the backward pass is handed by the forward pass."""
    backward = jax.eval_shape(lambda given: jax.vjp(loss, given)[1], params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_same_of_fewer_kept_values(name):
    model_type, module_type, config = MODELS[name]
    params = model_type(config).init(jax.random.key(1))
    results, sizes = [], []
    for remat in (False, True):
        loss = loss_of(module_type(dataclasses.replace(config, remat=remat)), name == "t5")
        results.append(jax.jit(jax.grad(loss))(params))
        sizes.append(kept_bytes(loss, params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), *results)
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize("name", MODELS)
def test_it_is_a_matter_of_training_alone(name):
    config = dataclasses.replace(MODELS[name][2], remat=True)
    assert not config.without_training().remat
