"""T5X's checkpoints in all their forms, and conversion between them and the others."""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from absl import flags
from flax import serialization
from test_checkpoints import (
    BOTH,
    DRAFT,
    FIXTURES,
    V1_0,
    V1_1,
    assert_same,
    needs_fixtures,
    random_params,
)

from experiments import convert
from specdec.checkpoints import forms, huggingface, leaves, msgpack_map, native, shards, strict, t5x
from specdec.checkpoints.strict import CheckpointError
from specdec.models import t5

LAYERS = {"encoder": V1_1.num_encoder_layers, "decoder": V1_1.num_decoder_layers}


def flat_params(config):
    return strict.flatten(random_params(config))


def as_map(config, **more):
    target = jax.tree.map(np.asarray, random_params(config))
    slots = {"token_embedder": {"embedding": {"v": np.ones(3, np.float32)}}}
    state = {"step": np.int32(7), "param_states": slots}
    return {"version": 3, "optimizer": {"target": target, "state": state, **more}}


def write_one_file(path, content):
    path.write_bytes(serialization.msgpack_serialize(content))
    return path


# Native: an index, and arrays beside it


@BOTH
def test_what_was_saved_in_t5x_form_comes_back(config, tmp_path):
    t5x.save(tmp_path / "checkpoint_7", random_params(config), config, step=7)
    params, loaded = t5x.load(tmp_path / "checkpoint_7")
    assert_same(params, random_params(config))
    assert loaded == config
    index = serialization.msgpack_restore((tmp_path / "checkpoint_7" / "checkpoint").read_bytes())
    assert index["version"] == 3 and index["optimizer"]["state"]["step"] == 7


def test_native_form_lies_in_folders_with_t5x_names(tmp_path):
    t5x.save(tmp_path / "checkpoint_0", random_params(V1_1), V1_1)
    found = {path.name for path in (tmp_path / "checkpoint_0").iterdir()}
    expected = {f"target.{name.replace('/', '.')}" for name in strict.expected_shapes(V1_1)}
    assert found == expected | {"checkpoint"}
    about = json.loads(
        (tmp_path / "checkpoint_0/target.encoder.layers_0.mlp.wo.kernel/.zarray").read_text()
    )
    assert (about["shape"], about["dtype"]) == ([12, 8], "<f4")


@BOTH
def test_t5x_bfloat16_arrays_load_as_either_dtype(config, tmp_path):
    t5x.save(tmp_path / "model", random_params(config), config, storage_dtype=jnp.bfloat16)
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(config))
    params, loaded = t5x.load(tmp_path / "model", jnp.bfloat16)
    assert_same(params, rounded)
    assert loaded.dtype == jnp.bfloat16
    widened = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded)
    assert_same(t5x.load(tmp_path / "model")[0], widened)
    assert_same(t5x.load(tmp_path / "model", stays_narrow=True)[0], rounded)


def test_what_t5x_cannot_hold_is_refused(tmp_path):
    for config, match in (
        (DRAFT, "num_encoder_layers=0"),
        (dataclasses.replace(V1_0, num_logits=3), "num_logits=3"),
        (dataclasses.replace(V1_1, scale_logits=True), "scale_logits=True"),
    ):
        with pytest.raises(CheckpointError, match=match):
            t5x.save(tmp_path / "x", random_params(config), config)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match=r"holds thesis\.tex"):
        t5x.save(tmp_path / "full", random_params(V1_0), V1_0)


# One file


@BOTH
def test_the_one_file_form_is_read_without_the_optimizers_state(config, tmp_path):
    path = write_one_file(tmp_path / "checkpoint_7", as_map(config))
    params, loaded = t5x.load(path)
    assert_same(params, random_params(config))
    assert loaded == config


def test_arrays_in_pieces_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 64)
    path = write_one_file(tmp_path / "checkpoint_7", as_map(V1_0))
    assert_same(t5x.load(path)[0], random_params(V1_0))


def test_walking_a_map_finds_what_unpacking_it_finds():
    nested = {
        "a": {"b": np.arange(6.0).reshape(2, 3), "none": {}, "c": [1, 2]},
        "d": jnp.ones(4, jnp.bfloat16),
        "e": "PLACEHOLDER://x",
        "f": np.zeros((2, 0), np.int32),
    }
    content = serialization.msgpack_serialize(nested)
    found = dict(msgpack_map.walk(content))
    assert found.keys() == {("a", "b"), ("a", "c"), ("d",), ("e",), ("f",)}
    assert found["e",] == "PLACEHOLDER://x" and found["a", "c"] == [1, 2]
    for path, array in (
        (("a", "b"), nested["a"]["b"]),
        (("d",), nested["d"]),
        (("f",), nested["f"]),
    ):
        packed = found[path]
        assert (packed.shape, packed.dtype) == (array.shape, array.dtype.name)
        np.testing.assert_array_equal(packed.read(content), array)


