"""Several devices: the same outputs as on one, split kernels, and processes that work together.

Run in processes of their own, since JAX counts its devices when it starts.
"""

import json
import os
import re
import socket
import subprocess
import sys

import jax
import pytest
import toys
from jax.sharding import PartitionSpec

from experiments import records, run
from experiments.devices import Devices
from specdec.sharding import REPLICATED, SHARDED, Layout, make_mesh

ONE_EACH = {"data": 1, "model": 1}


def run_python(program, num_devices=8, timeout=500, arguments=()):
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": "tests"}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


SETTING = """
import jax, jax.numpy as jnp, numpy as np
from specdec.apart import decode_apart
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.drafters import ModelDrafter, SharedEncoderDrafter
from specdec.kernels import library
from specdec.models import language_model, t5
from specdec.sampling import settings
from specdec.sharding import REPLICATED, SHARDED, Layout, make_mesh
from specdec.speculative import PairParams, speculative_decode
from specdec.types import EncoderInputs

assert jax.device_count() == 8
wide = dict(vocab_size=256, d_model=64, d_ff=128, num_heads=8, head_dim=8)
narrow = dict(vocab_size=256, d_model=32, d_ff=64, num_heads=8, head_dim=4)
target = t5.v1_0(**wide, num_encoder_layers=2, num_decoder_layers=2)
draft = t5.v1_0(**narrow, num_encoder_layers=1, num_decoder_layers=1)
reader = t5.v1_0(**narrow, num_encoder_layers=0, num_decoder_layers=1, encoder_dim=64)
params = {c: language_model(c).init(jax.random.key(c.d_model)) for c in (target, draft, reader)}
drafters = {draft: ModelDrafter, reader: SharedEncoderDrafter}
tokens = np.random.default_rng(0).integers(3, 256, (8, 12)).astype(np.int32)
lengths = np.array([12, 5, 7, 8, 9, 10, 11, 3], np.int32)
request = (
    EncoderInputs(jnp.asarray(tokens), jnp.asarray(lengths)),
    jnp.zeros((8, 1), jnp.int32),
    jax.random.split(jax.random.key(5), 8),
)
config = SpecConfig(gamma=3, max_new_tokens=16)

def decode(temperature, q, here=None, there=None, decode_fn=speculative_decode):
    placed = PairParams(
        params[target] if here is None else here.place(params[target]),
        params[q] if there is None else there.place(params[q]),
    )
    asked = request if here is None else here.place_rows(request)
    how = dict(settings=settings(temperature), config=config)
    drafter = drafters[q](language_model(q, there))
    models = dict(target=language_model(target, here), drafter=drafter)
    return jax.device_get(decode_fn(placed, *asked, **models, **how))

def alone(temperature, q):
    with library.switched_off():
        return decode(temperature, q)

def check(found, expected):
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(
        found.speculation.accept_counts, expected.speculation.accept_counts
    )
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-5)
"""

EQUAL = """
for temperature in (0.0, 1.0):
    expected = alone(temperature, draft)
    assert len(set(map(int, expected.lengths))) > 0 and expected.speculation.num_tested.sum() > 50
    for shape in ((1, 8), (2, 4), (8, 1)):
        mesh = make_mesh(dict(zip(("data", "model"), shape)))
        rules = REPLICATED if shape == (2, 4) else SHARDED
        check(decode(temperature, draft, Layout(mesh), Layout(mesh, rules)), expected)
"""


@pytest.mark.soak
def test_outputs_on_every_mesh_equal_one_device_s():
    found = run_python(SETTING + EQUAL)
    assert found.returncode == 0, found.stderr[-3000:]


ONE_MESH = """
mesh = make_mesh({"data": 2, "model": 4})
check(decode(1.0, draft, Layout(mesh), Layout(mesh)), alone(1.0, draft))
"""


def test_sampled_outputs_on_a_mesh_equal_one_device_s():
    found = run_python(SETTING + ONE_MESH)
    assert found.returncode == 0, found.stderr[-3000:]


