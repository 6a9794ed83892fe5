"""Checkpoints that hold only what sets them apart from their base."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from specdec.checkpoints import native
from specdec.checkpoints.strict import CheckpointError
from specdec.models import T5LanguageModel


@pytest.fixture
def pair(tmp_path):
    """Folders of a base and of a model trained on from it in the decoder alone; its parameters."""
    config = toys.config(1)
    first, second = (T5LanguageModel(config).init(jax.random.key(seed)) for seed in (0, 1))
    base, model = tmp_path / "pair" / "target", tmp_path / "tasks" / "target"
    native.save(base, first, config, storage_dtype=jnp.bfloat16)
    stored, _ = native.load(base)
    trained = {**stored, "decoder": second["decoder"]}
    native.save(model, trained, config, storage_dtype=jnp.bfloat16, base=base)
    return base, model, trained


def test_what_is_shared_is_left_out_and_comes_back(pair):
    base, model, trained = pair
    loaded, config = native.load(model)
    assert config == native.load(base)[1]
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), trained)
    jax.tree.map(np.testing.assert_array_equal, loaded, rounded)
    with native.opened(base) as (flat, _):
        shared = sum(leaf.num_bytes for name, leaf in flat.items() if "decoder/" not in name)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (base, model)]
    assert shared > 0
    assert sizes[1] <= sizes[0] - shared


def test_both_may_move_together(pair, tmp_path):
    _, model, _ = pair
    before, _ = native.load(model)
    shutil.copytree(tmp_path, tmp_path.parent / "elsewhere")
    shutil.rmtree(tmp_path)
    after, _ = native.load(tmp_path.parent / "elsewhere" / "tasks" / "target")
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_a_base_that_is_gone_is_named(pair):
    base, model, _ = pair
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*pair/target"):
        native.load(model)


def test_another_edition_of_the_base_is_refused(pair):
    base, model, trained = pair
    native.save(base, trained, native.load(base)[1], storage_dtype=jnp.bfloat16)
    with pytest.raises(CheckpointError, match="trained on from another edition of"):
        native.load(model)


def test_a_base_without_a_digest_is_refused(pair):
    _, model, _ = pair
    config = json.loads((model / "config.json").read_text())
    del config["base"]["digest"]
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="is no path and digest: copy it again"):
        native.load(model)
