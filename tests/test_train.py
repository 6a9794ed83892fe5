"""The trainer on toys: what it computes, what it keeps, how it goes on."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import gin
import jax
import numpy as np
import pytest

from experiments import distill, run, train
from experiments.data import FileTask
from experiments.run_state import read_curve
from experiments.vocabulary import train_vocabulary
from specdec.checkpoints import native, strict
from specdec.models import GPTConfig

ROOT = pathlib.Path(__file__).parent.parent
WORDS = "red blue green small large old new box door house tree road river stone light".split()
KL_THEN_TVD = "[@kl/distill.Stage(), @tvd/distill.Stage()]"
BOTH_KINDS = "[@reader/distill.Student(), @whole/distill.Student()]"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Bindings for toy.gin: made-up pairs whose output is the input backwards, and their pieces."""
    folder = tmp_path_factory.mktemp("toy")
    draw = random.Random(0)
    lines = []
    for _ in range(60):
        words = draw.choices(WORDS, k=draw.randint(2, 6))
        lines.append(" ".join(words) + "\t" + " ".join(reversed(words)) + "\n")
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(lines))
    task = FileTask(str(pairs), prefix="echo: ")
    vocabulary = train_vocabulary(str(folder), tasks=[task], num_pieces=290)
    return [f"TRAIN_FILE = '{pairs}'", f"VOCABULARY = '{vocabulary.path}'"]


def toy_run(output_dir, bindings):
    files = ["gin_configs/train/toy.gin"]
    run.run(files, bindings, [str(ROOT)], str(output_dir))


def exported(output_dir, name=""):
    return native.load(pathlib.Path(output_dir) / "export" / name)[0]


@pytest.fixture(scope="module")
def target(toy, tmp_path_factory):
    """Folder of a toy target's run."""
    folder = tmp_path_factory.mktemp("target")
    toy_run(folder, toy)
    return folder