APART = """
devices = jax.devices()
here = Layout(make_mesh(dict(data=1, model=4), devices[:4]))
there = Layout(make_mesh(dict(data=2, model=1), devices[4:6]))
for temperature, q in ((1.0, reader),):
    found = decode(temperature, q, here, there, decode_fn=decode_apart)
    check(found, alone(temperature, q))
"""


@pytest.mark.soak
def test_a_draft_on_devices_of_its_own_changes_no_token():
    found = run_python(SETTING + APART)
    assert found.returncode == 0, found.stderr[-3000:]


COMPILED = """
import re
from specdec.speculative import _decode, as_pytree, default_rule
mesh = make_mesh(dict(data=1, model=8))
layout = Layout(mesh)
placed = PairParams(layout.place(params[target]), layout.place(params[draft]))
for leaf in jax.tree.leaves(placed):
    if leaf.ndim == 2 and leaf.size > 1000:
        held = {shard.data.nbytes for shard in leaf.addressable_shards}
        assert held == {leaf.nbytes // 8}, (leaf.shape, held)
how = settings(0.0)
program = _decode.lower(
    placed,
    *layout.place_rows(request),
    target=language_model(target, layout),
    drafter=ModelDrafter(language_model(draft, layout)),
    settings=how,
    draft_settings=how,
    verify_fn=as_pytree(default_rule(how)),
    config=config,
    prompt_lengths=None,
    limits=None,
).compile()
total = sum(leaf.nbytes for leaf in jax.tree.leaves(placed))
arguments = program.memory_analysis().argument_size_in_bytes
print("ARGUMENTS", arguments / (total / 8))
for line in program.as_text().splitlines():
    found = re.search(r"= [a-z0-9]+\\[([0-9,]*)\\]\\S* all-gather\\(", line)
    if found and "while" in line:
        print("GATHERED", found.group(1))
"""


def test_kernels_are_split_and_no_weight_is_gathered_in_the_loop():
    """Read off the compiled program: bytes that each device gets, and what its loop gathers."""
    found = run_python(SETTING + COMPILED)
    assert found.returncode == 0, found.stderr[-3000:]
    # Beside an eighth of the weights: norms, position biases and the requests.
    share = float(re.search(r"ARGUMENTS (\S+)", found.stdout).group(1))
    assert 1.0 <= share < 1.11
    gathered = re.findall(r"GATHERED (\S+)", found.stdout)
    # Rows of logits, and nothing of a kernel's shape: [8 rows, tokens of a run, 256 ids].
    assert gathered and all(re.fullmatch(r"8,\d,256", shape) for shape in gathered), gathered


def test_what_does_not_divide_is_not_split():
    mesh = jax.sharding.AbstractMesh((1, 8), ("data", "model"))
    layout = Layout(mesh)
    assert layout.parameter("decoder/layers_3/mlp/wi_0/kernel", (64, 128)).spec == PartitionSpec(
        None, "model"
    )
    assert layout.parameter("decoder/layers_3/mlp/wo/kernel", (100, 64)).spec == PartitionSpec(
        None, None
    )
    assert layout.parameter("encoder/encoder_norm/scale", (64,)).spec == PartitionSpec()
    assert Layout(mesh, REPLICATED).parameter("x/out/kernel", (64, 64)).spec == PartitionSpec(
        None, None
    )


def test_bad_meshes_and_rules_are_refused():
    with pytest.raises(ValueError, match=r"needs 6 devices, there are 1: change"):
        make_mesh({"data": 2, "model": 3}, jax.devices()[:1])
    with pytest.raises(ValueError, match="'heads' -> 'tensor': the mesh has the axes"):
        Layout(make_mesh(ONE_EACH, jax.devices()[:1]), (("heads", "tensor"),))
    with pytest.raises(ValueError, match="need 2 devices, there are 1"):
        Devices(ONE_EACH, draft_mesh=ONE_EACH).layouts(jax.devices()[:1])


def test_devices_give_target_and_draft_their_layouts():
    one = jax.devices()[:1]
    target, draft = Devices(ONE_EACH).layouts(one)
    assert target == draft and target.rules == SHARDED
    target, draft = Devices(ONE_EACH, draft_rules=REPLICATED).layouts(one)
    assert target.mesh == draft.mesh and draft.rules == REPLICATED


