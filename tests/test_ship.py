"""A pair that was trained becomes one that a repository can hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments.ship import ship
from specdec.checkpoints import native
from specdec.text import load_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toys.write_pair(tmp_path_factory.mktemp("pair"))


def test_what_is_shipped_is_the_pair_rounded_to_bfloat16(folder, tmp_path):
    models = {name: str(folder / name) for name in ("target", "draft")}
    for _ in range(2):  # the second replaces the first
        ship("unused", pair=str(tmp_path), models=models, vocabulary=str(folder / "spiece.model"))
    load_pair(tmp_path / "target", tmp_path / "draft", tmp_path / "spiece.model")
    before, after = (native.load(path / "target")[0] for path in (folder, tmp_path))
    table, shipped = (tree["token_embedder"]["embedding"] for tree in (before, after))
    np.testing.assert_array_equal(shipped, table.astype(jnp.bfloat16).astype(jnp.float32))


def test_a_missing_model_is_refused_before_anything_is_written(folder, tmp_path):
    models = {"target": str(folder / "target"), "draft": str(folder / "none")}
    with pytest.raises(ValueError, match="none"):
        ship("unused", pair=str(tmp_path), models=models, vocabulary=str(folder / "spiece.model"))
    assert not list(tmp_path.iterdir())


def test_what_was_trained_on_ships_without_what_it_shares_with_its_base(folder, tmp_path):
    words, base = str(folder / "spiece.model"), tmp_path / "pair" / "target"
    models = {"target": str(folder / "target")}
    ship("unused", pair=str(base.parent), models=models, vocabulary=words)
    params, config = native.load(base)
    params["decoder"]["decoder_norm"]["scale"] += 2
    native.save(tmp_path / "trained", params, config)
    models, bases = {"target": str(tmp_path / "trained")}, {"target": str(base)}
    ship("unused", pair=str(tmp_path / "tasks"), models=models, vocabulary=words, bases=bases)
    loaded, _ = native.load(tmp_path / "tasks" / "target")
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(leaf.dtype), params)
    jax.tree.map(np.testing.assert_array_equal, loaded, rounded)
    sizes = [(path / "model.safetensors").stat().st_size for path in (tmp_path / "trained", base)]
    shipped = (tmp_path / "tasks" / "target" / "model.safetensors").stat().st_size
    assert shipped < 0.1 * min(sizes)


def test_a_base_of_no_model_is_refused(folder, tmp_path):
    models, words = {"target": str(folder / "target")}, str(folder / "spiece.model")
    with pytest.raises(ValueError, match="bases has 'draft', which is none of target"):
        ship("unused", pair=str(tmp_path), models=models, vocabulary=words, bases={"draft": "x"})
    assert not list(tmp_path.iterdir())