@pytest.fixture(autouse=True)
def fresh_gin():
    yield
    gin.clear_config()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_loss_falls_and_the_run_leaves_its_curve_config_and_weights(target):
    rows = read_curve(target)
    losses = [row["target"]["cross_entropy"] for row in rows if row["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    assert [row["step"] for row in rows if row["kind"] == "heldout"] == [30]
    assert "STEPS = 30" in (target / "config.gin").read_text()
    params, config = native.load(target / "export")
    assert config.dropout_rate == 0.0
    assert jax.tree.all(jax.tree.map(lambda leaf: np.isfinite(leaf).all(), params))


def test_resumed_run_equals_an_uninterrupted_one(toy, target, tmp_path):
    # A constant rate until the end, so a shorter run is a prefix of the longer one.
    toy_run(tmp_path, [*toy, "STEPS = 13"])
    toy_run(tmp_path, [*toy, "STEPS = 30"])
    jax.tree.map(np.testing.assert_array_equal, exported(tmp_path), exported(target))
    steps = [row["step"] for row in read_curve(tmp_path) if row["kind"] == "train"]
    assert steps == [10, 13, 20, 30]


def test_asked_to_stop_it_saves_its_state_and_does_not_end_as_if_done(toy, tmp_path, monkeypatch):
    def stop_it(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(train, "report_progress", stop_it)
    with pytest.raises(KeyboardInterrupt):
        toy_run(tmp_path, toy)
    assert [path.name for path in tmp_path.glob("checkpoints/[0-9]*")] == ["10"]
    assert exported(tmp_path)


def test_decoder_only_models_learn_from_text_and_from_each_other(toy, tmp_path):
    students = "[@lm/distill.Student(), @heads/distill.Student()]"
    text = [*toy, "data.FileTask.source_column = None", "data.FileTask.prefix = ''"]
    toy_run(tmp_path / "lm", [*text, f"STUDENTS = {students}"])
    rows = [row for row in read_curve(tmp_path / "lm") if row["kind"] == "train"]
    for name in ("lm", "heads"):
        assert rows[-1][name]["cross_entropy"] < 0.8 * rows[0][name]["cross_entropy"]
        params, config = native.load(tmp_path / "lm/export" / name)
        assert isinstance(config, GPTConfig)
    assert config.num_ahead == 2 and "ahead_0" in params["decoder"]
    taught = [f"TARGET = '{tmp_path / 'lm/export/lm'}'", f"STAGES = {KL_THEN_TVD}"]
    heads = ["STUDENTS = [@heads/distill.Student()]", "reporting.Reports.heldout_every = 10"]
    toy_run(tmp_path / "heads", [*text, *taught, *heads])
    rows = [row for row in read_curve(tmp_path / "heads") if row["kind"] == "heldout"]
    assert rows[-1]["heads"]["tvd"] < rows[0]["heads"]["tvd"] - 0.05
    with pytest.raises(ValueError, match="distil like from like"):
        toy_run(tmp_path / "both", [*text, *taught, "STUDENTS = [@whole/distill.Student()]"])


@pytest.mark.parametrize("top_ids", [pytest.param(0, marks=pytest.mark.soak), 8])
def test_distillation_lowers_the_tvd_to_the_target(toy, target, tmp_path, top_ids):
    bindings = [
        *toy,
        f"TARGET = '{target / 'export'}'",
        f"STAGES = {KL_THEN_TVD}",
        f"STUDENTS = {BOTH_KINDS}",
        f"TOP_IDS = {top_ids}",
        "STEPS = 60",
        "reporting.Reports.heldout_every = 10",
    ]
    toy_run(tmp_path, bindings)
    rows = [row for row in read_curve(tmp_path) if row["kind"] == "heldout"]
    for name in ("reader", "whole"):
        assert rows[-1][name]["tvd"] < rows[0][name]["tvd"] - 0.05
        assert native.load(tmp_path / "export" / name)[1].d_model == 16
    if top_ids:
        assert list((tmp_path / "cache").glob("top8-*/done.json"))


def test_encoderless_draft_learns_from_text_on_the_frozen_encoder(toy, target, tmp_path):
    students = "[@reader/distill.Student()]"
    bindings = [*toy, f"TARGET = '{target / 'export'}'", f"STUDENTS = {students}"]
    before = exported(target)
    toy_run(tmp_path, bindings)
    rows = [row["reader"] for row in read_curve(tmp_path) if row["kind"] == "train"]
    assert rows[-1]["cross_entropy"] < 0.8 * rows[0]["cross_entropy"]
    assert "tvd" not in rows[0]
    jax.tree.map(np.testing.assert_array_equal, before, exported(target))


def test_run_starts_from_an_export(toy, target, tmp_path):
    start = f"target/distill.Student.init_from = '{target / 'export'}'"
    toy_run(tmp_path, [*toy, start, "STEPS = 10"])
    begun = read_curve(tmp_path)[0]["target"]["cross_entropy"]
    assert begun < read_curve(target)[0]["target"]["cross_entropy"] - 0.5


def test_frozen_groups_stay_and_the_others_learn(toy, target, tmp_path):
    start = f"target/distill.Student.init_from = '{target / 'export'}'"
    frozen = ("encoder/layers_0/mlp", "token_embedder")
    toy_run(tmp_path, [*toy, start, f"target/distill.Student.frozen = {frozen}", "STEPS = 2"])
    before, after = (strict.flatten(exported(path)) for path in (target, tmp_path))
    for name, leaf in before.items():
        is_frozen = name.startswith(frozen)
        # A bias of a distance that no example has stays, too.
        assert np.array_equal(leaf, after[name]) == is_frozen or "relpos" in name, name


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (("encoder",), "starts from random weights"),
        (("encode",), "name some of decoder, encoder, token_embedder.*; encode is not among them"),
        (("encoder/layers_7",), "encoder/layers_7 is not among them"),
        (("decoder", "encoder", "token_embedder"), "but not all"),
    ],
)
def test_what_cannot_be_frozen_is_refused(target, frozen, message):
    _, config = native.load(target / "export")
    init_from = "" if "random" in message else str(target / "export")
    with pytest.raises(ValueError, match=message):
        distill.load_initial(distill.Student(config, init_from=init_from, frozen=frozen))


def test_folder_of_another_run_is_refused(toy, target):
    with pytest.raises(ValueError, match="belongs to another run: seed was 0, now 1"):
        toy_run(target, [*toy, "train.train.seed = 1"])


@pytest.mark.soak
def test_killed_run_goes_on_and_equals_an_uninterrupted_one(toy, tmp_path):
    command = [
        *(sys.executable, "-m", "experiments.run", "--gin_file=gin_configs/train/toy.gin"),
        *(f"--gin.{binding.replace(' = ', '=')}" for binding in toy),
        "--gin.STEPS=4000",
        "--gin.CHECKPOINT_MINUTES=0.02",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(folder, *more):
        options = {"cwd": ROOT, "env": environment, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, f"--output_dir={folder}", *more], **options)

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = start(killed)
    deadline = time.monotonic() + 120
    while len(list(killed.glob("checkpoints/[0-9]*"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = max(int(path.name) for path in killed.glob("checkpoints/[0-9]*") if path.name.isdigit())
    assert done < 4000, "raise STEPS: the run ended before it was killed"
    steps = f"--gin.STEPS={done + 40}"
    for folder in (killed, whole):
        process = start(folder, steps)
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log.decode()
    jax.tree.map(np.testing.assert_array_equal, exported(killed), exported(whole))