# Processes


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


TOGETHER = """
import sys
from experiments import hosts, records
from specdec.sharding import Layout, make_mesh
from specdec.text import load_pair
import toys

folder, output, port, number, num = sys.argv[1:]
layout = None
if int(num) > 1:
    hosts.join(f"localhost:{port}", int(num), int(number))
    layout = Layout(make_mesh({"data": 1, "model": int(num)}))
paths = [f"{folder}/{name}" for name in ("target", "draft", "spiece.model")]
pair = load_pair(*paths, layout=layout)
with hosts.quiet_unless_first():
    texts = [source for source, _ in toys.sentences()[:3]]
    for temperature in (0.0, 1.0):
        outputs = pair.decode(texts, gamma=2, temperature=temperature, max_new_tokens=6)
        found = [(one.tokens, one.accept_counts) for one in outputs]
        assert hosts.from_first(hosts.is_first()) is True
        records.append(output, {"temperature": temperature, "found": found})
    print("done")
"""


def start(folder, output, port, number, num, program=TOGETHER):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": "tests"}
    environment.pop("XLA_FLAGS", None)
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-c", program, *map(str, (folder, output, port, number, num))]
    return subprocess.Popen(command, env=environment, text=True, stdout=-1, stderr=-1)


def said_by(processes):
    """What each said, without what JAX's own collectives say of themselves."""
    told = [process.communicate(timeout=500) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), told
    return [[line for line in out.splitlines() if "[Gloo]" not in line] for out, _ in told]


@pytest.mark.soak
def test_two_processes_decode_what_one_does(tmp_path):
    (tmp_path / "pair").mkdir()
    folder, port = toys.write_pair(tmp_path / "pair"), free_port()
    both = said_by([start(folder, tmp_path / "both", port, i, 2) for i in range(2)])
    one = said_by([start(folder, tmp_path / "one", port, 0, 1)])
    assert both == [["done"], []] and one == [["done"]]
    found = records.read(str(tmp_path / "both"))
    assert len(found) == 2 and found == records.read(str(tmp_path / "one"))


