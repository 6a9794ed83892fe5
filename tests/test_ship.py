"""A pair that was trained becomes one that a repository can hold."""

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