def test_a_map_that_is_cut_short_is_told_at_every_length():
    content = serialization.msgpack_serialize({"a": {"b": np.arange(6.0)}, "c": 1})
    for length in range(len(content)):
        with pytest.raises(ValueError, match="cut short"):
            list(msgpack_map.walk(content[:length]))


# Orbax


@pytest.mark.parametrize("use_zarr3", [False, True])
@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_orbax_checkpoints_are_read(use_ocdbt, use_zarr3, tmp_path):
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(V1_1))
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    for folder in ("checkpoint_3", "checkpoint_4/default"):
        path = tmp_path / folder
        path.parent.mkdir(exist_ok=True)
        ocp.Checkpointer(handler).save(path, {"target": narrow, "state": {"step": 3}})
        params, config = t5x.load(tmp_path / folder.split("/")[0], jnp.bfloat16)
        assert_same(params, narrow)
        assert config == dataclasses.replace(V1_1, dtype=jnp.bfloat16)


def test_placeholders_of_old_orbax_name_folders(tmp_path):
    t5x.save(tmp_path / "model", random_params(V1_0), V1_0)
    names = {name: f"PLACEHOLDER://target.{name.replace('/', '.')}" for name in flat_params(V1_0)}
    content = {"optimizer": {"target": strict.unflatten(names)}}
    write_one_file(tmp_path / "model" / "checkpoint", content)
    assert_same(t5x.load(tmp_path / "model")[0], random_params(V1_0))


# Scanned layers


def scanned(config, change_fn=lambda name, stack: stack):
    """Parameters with every layer's arrays stacked along axis 1, as t5x's scalable_t5 has them."""
    stacked = {}
    for name, leaf in flat_params(config).items():
        side, *rest = name.split("/")
        if rest[0] == "relpos_bias":
            stack = np.stack([leaf] * LAYERS[side], axis=1)
            stacked[f"{side}/layers/relative_posemb/rel_embedding"] = stack
        elif rest[0].startswith("layers_"):
            stacked.setdefault(f"{side}/layers/{'/'.join(rest[1:])}", []).append(np.asarray(leaf))
        else:
            stacked[name] = np.asarray(leaf)
    stacked = {
        name: np.stack(leaf, axis=1) if isinstance(leaf, list) else leaf
        for name, leaf in stacked.items()
    }
    changed = {name: change_fn(name, leaf) for name, leaf in stacked.items()}
    return {"optimizer": {"target": strict.unflatten(changed)}}


def test_scanned_layers_are_taken_apart(tmp_path):
    path = write_one_file(tmp_path / "checkpoint_1", scanned(V1_1))
    params, config = t5x.load(path)
    assert_same(params, random_params(V1_1))
    assert config == V1_1


def test_a_position_bias_of_each_layer_is_refused(tmp_path):
    def change(name, leaf):
        return leaf + np.arange(leaf.shape[1])[:, None] if "relative_posemb" in name else leaf

    path = write_one_file(tmp_path / "checkpoint_1", scanned(V1_1, change))
    with pytest.raises(CheckpointError, match="differs from layer to layer"):
        t5x.load(path)


# What is refused


def test_one_error_lists_all_names_of_t5x_that_are_wrong(tmp_path):
    content = as_map(V1_1)
    target = content["optimizer"]["target"]
    del target["encoder"]["encoder_norm"]
    target["decoder"]["layers_0"]["mlp"]["wi_1"]["kernel"] = np.zeros((12, 8), np.float32)
    target["decoder"]["adapter"] = {"kernel": np.zeros((2, 2), np.int8)}
    with pytest.raises(CheckpointError) as caught:
        t5x.load(write_one_file(tmp_path / "checkpoint_1", content))
    for line in (
        "4 problem(s)",
        "missing encoder/encoder_norm/scale (8,)",
        "left over decoder/adapter/kernel (2, 2)",
        "wrong shape decoder/layers_0/mlp/wi_1/kernel: (12, 8) instead of (8, 12)",
        "wrong dtype decoder/adapter/kernel: int8",
    ):
        assert line in str(caught.value)


