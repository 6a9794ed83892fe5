"""Checkpoints: our own form, Hugging Face's, and what both refuse."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specdec.checkpoints import huggingface, native, shards, strict
from specdec.checkpoints.strict import CheckpointError
from specdec.models import t5
from specdec.models.t5 import T5, T5Config

SMALL = {"vocab_size": 20, "d_model": 8, "d_ff": 12, "num_heads": 2, "head_dim": 6}
V1_0 = t5.v1_0(**SMALL, num_encoder_layers=1, num_decoder_layers=2)
V1_1 = T5Config(**SMALL, num_encoder_layers=2, num_decoder_layers=1)
DRAFT = t5.v1_0(**SMALL, num_encoder_layers=0, num_decoder_layers=1, encoder_dim=10)
BOTH = pytest.mark.parametrize("config", [V1_0, V1_1], ids=["v1_0", "v1_1"])

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / ".." / "shared" / "fixtures"
needs_fixtures = pytest.mark.skipif(
    not FIXTURES.exists(), reason="needs the folder shared/fixtures beside the repository"
)


@functools.cache
def random_params(config, seed=0):
    rng = np.random.default_rng(seed)
    shapes = strict.expected_shapes(config)
    return strict.unflatten(
        {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}
    )


def assert_same(params, others):
    flat, other = strict.flatten(params), strict.flatten(others)
    assert flat.keys() == other.keys()
    for name, leaf in flat.items():
        assert leaf.dtype == other[name].dtype, name
        np.testing.assert_array_equal(leaf, other[name], err_msg=name)


# Our own form


@pytest.mark.parametrize("config", [V1_0, V1_1, DRAFT], ids=["v1_0", "v1_1", "draft"])
def test_what_was_saved_comes_back(config, tmp_path):
    native.save(tmp_path / "a" / "model", random_params(config), config)
    params, loaded = native.load(tmp_path / "a" / "model")
    assert_same(params, random_params(config))
    assert loaded == config
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["model"]


def test_every_field_of_the_config_survives(tmp_path):
    odd = dataclasses.replace(
        V1_1, scale_logits=True, num_buckets=16, max_distance=64, dropout_rate=0.1
    )
    native.save(tmp_path / "model", random_params(odd), odd)
    content = json.loads((tmp_path / "model" / "config.json").read_text())
    fields = {field.name for field in dataclasses.fields(T5Config)}
    assert content.keys() == {"model_type", *fields}
    assert content["model_type"] == "specdec_t5" and content["dtype"] == "float32"
    assert native.load(tmp_path / "model")[1] == odd
    assert native.load(str(tmp_path / "model"), jnp.bfloat16)[1] == dataclasses.replace(
        odd, dtype=jnp.bfloat16
    )


def test_tensors_are_stored_under_flat_t5x_names(tmp_path):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert stored.keys() == strict.expected_shapes(V1_0).keys()
    kernel = random_params(V1_0)["decoder"]["layers_1"]["mlp"]["wi"]["kernel"]
    np.testing.assert_array_equal(stored["decoder/layers_1/mlp/wi/kernel"], kernel)


def test_bfloat16_storage_halves_the_file_and_rounds_once(tmp_path):
    params = random_params(V1_1)
    native.save(tmp_path / "whole", params, V1_1)
    native.save(tmp_path / "half", params, V1_1, storage_dtype=jnp.bfloat16)
    whole, half = (
        sum(leaf.nbytes for leaf in load_file(tmp_path / name / "model.safetensors").values())
        for name in ("whole", "half")
    )
    assert 2 * half == whole
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    as_float32, config = native.load(tmp_path / "half")
    assert_same(as_float32, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded))
    assert config == V1_1
    assert_same(native.load(tmp_path / "half", jnp.bfloat16)[0], rounded)
    assert_same(native.load(tmp_path / "whole", jnp.bfloat16)[0], rounded)
    as_stored, config = native.load(tmp_path / "half", stays_narrow=True)
    assert_same(as_stored, rounded)
    assert config.dtype == jnp.float32
    assert_same(native.load(tmp_path / "whole", stays_narrow=True)[0], params)


def test_saving_again_replaces_the_older_checkpoint(tmp_path):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)
    native.save(tmp_path / "model", random_params(V1_1), V1_1)
    params, config = native.load(tmp_path / "model")
    assert_same(params, random_params(V1_1))
    assert config == V1_1
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_older_checkpoint_whole(error, tmp_path, monkeypatch):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)

    def cut_short(arrays, path, **_):
        pathlib.Path(path).write_bytes(b"half")
        raise error

    monkeypatch.setattr(shards, "save_file", cut_short)
    with pytest.raises(type(error)):
        native.save(tmp_path / "model", random_params(V1_0, seed=1), V1_0)
    assert_same(native.load(tmp_path / "model")[0], random_params(V1_0))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    with pytest.raises(type(error)):
        native.save(tmp_path / "new", random_params(V1_0), V1_0)
    assert not (tmp_path / "new").exists()


def test_a_failed_rename_puts_the_older_checkpoint_back(tmp_path, monkeypatch):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)
    right = pathlib.Path.rename

    def rename(self, target):
        if ".partial-" in self.name:
            raise OSError("no")
        return right(self, target)

    monkeypatch.setattr(pathlib.Path, "rename", rename)
    with pytest.raises(OSError, match="no"):
        native.save(tmp_path / "model", random_params(V1_0, seed=1), V1_0)
    assert_same(native.load(tmp_path / "model")[0], random_params(V1_0))


def test_a_kill_between_the_renames_loses_nothing(tmp_path):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)
    (tmp_path / "model").rename(tmp_path / ".model.replaced")
    with pytest.raises(CheckpointError, match=r"cut short.*\.model\.replaced"):
        native.load(tmp_path / "model")
    assert_same(native.load(tmp_path / ".model.replaced")[0], random_params(V1_0))
    native.save(tmp_path / "model", random_params(V1_1), V1_1)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_saving_refuses_to_replace_a_folder_that_holds_other_things(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"thesis\.tex"):
        native.save(tmp_path, random_params(V1_0), V1_0)
    assert (tmp_path / "thesis.tex").exists()


def test_saving_refuses_parameters_of_another_config(tmp_path):
    with pytest.raises(CheckpointError, match="missing decoder/logits_dense/kernel") as caught:
        native.save(tmp_path / "model", random_params(V1_0), V1_1)
    assert "left over decoder/layers_1/mlp/wi/kernel" in str(caught.value)
    with pytest.raises(CheckpointError, match="outer 'params'"):
        native.save(tmp_path / "model", {"params": random_params(V1_0)}, V1_0)
    assert not list(tmp_path.iterdir())


def _rewrite(path, change):
    """Changes the tensors of a safetensors file in place."""
    tensors = load_file(path)
    change(tensors)
    save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, path)


def test_one_error_lists_every_name_that_is_missing_left_over_or_of_another_shape(tmp_path):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)

    def change(tensors):
        del tensors["encoder/encoder_norm/scale"], tensors["decoder/layers_1/mlp/wo/kernel"]
        tensors["decoder/logits_dense/kernel"] = np.zeros((8, 20), np.float32)
        tensors["encoder/layers_7/mlp/wo/kernel"] = np.zeros((12, 8), np.float32)
        wi = "encoder/layers_0/mlp/wi/kernel"
        tensors[wi] = tensors[wi].T
        tensors["token_embedder/embedding"] = np.zeros((21, 8), np.float32)
        tensors["decoder/decoder_norm/scale"] = np.zeros(8, np.int8)

    _rewrite(tmp_path / "model" / "model.safetensors", change)
    with pytest.raises(CheckpointError) as caught:
        native.load(tmp_path / "model")
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    for line in (
        "model.safetensors: 7 problem(s)",
        "missing encoder/encoder_norm/scale (8,)",
        "missing decoder/layers_1/mlp/wo/kernel (12, 8)",
        "left over decoder/logits_dense/kernel (8, 20)",
        "left over encoder/layers_7/mlp/wo/kernel (12, 8)",
        "wrong shape encoder/layers_0/mlp/wi/kernel: (12, 8) instead of (8, 12)",
        "wrong shape token_embedder/embedding: (21, 8) instead of (20, 8)",
        "wrong dtype decoder/decoder_norm/scale: I8",
        "belong to different models",
    ):
        assert line in message


def test_a_truncated_or_missing_file_is_named(tmp_path):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 20, 0):
        weights.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be read"):
            native.load(tmp_path / "model")
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing, and its index"):
        native.load(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text()[:30])
    with pytest.raises(CheckpointError, match=r"config\.json: no JSON, or cut short"):
        native.load(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere"):
        native.load(tmp_path / "nowhere")


def test_a_config_of_another_kind_is_refused(tmp_path):
    native.save(tmp_path / "model", random_params(V1_0), V1_0)
    path = tmp_path / "model" / "config.json"
    content = json.loads(path.read_text())
    for change, match in (
        ({"model_type": "t5"}, "model_type='t5' is none of specdec_t5"),
        ({"num_experts": 8}, "unknown field num_experts"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float31"}, "float31"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(CheckpointError, match=match):
            native.load(tmp_path / "model")


# Hugging Face's form, written here from random weights by names spelled out by hand

_THEIR_LAYERS = {
    "encoder": {
        "attention/query/kernel": "layer.0.SelfAttention.q",
        "attention/key/kernel": "layer.0.SelfAttention.k",
        "attention/value/kernel": "layer.0.SelfAttention.v",
        "attention/out/kernel": "layer.0.SelfAttention.o",
        "pre_attention_layer_norm/scale": "layer.0.layer_norm",
        "mlp/wi/kernel": "layer.1.DenseReluDense.wi",
        "mlp/wi_0/kernel": "layer.1.DenseReluDense.wi_0",
        "mlp/wi_1/kernel": "layer.1.DenseReluDense.wi_1",
        "mlp/wo/kernel": "layer.1.DenseReluDense.wo",
        "pre_mlp_layer_norm/scale": "layer.1.layer_norm",
    },
    "decoder": {
        "self_attention/query/kernel": "layer.0.SelfAttention.q",
        "self_attention/key/kernel": "layer.0.SelfAttention.k",
        "self_attention/value/kernel": "layer.0.SelfAttention.v",
        "self_attention/out/kernel": "layer.0.SelfAttention.o",
        "pre_self_attention_layer_norm/scale": "layer.0.layer_norm",
        "encoder_decoder_attention/query/kernel": "layer.1.EncDecAttention.q",
        "encoder_decoder_attention/key/kernel": "layer.1.EncDecAttention.k",
        "encoder_decoder_attention/value/kernel": "layer.1.EncDecAttention.v",
        "encoder_decoder_attention/out/kernel": "layer.1.EncDecAttention.o",
        "pre_cross_attention_layer_norm/scale": "layer.1.layer_norm",
        "mlp/wi/kernel": "layer.2.DenseReluDense.wi",
        "mlp/wi_0/kernel": "layer.2.DenseReluDense.wi_0",
        "mlp/wi_1/kernel": "layer.2.DenseReluDense.wi_1",
        "mlp/wo/kernel": "layer.2.DenseReluDense.wo",
        "pre_mlp_layer_norm/scale": "layer.2.layer_norm",
    },
}
_THEIR_OTHERS = {
    "token_embedder/embedding": "shared",
    "decoder/logits_dense/kernel": "lm_head",
    "encoder/encoder_norm/scale": "encoder.final_layer_norm",
    "decoder/decoder_norm/scale": "decoder.final_layer_norm",
    "encoder/relpos_bias/rel_embedding": (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    ),
    "decoder/relpos_bias/rel_embedding": (
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    ),
}
HEAD, TABLE = "lm_head.weight", "shared.weight"


def their_tensors(params):
    tensors = {}
    for name, leaf in strict.flatten(params).items():
        if name in _THEIR_OTHERS:
            theirs = _THEIR_OTHERS[name]
        else:
            side, layer, rest = name.split("/", 2)
            theirs = f"{side}.block.{layer.removeprefix('layers_')}.{_THEIR_LAYERS[side][rest]}"
        is_transposed = name.endswith(("kernel", "rel_embedding"))
        leaf = np.asarray(leaf)
        tensors[f"{theirs}.weight"] = np.ascontiguousarray(leaf.T if is_transposed else leaf)
    return tensors


def their_config(config, **changes):
    content = {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "d_kv": config.head_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": "gated-gelu" if config.gated else "relu",
        "layer_norm_epsilon": 1e-6,
        "tie_word_embeddings": config.tied,
        "dropout_rate": 0.1,
        **changes,
    }
    return {name: value for name, value in content.items() if value is not None}


def write_theirs(folder, config, tensors=None, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(their_config(config, **changes)))
    tensors = their_tensors(random_params(config)) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@BOTH
def test_every_weight_of_theirs_finds_its_place(config, tmp_path):
    params, loaded = huggingface.load(write_theirs(tmp_path, config))
    assert_same(params, random_params(config))
    assert loaded == config


@pytest.mark.parametrize(
    "config",
    [
        V1_0,
        V1_1,
        dataclasses.replace(V1_0, scale_logits=False),
        dataclasses.replace(V1_1, tied=True),
    ],
)
def test_what_was_saved_in_their_form_comes_back(config, tmp_path):
    huggingface.save(tmp_path / "theirs", random_params(config), config)
    params, loaded = huggingface.load(tmp_path / "theirs")
    assert_same(params, random_params(config))
    assert loaded == config


@BOTH
def test_their_form_is_written_by_names_spelled_out_by_hand(config, tmp_path):
    huggingface.save(tmp_path / "theirs", random_params(config), config)
    found = load_file(tmp_path / "theirs" / "model.safetensors")
    expected = their_tensors(random_params(config))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)
    content = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert their_config(config, dropout_rate=0.0).items() <= content.items()


def test_what_their_form_cannot_hold_is_refused(tmp_path):
    for changes, match in (
        (dict(num_encoder_layers=0, encoder_dim=8), "num_encoder_layers=0"),
        (dict(num_logits=3), "num_logits=3"),
    ):
        with pytest.raises(CheckpointError, match=match):
            huggingface.save(tmp_path / "x", {}, dataclasses.replace(V1_0, **changes))
    with pytest.raises(CheckpointError, match="missing decoder/logits_dense/kernel"):
        huggingface.save(tmp_path / "x", random_params(V1_0), V1_1)
    assert not list(tmp_path.iterdir())


@BOTH
def test_their_bfloat16_and_float16_files_load_as_either_dtype(config, tmp_path):
    for stored in (jnp.bfloat16, jnp.float16):
        rounded = jax.tree.map(lambda leaf, dtype=stored: leaf.astype(dtype), random_params(config))
        write_theirs(tmp_path, config, their_tensors(rounded))
        for dtype in (jnp.float32, jnp.bfloat16):
            params, loaded = huggingface.load(tmp_path, dtype)
            expected = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), rounded)
            assert_same(params, expected)
            assert loaded == dataclasses.replace(config, dtype=dtype)
    with pytest.raises(ValueError, match="float16"):
        huggingface.load(tmp_path, jnp.float16)


def test_shards_are_read_through_their_index(tmp_path):
    tensors = write_theirs(tmp_path, V1_1) and their_tensors(random_params(V1_1))
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same(huggingface.load(tmp_path)[0], random_params(V1_1))
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: can't be read"):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    "changes, head, tied, scale",
    [
        # Before transformers 5: tie_word_embeddings says all, and is left out where true.
        ({"tie_word_embeddings": True}, None, True, None),
        ({"tie_word_embeddings": None}, None, True, None),
        ({"tie_word_embeddings": None}, "equal", True, None),
        ({"tie_word_embeddings": False}, "other", False, None),
        # Untied by name, but with the table as its head: no scale.
        ({"tie_word_embeddings": False}, "equal", True, False),
        # From transformers 5 on every T5 says that it is tied.
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, None, True, None),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, None, True, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, "other", False, None),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, "other", False, True),
    ],
)
def test_head_and_scale_follow_the_file_then_the_flags(changes, head, tied, scale, tmp_path):
    tensors = their_tensors(random_params(V1_0))
    other = np.random.default_rng(5).normal(size=tensors[TABLE].shape).astype(np.float32)
    if head:
        tensors[HEAD] = {"equal": tensors[TABLE], "other": other}[head]
    params, config = huggingface.load(write_theirs(tmp_path, V1_0, tensors, **changes))
    assert (config.tied, config.scale_logits) == (tied, scale)
    assert ("logits_dense" in params["decoder"]) == (not tied)
    if not tied:
        np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], other.T)


def test_an_untied_model_without_its_head_is_refused(tmp_path):
    write_theirs(tmp_path, V1_0, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight \(20, 8\)"):
        huggingface.load(tmp_path)


def test_names_that_carry_nothing_new_are_allowed(tmp_path):
    tensors = their_tensors(random_params(V1_0))
    for side in ("encoder", "decoder"):
        tensors[f"{side}.embed_tokens.weight"] = tensors[TABLE]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unused] = np.ones((32, 2), np.float32)
    assert_same(huggingface.load(write_theirs(tmp_path, V1_0, tensors))[0], random_params(V1_0))
    tensors["encoder.embed_tokens.weight"] = tensors[TABLE] + 1
    write_theirs(tmp_path, V1_0, tensors)
    with pytest.raises(CheckpointError, match=r"encoder\.embed_tokens\.weight differs"):
        huggingface.load(tmp_path)


def test_one_error_lists_all_of_their_names_that_are_wrong(tmp_path):
    tensors = their_tensors(random_params(V1_1))
    del tensors["encoder.final_layer_norm.weight"], tensors[TABLE]
    wo = "decoder.block.0.layer.2.DenseReluDense.wo.weight"
    tensors[wo] = np.ascontiguousarray(tensors[wo].T)
    per_layer = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
    tensors[per_layer] = np.zeros((32, 2), np.float32)
    tensors["encoder.block.0.layer.0.SelfAttention.q.weight"] = np.zeros((12, 8), np.int8)
    write_theirs(tmp_path, V1_1, tensors)
    with pytest.raises(CheckpointError) as caught:
        huggingface.load(tmp_path)
    for line in (
        "5 problem(s)",
        "missing encoder.final_layer_norm.weight (8,)",
        "missing shared.weight (20, 8)",
        f"left over {per_layer} (32, 2)",
        f"wrong shape {wo}: (12, 8) instead of (8, 12)",
        "wrong dtype encoder.block.0.layer.0.SelfAttention.q.weight: I8",
    ):
        assert line in str(caught.value)


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"model_type": "bert"}, "model_type='bert'"),
        ({"model_type": "umt5"}, "model_type='umt5'"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=false"),
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'"),
        ({"dense_act_fn": "gelu"}, "dense_act_fn='gelu'"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05"),
        ({"d_kv": None, "num_heads": None}, r"missing d_kv\..*\n  missing num_heads"),
        ({"vocab_size": 32}, r"wrong shape shared\.weight: \(20, 8\) instead of \(32, 8\)"),
    ],
)
def test_what_is_no_such_t5_is_refused(changes, match, tmp_path):
    with pytest.raises(CheckpointError, match=match):
        huggingface.load(write_theirs(tmp_path, V1_1, **changes))


def test_old_configs_without_later_fields_mean_t5_1_0(tmp_path):
    config = dataclasses.replace(V1_0, num_decoder_layers=1)
    write_theirs(
        tmp_path,
        config,
        feed_forward_proj=None,
        num_decoder_layers=None,
        tie_word_embeddings=None,
        layer_norm_epsilon=None,
        is_encoder_decoder=None,
    )
    assert huggingface.load(tmp_path)[1] == config


def test_their_truncated_or_missing_files_are_named(tmp_path):
    weights = write_theirs(tmp_path, V1_0) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be read"):
        huggingface.load(tmp_path)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickle"):
        huggingface.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"nowhere.config\.json"):
        huggingface.load(tmp_path / "nowhere")


# Models that transformers wrote, and what it computed with them


@needs_fixtures
@pytest.mark.parametrize("folder, error", [("hf_v10_tied", 2e-6), ("hf_v11_untied", 2e-5)])
def test_reference_logits_of_transformers_are_reproduced(folder, error):
    """The logits of 1.0 are of order 5, those of 1.1 of order 25. Op by op, so that no compiler
    flag moves the last digit."""
    params, config = huggingface.load(FIXTURES / "made" / folder)
    (reference,) = (FIXTURES / "made" / folder).glob("*.npz")
    reference = np.load(reference)
    source = reference["enc"].astype(np.int32)
    lengths = (source != 0).sum(1)  # the fixture's own padding: one row of 150, one of 100

    model = T5(config).bind({"params": params})
    encoded = model.encode(source, lengths)
    logits = model.decode(encoded, lengths, reference["dec"].astype(np.int32))
    is_real = np.arange(source.shape[1]) < lengths[:, None]
    for name, ours, theirs in (
        ("encoder output", encoded[is_real], reference["enc_out"][is_real]),
        ("logits", logits, reference["logits"]),
    ):
        assert np.abs(ours - theirs).max() <= error, name


@needs_fixtures
@pytest.mark.parametrize(
    "folder, width, num_layers, num_parameters",
    [("target", 384, 4, 19_620_480), ("draft", 128, 1, 1_492_096)],
)
def test_the_trained_pair_loads(folder, width, num_layers, num_parameters):
    params, config = huggingface.load(FIXTURES / "pair_ende" / folder)
    assert config.d_model == width and config.vocab_size == 8064
    assert config.num_encoder_layers == config.num_decoder_layers == num_layers
    assert config.tied and config.scale_logits is None and not config.gated
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == num_parameters
    assert all(leaf.dtype == jnp.float32 and np.isfinite(leaf).all() for leaf in leaves)


@needs_fixtures
def test_a_trained_model_survives_our_own_form_bit_by_bit(tmp_path):
    """Its weights are bfloat16, so that storing them as such loses nothing."""
    params, config = huggingface.load(FIXTURES / "pair_ende" / "draft")
    native.save(tmp_path / "draft", params, config, storage_dtype=jnp.bfloat16)
    assert_same(native.load(tmp_path / "draft")[0], params)
