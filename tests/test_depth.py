"""A trained model made deeper, or shallower again, goes on about where it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments.depth import change, changed
from specdec.checkpoints import native
from specdec.models import T5LanguageModel
from specdec.models.t5 import T5

SHALLOW = toys.config(1)
PARAMS = T5LanguageModel(SHALLOW).init(jax.random.key(0))
TOKENS, LENGTHS = jnp.array([[5, 9, 3, 77, 1]]), jnp.array([5])


def logits(params, config):
    return np.asarray(T5(config).apply({"params": params}, TOKENS, LENGTHS, TOKENS))


def with_weak_layers(params, strength):
    """The same model with what its layers add to the residual stream made small."""

    def weakened(path, leaf):
        return leaf * strength if any(key.key in ("out", "wo") for key in path) else leaf

    return jax.tree_util.tree_map_with_path(weakened, params)


@pytest.mark.parametrize("layers", [(1, 3), (2, 1)])
def test_a_deeper_model_agrees_with_the_shallow_one_to_first_order(layers):
    """x + f(x) against k steps of f(x) / k: 1/10 of f leaves 1/100 of the difference or so."""
    num_layers = dict(zip(("encoder", "decoder"), layers, strict=True))
    differences = []
    for strength in (1e-1, 1e-2):
        params = with_weak_layers(PARAMS, strength)
        deep, config = changed(params, SHALLOW, num_layers)
        effect = np.abs(logits(params, SHALLOW) - logits(with_weak_layers(PARAMS, 0.0), SHALLOW))
        differences.append(np.abs(logits(deep, config) - logits(params, SHALLOW)).max())
        assert differences[-1] < 0.2 * effect.max()
    assert differences[1] < 0.03 * differences[0]


def test_copies_stand_beside_their_layer(tmp_path):
    config = toys.config(2)
    toys.write_model(tmp_path / "shallow", config, 0)
    change(str(tmp_path), model=str(tmp_path / "shallow"), num_decoder_layers=6)
    before, _ = native.load(tmp_path / "shallow")
    after, deep_config = native.load(tmp_path / "export")
    assert (deep_config.num_encoder_layers, deep_config.num_decoder_layers) == (2, 6)
    for index in range(6):
        old, new = before["decoder"][f"layers_{index // 3}"], after["decoder"][f"layers_{index}"]
        np.testing.assert_array_equal(new["mlp"]["wi"]["kernel"], old["mlp"]["wi"]["kernel"])
        for part, name in (
            ("self_attention", "out"),
            ("encoder_decoder_attention", "out"),
            ("mlp", "wo"),
        ):
            written = 3 * new[part][name]["kernel"]
            np.testing.assert_allclose(written, old[part][name]["kernel"], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, before["encoder"], after["encoder"])


def test_shallower_undoes_deeper():
    deep, config = changed(PARAMS, SHALLOW, {"encoder": 2, "decoder": 4})
    again, shallow = changed(deep, config, {"encoder": 1, "decoder": 1})
    assert shallow == SHALLOW
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), again, PARAMS)


def test_merged_layers_write_the_sum_of_what_they_wrote():
    config = toys.config(2)
    params = T5LanguageModel(config).init(jax.random.key(1))
    merged, _ = changed(params, config, {"encoder": 2, "decoder": 1})
    first, second = (params["decoder"][f"layers_{index}"]["mlp"] for index in (0, 1))
    one = merged["decoder"]["layers_0"]["mlp"]
    sums = first["wo"]["kernel"] + second["wo"]["kernel"]
    means = (first["wi"]["kernel"] + second["wi"]["kernel"]) / 2
    np.testing.assert_allclose(one["wo"]["kernel"], sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one["wi"]["kernel"], means, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [0, 3])
def test_a_number_of_layers_that_is_no_multiple_is_refused(count, tmp_path):
    toys.write_model(tmp_path / "model", toys.config(2), 0)
    with pytest.raises(ValueError, match=f"num_decoder_layers={count}: must be a multiple or a"):
        change(str(tmp_path), model=str(tmp_path / "model"), num_decoder_layers=count)
    assert not (tmp_path / "export").exists()