def test_what_is_no_t5x_checkpoint_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"no T5X checkpoint at .*nowhere"):
        t5x.load(tmp_path / "nowhere")
    t5x.save(tmp_path / "run" / "checkpoint_9", random_params(V1_0), V1_0)
    assert_same(forms.load(tmp_path / "run")[0], random_params(V1_0))
    (tmp_path / "run" / "checkpoint_8").mkdir()
    with pytest.raises(CheckpointError, match="it holds checkpoint_8, checkpoint_9: give one"):
        forms.load(tmp_path / "run")
    path = tmp_path / "other"
    path.write_text("a text")
    with pytest.raises(CheckpointError, match="cut short"):
        t5x.load(path)
    write_one_file(path, {"optimizer": {"state": {"x": np.ones(3)}}})
    with pytest.raises(CheckpointError, match="holds none of optimizer/target"):
        t5x.load(path)
    write_one_file(path, {"params": {"x": np.ones(3)}})
    with pytest.raises(CheckpointError, match="missing token_embedder/embedding"):
        t5x.load(path)
    array = tmp_path / "run/checkpoint_9/target.decoder.decoder_norm.scale/.zarray"
    array.unlink()
    with pytest.raises(CheckpointError, match=r"can't be read .*decoder\.decoder_norm\.scale"):
        t5x.load(tmp_path / "run" / "checkpoint_9")


# Models that t5x wrote


@needs_fixtures
def test_a_folder_that_t5x_wrote_is_the_model_it_was_made_of():
    params, config = t5x.load(FIXTURES / "made" / "t5x_native_v11" / "checkpoint_0")
    theirs, their_config = huggingface.load(FIXTURES / "made" / "hf_v11_untied")
    assert_same(params, theirs)
    assert config == their_config


@needs_fixtures
def test_a_file_that_t5x_wrote_is_read():
    params, config = t5x.load(FIXTURES / "t5x_test_t5_tiny.checkpoint_0")
    assert (config.vocab_size, config.num_heads, config.head_dim) == (32128, 4, 3)
    whole = serialization.msgpack_restore((FIXTURES / "t5x_test_t5_tiny.checkpoint_0").read_bytes())
    assert_same(params, jax.tree.map(jnp.asarray, whole["optimizer"]["target"]))


# Placing


@pytest.mark.parametrize("form", ["native", "huggingface", "t5x"])
def test_leaves_go_where_their_sharding_says(form, tmp_path):
    forms.FORMS[form].save(tmp_path / "model", random_params(V1_1), V1_1)
    asked = {}

    def sharding_fn(name, shape):
        asked[name] = shape
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])

    params, _ = forms.load(tmp_path / "model", sharding_fn=sharding_fn)
    assert_same(params, random_params(V1_1))
    assert asked == strict.expected_shapes(V1_1)


def test_a_part_of_a_leaf_is_that_part_of_the_whole():
    whole = np.arange(24.0).reshape(2, 3, 4)
    (leaf,) = leaves.in_memory({"x": whole}).values()
    rows, columns = slice(1, 3), slice(0, 1)
    np.testing.assert_array_equal(
        leaf.slice_of(2, 1).read_fn((columns, rows)), whole[columns, 2, rows]
    )
    flat = leaves.in_memory({"x": whole[0]})["x"].transposed
    np.testing.assert_array_equal(flat.read_fn((rows, columns)), whole[0].T[rows, columns])
    assert flat.shape == (4, 3)


# Shards


def test_large_weights_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards.write, "__kwdefaults__", {"max_bytes": 400})
    for form in (native, huggingface):
        folder = tmp_path / form.__name__
        form.save(folder, random_params(V1_1), V1_1)
        files = sorted(path.name for path in folder.glob("model-*.safetensors"))
        assert len(files) > 5 and files[0].startswith("model-00001-of-000")
        sizes = [(folder / name).stat().st_size for name in files]
        biggest = max(4 * leaf.size for leaf in flat_params(V1_1).values())
        assert max(sizes) < max(400, biggest) + 2000  # and the header
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"].values()) == set(files)
        total = sum(4 * leaf.size for leaf in flat_params(V1_1).values())
        assert index["metadata"]["total_size"] == total
        assert_same(form.load(folder)[0], random_params(V1_1))


# Conversion


@pytest.mark.parametrize("source", forms.FORMS)
@pytest.mark.parametrize("form", forms.FORMS)
def test_every_form_converts_into_every_form(source, form, tmp_path):
    forms.FORMS[source].save(tmp_path / "a", random_params(V1_1), V1_1)
    convert.convert(str(tmp_path / "a"), str(tmp_path / "b"), form=form)
    assert forms.form_of(tmp_path / "b") == form
    params, config = forms.load(tmp_path / "b")
    assert_same(params, random_params(V1_1))
    assert config == V1_1