def start_process(folder, output, number, port, *flags):
    command = [sys.executable, "-m", "experiments.run", f"--output_dir={output}"]
    command += [f"--gin_file=gin_configs/{name}.gin" for name in ("compare", "devices")]
    paths = dict(
        TARGET="target", DRAFT="draft", VOCABULARY="spiece.model", SENTENCES="sentences.tsv"
    )
    command += [f"--gin.{name}='{folder / path}'" for name, path in paths.items()]
    command += ["--gin.NUM_SENTENCES=2", "--gin.MAX_NEW_TOKENS=8", "--gin.GAMMA=2"]
    command += ["--gin.compare.compare.cost_repeats=1"]
    command += [f"--coordinator=localhost:{port}", "--num_processes=2", f"--process_id={number}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    return subprocess.Popen(command + list(flags), env=environment, text=True, stdout=-1, stderr=-1)


@pytest.mark.soak  # collectives of two processes are slow on few cores
def test_two_processes_measure_what_one_does(tmp_path):
    (tmp_path / "pair").mkdir()
    folder = toys.write_pair(tmp_path / "pair")
    port, mesh = free_port(), '--gin.MESH={"data": 1, "model": 2}'
    both = [start_process(folder, tmp_path / "both", i, port, mesh) for i in range(2)]
    said = said_by(both)
    assert any("alpha" in line for line in said[0]) and not said[1]
    found = records.read(str(tmp_path / "both"))
    small = dict(NUM_SENTENCES=2, MAX_NEW_TOKENS=8, GAMMA=2)
    paths = dict(
        TARGET="target", DRAFT="draft", VOCABULARY="spiece.model", SENTENCES="sentences.tsv"
    )
    bindings = [f"{name} = {value}" for name, value in small.items()]
    bindings += [f"{name} = {str(folder / path)!r}" for name, path in paths.items()]
    run.run(["gin_configs/compare.gin"], bindings, ["."], str(tmp_path / "one"))
    expected = records.read(str(tmp_path / "one"))
    assert [row["temperature"] for row in found] == [0.0, 1.0]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["accept_counts"] == theirs["accept_counts"]
        assert ours["num_tokens"] == theirs["num_tokens"]
        assert ours["alpha"] == pytest.approx(theirs["alpha"], abs=1e-4)
        assert ours["bugs"] == []
    assert json.loads((tmp_path / "both/environment.json").read_text())["num_processes"] == 2


def test_processes_that_cannot_join_say_so(tmp_path):
    command = [sys.executable, "-m", "experiments.run", "--gin_file=gin_configs/paper/table1.gin"]
    command += [f"--output_dir={tmp_path}", "--coordinator=localhost:1"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert found.returncode == 2
    assert "can't join" in found.stderr and found.stderr.count("\n") == 1


COMPARED = """
import sys
from experiments import run
folder = sys.argv[1]
names = dict(TARGET="target", DRAFT="draft", VOCABULARY="spiece.model", SENTENCES="sentences.tsv")
bindings = [f"{name} = {folder + '/' + path!r}" for name, path in names.items()]
bindings += ["NUM_SENTENCES = 2", "MAX_NEW_TOKENS = 6", "GAMMA = 2", "TEMPERATURES = (0.0,)"]
bindings += ['MESH = {"data": 1, "model": 2}', 'DRAFT_MESH = {"data": 1, "model": 1}']
files = [f"gin_configs/{name}.gin" for name in ("compare", "devices")]
run.run(files, bindings, ["."], folder + "/output")
"""


@pytest.mark.soak
def test_a_draft_apart_is_compared_by_its_gin_file(tmp_path):
    toys.write_pair(tmp_path)
    found = run_python(COMPARED, num_devices=3, arguments=[tmp_path])
    assert found.returncode == 0, found.stderr[-3000:]
    (row,) = records.read(str(tmp_path / "output"))
    assert row["identical"] == 2 and row["bugs"] == []
    assert row["speedup"] > 0 and row["c"] is None and row["alpha"] is None


TRAINED = """
import sys
import toys
from experiments import optimizers, records, reporting, train
from experiments.batching import Buckets
from experiments.data import FileTask
from experiments.devices import Devices
from experiments.distill import Student
from specdec.kernels import library

folder = sys.argv[1]
losses = {}
for name, devices in (("one", None), ("all", Devices({"data": 2, "model": 4}))):
    with library.switched_off():
        train.train(
            f"{folder}/{name}",
            corpus=train.Corpus(
                f"{folder}/spiece.model",
                [FileTask(f"{folder}/sentences.tsv", "to German: ")],
                [FileTask(f"{folder}/sentences.tsv", "to German: ")],
                Buckets((32,), slots_per_batch=256),
            ),
            students=[Student(toys.config(1))],
            steps=4,
            optimizer=optimizers.Adafactor(),
            reports=reporting.Reports(progress_every=2, heldout_every=4, scores_every=0),
            devices=devices,
        )
"""


@pytest.mark.soak
def test_training_on_a_mesh_takes_the_same_steps(tmp_path):
    toys.write_sentences(tmp_path / "sentences.tsv")
    toys.write_vocabulary(tmp_path / "spiece.model")
    found = run_python(TRAINED, arguments=[tmp_path])
    assert found.returncode == 0, found.stderr[-3000:]
    rows = {}
    for name in ("one", "all"):
        lines = (tmp_path / name / "curve.jsonl").read_text().splitlines()
        rows[name] = [json.loads(line) for line in lines]
    told = [(row["kind"], row["step"]) for row in rows["one"]]
    assert ("heldout", 4) in told and told == [(row["kind"], row["step"]) for row in rows["all"]]
    for one, other in zip(rows["one"], rows["all"], strict=True):
        losses = [row["model"]["cross_entropy"] for row in (one, other)]
        assert losses[0] == pytest.approx(losses[1], abs=2e-3)