def test_conversion_rounds_to_the_dtype_asked_for(tmp_path):
    native.save(tmp_path / "a", random_params(V1_0), V1_0)
    convert.convert(str(tmp_path / "a"), str(tmp_path / "b"), form="t5x", dtype="bfloat16")
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(V1_0))
    assert_same(forms.load(tmp_path / "b", stays_narrow=True)[0], rounded)


def command(*arguments):
    """Runs the command in this process; its exit status."""
    values = flags.FlagValues()
    convert.define_flags(values)
    return convert.main(values(["convert", *arguments]), values)


def test_bad_conversions_end_in_one_line(tmp_path, capsys):
    native.save(tmp_path / "a", random_params(DRAFT), DRAFT)
    paths = {"from": tmp_path / "a", "to": tmp_path / "b", "form": "native"}
    for changes, match in (
        ({"form": "onnx"}, "form='onnx' is none of native, huggingface, t5x"),
        ({"form": "t5x"}, "num_encoder_layers=0"),
        ({"to": tmp_path / "a"}, "is there already"),
        ({"from": tmp_path / "x"}, "no checkpoint at"),
        ({"dtype": "int8"}, "dtype='int8' is neither"),
        ({"to": ""}, "--to not given"),
    ):
        flagged = (f"--{name}={value}" for name, value in {**paths, **changes}.items())
        assert command(*flagged) == 2
        errors = capsys.readouterr().err
        assert match in errors and errors.count("\n") == 1, errors
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("form", ["native", "t5x"])
def test_a_killed_conversion_leaves_nothing_that_looks_whole(form, tmp_path, monkeypatch):
    """A conversion that stops in its last tensor, and is killed there."""
    native.save(tmp_path / "a", random_params(V1_0), V1_0)
    program = f"""
import time
from specdec.checkpoints import native, leaves
opened = native.opened
import contextlib
@contextlib.contextmanager
def slow(*args):
    with opened(*args) as (found, config):
        last = list(found)[-1]
        def wait(index):
            print("last", flush=True)
            time.sleep(60)
        yield found | {{last: found[last]._replace(read_fn=wait)}}, config
native.opened = slow
from experiments import convert
convert.convert({str(tmp_path / "a")!r}, {str(tmp_path / "b")!r}, form={form!r})
"""
    run = subprocess.Popen([sys.executable, "-c", program], stdout=-1, text=True)
    assert run.stdout.readline() == "last\n"
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    left = [path.name for path in tmp_path.iterdir() if path.name != "a"]
    assert all(name.startswith(".b.partial") for name in left)
    convert.convert(str(tmp_path / "a"), str(tmp_path / "b"), form=form)
    assert_same(forms.load(tmp_path / "b")[0], random_params(V1_0))


# Memory


PEAK = """
import sys, threading, time
import jax, jax.numpy as jnp
from specdec.checkpoints import forms

def held():
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) * 1024 for l in lines if l.startswith("RssAnon"))

jnp.zeros(8).block_until_ready()  # JAX itself
base, peak, done = held(), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, held())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
params, _ = forms.load(sys.argv[1], jnp.bfloat16)
jax.block_until_ready(params)
done = True
thread.join()
one = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
print((peak - base) / one)
"""


@pytest.mark.soak
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("form", [*forms.FORMS, "one file"])
def test_loading_two_gigabytes_holds_little_more_than_one_copy(form, tmp_path):
    """2 GB in float32, loaded as bfloat16: peak at most 1.3 times what is loaded."""
    config = t5.v1_0(d_model=1024, d_ff=4096, num_heads=16, num_encoder_layers=16)
    config = dataclasses.replace(config, num_decoder_layers=18)
    rng = np.random.default_rng(0)
    flat = {
        name: rng.standard_normal(shape, np.float32)
        for name, shape in strict.expected_shapes(config).items()
    }
    assert sum(leaf.nbytes for leaf in flat.values()) > 2e9
    path = tmp_path / "model"
    if form == "one file":
        with path.open("wb") as file:
            file.write(serialization.msgpack_serialize({"target": strict.unflatten(flat)}))
    else:
        forms.FORMS[form].write(path, leaves.in_memory(flat), config)
    del flat
    began = time.monotonic()
    run = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    print(f"{form}: {run.stdout.strip()} copies, {time.monotonic() - began:.1f} s")
    assert float(run.stdout) <= 1.3
