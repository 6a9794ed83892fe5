"""Whatever is wrong with a run ends in one line that says what and what to do, and costs nothing.

One table, through the command line's own path: each row puts one fault into a comparison of a toy
pair that would run as it stands.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import gin
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from absl import flags
from safetensors.numpy import load_file, save_file

from experiments import compare, records, run
from experiments.data import FileTask
from specdec import compilation
from specdec.checkpoints import native, strict
from specdec.config import SpecConfig
from specdec.sampling import settings
from specdec.text import load_model, load_pair
from specdec.vocabulary import Vocabulary

ROOT = pathlib.Path(__file__).parent.parent
COMPARE = "gin_configs/compare.gin"
# What earlier runs left in the output folder.
EARLIER = {
    "records.jsonl": '{"gamma": 3}\n',
    "config.gin": "GAMMA = 3\n",
    "environment.json": "{}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sound pair, and files and checkpoints with one fault each."""
    folder = tmp_path_factory.mktemp("pair")
    toys.write_vocabulary(folder / "spiece.model")
    toys.write_sentences(folder / "sentences.tsv")
    zeros = {
        name: np.zeros(shape) for name, shape in strict.expected_shapes(toys.config(1)).items()
    }
    native.save(folder / "target", strict.unflatten(zeros), toys.config(1))
    shutil.copytree(folder / "target", folder / "draft")
    for name, change in DAMAGES.items():
        shutil.copytree(folder / "target", folder / name)
        change(folder / name)
    # JAX compiles a copy for every new shape that is read. Those don't count below.
    for num_rows in TABLES:
        load_model(folder / f"table_of_{num_rows}")
    prefix = "translate English to German: "  # of gin_configs/compare.gin
    sound = load_pair(folder / "target", folder / "draft", folder / "spiece.model", prefix=prefix)
    sound.inputs([source for source, _ in toys.sentences()[:2]])
    settings(1.0)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def fresh_gin():
    yield
    gin.clear_config()


def change_config(**changes):
    def change(checkpoint):
        path = checkpoint / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def resize_table(num_rows):
    def change(checkpoint):
        change_config(vocab_size=num_rows)(checkpoint)
        tensors = load_file(checkpoint / "model.safetensors")
        name = "token_embedder/embedding"
        tensors[name] = np.resize(tensors[name], (num_rows, tensors[name].shape[1]))
        save_file(tensors, checkpoint / "model.safetensors")

    return change


def cut(name, part):
    def change(checkpoint):
        content = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(content[: int(part * len(content))])

    return change


DAMAGES = {
    "without_config": lambda checkpoint: (checkpoint / "config.json").unlink(),
    "without_weights": lambda checkpoint: (checkpoint / "model.safetensors").unlink(),
    "cut_weights": cut("model.safetensors", 0.5),
    "empty_weights": cut("model.safetensors", 0),
    "cut_config": cut("config.json", 0.5),
    "binary_config": lambda checkpoint: (checkpoint / "config.json").write_bytes(b"\xff\xfe"),
    "wider": change_config(d_model=64),
    "textual": change_config(d_model="64"),
    "other_kind": change_config(model_type="bert"),
}
TABLES = [32, 55, 100, 128, 256, 384, 32100, 32128]
DAMAGES |= {f"table_of_{num_rows}": resize_table(num_rows) for num_rows in TABLES}
FILES = {
    "no.model": b"no SentencePiece model",
    "empty.model": b"",
    "empty.tsv": b"",
    "sourceless.tsv": b"\tein Hund\n",
    "one_column.tsv": b"the dog\n",
    "latin.tsv": b"caf\xe9\tKaffee\n",
    "plain.tsv.gz": b"the dog\tder Hund\n",
    "long.tsv": b"the dog " * 900 + b"\tder Hund\n",
    "include.gin": b"include 'gin_configs/compare.gin'\ninclude 'nowhere.gin'\n",
    "macro.gin": b"include 'gin_configs/compare.gin'\ncompare.compare.gamma = %GAMA\n",
    "parameter.gin": b"include 'gin_configs/compare.gin'\ncompare.compare.gama = 3\n",
}


def arguments(folder, output_dir, *more, files=(COMPARE,), **macros):
    """The command line of a comparison; a macro's path is one of the folder's names."""
    given = dict(TARGET="target", DRAFT="draft", VOCABULARY="spiece.model")
    given |= dict(SENTENCES="sentences.tsv", MAX_NEW_TOKENS=4, NUM_SENTENCES=2)
    for name, value in {**given, **macros}.items():
        is_path = name in ("TARGET", "DRAFT", "VOCABULARY", "SENTENCES")
        given[name] = str(folder / value) if is_path else value
    return [
        "run",
        *(f"--gin_file={folder / name if (folder / name).exists() else name}" for name in files),
        *(f"--gin.{name}={value!r}" for name, value in given.items()),
        f"--output_dir={output_dir}",
        *more,
    ]


def call(argv) -> int:
    """The command in this process: exit status."""
    values = flags.FlagValues()
    run.define_flags(values)
    try:
        return run.main(run.parse_flags(argv, values), values)
    except SystemExit as end:
        return end.code


def fault(*more, says, **changes):
    """A row of the table: flags and macros, and what the line has to name: value, remedy."""
    return pytest.param(more, changes, says, id=says[0])


@pytest.mark.parametrize(
    "more, changes, says",
    [
        # The command line and gin files.
        fault(files=["nowhere.gin"], says=["nowhere.gin", "correct the path"]),
        fault(files=["include.gin"], says=["nowhere.gin", "include.gin", "correct the path"]),
        fault(files=[], says=["no gin file", "--gin_file=FILE"]),
        fault(files=["macro.gin"], says=["GAMA", "define the macro"]),
        fault(files=["parameter.gin"], says=["'gama'", "gamma", "parameter.gin"]),
        fault("--gin.GAMA=3", says=["GAMA", "it knows", "GAMMA"]),
        fault("--gin.compare.compare.gama=3", says=["'gama'", "it has", "gamma"]),
        fault("--gin.compare.compar.gamma=3", says=["compare.compar", "correct it"]),
        fault("--gin.TARGET=target", says=["TARGET = target", "texts in quotes"]),
        fault("--gin.GAMMA=3)", says=["GAMMA = 3)", "values are numbers"]),
        fault("--gin_fil=a.gin", says=["'gin_fil'", "--help"]),
        fault("a.gin", says=["'a.gin' is no flag", "--gin_file=FILE"]),
        # Settings.
        fault(GAMMA=-1, says=["gamma=-1", "0 or more"]),
        fault(GAMMA=2.5, says=["gamma=2.5", "whole number"]),
        fault(GAMMA="five", says=["gamma='five'", "whole number"]),
        fault(MAX_NEW_TOKENS=0, says=["max_new_tokens=0", "1 or more"]),
        fault(MAX_NEW_TOKENS=-3, says=["max_new_tokens=-3", "1 or more"]),
        fault(NUM_SENTENCES=0, says=["num_sentences=0", "1 or more"]),
        fault(NUM_SENTENCES=-1, says=["num_sentences=-1", "1 or more"]),
        fault(TEMPERATURES=(1.0, -0.5), says=["temperature=-0.5", "0 (greedy) or a positive"]),
        fault("--gin.TEMPERATURES=(1e999,)", says=["temperature=inf", "positive number"]),
        fault("--gin.TEMPERATURES=(nan,)", says=["(nan,)", "values are numbers"]),
        fault(TEMPERATURES=("hot",), says=["temperature='hot'", "one number"]),
        fault(TEMPERATURES=0.0, says=["temperatures=0.0", "at least one"]),
        fault(TEMPERATURES=(), says=["temperatures=()", "at least one"]),
        fault(TOP_P=0.0, says=["top_p=0.0", "(0, 1]"]),
        fault(TOP_P=1.01, says=["top_p=1.01", "(0, 1]"]),
        fault(TOP_K=-2, says=["top_k=-2", "1 or more"]),
        fault("--gin.compare.compare.seed=-1", says=["seed=-1", "0 or more"]),
        fault(f"--gin.compare.compare.seed={2**63}", says=[f"seed={2**63}", "at most 4294967294"]),
        fault("--gin.compare.compare.num_traced=-1", says=["num_traced=-1", "0 or more"]),
        # Checkpoints and vocabulary.
        fault(TARGET="nowhere", says=["no checkpoint at", "nowhere", "correct the path"]),
        fault(DRAFT="without_config", says=["no checkpoint at", "without_config", "config.json"]),
        fault(DRAFT="without_weights", says=["without_weights/model.safetensors", "copy it again"]),
        fault(TARGET="cut_weights", says=["cut_weights/model.safetensors", "copy it again"]),
        fault(TARGET="empty_weights", says=["empty_weights/model.safetensors", "copy it again"]),
        fault(DRAFT="cut_config", says=["cut_config/config.json", "cut short", "copy it again"]),
        fault(DRAFT="binary_config", says=["binary_config/config.json", "no JSON"]),
        fault(TARGET="wider", says=["wider/model", "(32,) instead of (64,)", "save both again"]),
        fault(TARGET="textual", says=["d_model='64'", "mend its file"]),
        fault(TARGET="other_kind", says=["other_kind", "'bert'", "only t5 and mt5"]),
        fault(VOCABULARY="nowhere.model", says=["nowhere.model", "correct the path"]),
        fault(VOCABULARY="no.model", says=["no.model", "no SentencePiece model", "copy it"]),
        fault(VOCABULARY="empty.model", says=["empty.model", "no SentencePiece model", "copy it"]),
        fault(TARGET="table_of_32", says=["table_of_32", "32 ids", "55", "belong together"]),
        fault(DRAFT="table_of_384", says=["table_of_384", "384 ids", "256 rows", "trained with"]),
        fault(
            TARGET="table_of_100", DRAFT="table_of_256", says=["100", "256", "share the target's"]
        ),
        # Sentences.
        fault(SENTENCES="nowhere.tsv", says=["nowhere.tsv", "correct the task's path"]),
        fault(SENTENCES="empty.tsv", says=["no sentences in", "empty.tsv", "give a file"]),
        fault(SENTENCES="sourceless.tsv", says=["no sentences in", "sourceless.tsv", "give"]),
        fault(SENTENCES="one_column.tsv", says=["one_column.tsv, line 1", "mend the line"]),
        fault(SENTENCES="latin.tsv", says=["latin.tsv", "make it UTF-8"]),
        fault(SENTENCES="plain.tsv.gz", says=["plain.tsv.gz", "Not a gzipped file", "gzip if"]),
        fault(SENTENCES="long.tsv", says=["3624 tokens", "1024", "shorten it"]),
    ],
)
def test_bad_input_is_told_in_one_line_and_changes_nothing(
    folder, tmp_path, capfd, monkeypatch, more, changes, says
):
    monkeypatch.chdir(ROOT)
    for name, content in EARLIER.items():
        (tmp_path / name).write_text(content)
    with compilation.counted() as compiles:
        status = call(arguments(folder, tmp_path, *more, **changes))
    assert_one_line(status, capfd.readouterr().err, says)
    assert compiles.count == 0
    assert_untouched(tmp_path)


@pytest.mark.parametrize("name", ["a file", "a file/below it"])
def test_an_output_folder_that_cannot_be_written_is_named(folder, tmp_path, capfd, name):
    (tmp_path / "a file").write_text("kept")
    status = call(arguments(folder, tmp_path / name))
    assert_one_line(status, capfd.readouterr().err, [str(tmp_path / name), "--output_dir=DIR"])
    assert (tmp_path / "a file").read_text() == "kept"


def test_an_output_folder_must_be_given(folder, capfd):
    status = call([flag for flag in arguments(folder, "") if "output_dir" not in flag])
    assert_one_line(status, capfd.readouterr().err, ["no output folder", "--output_dir=DIR"])


@pytest.mark.parametrize(
    "run_json, says",
    [
        ('{"gamma": 3}', ["gamma 3 there, 5 here", "choose another folder"]),
        ('{"gamma": ', ["run.json", "choose another folder"]),
        ("[]", ["run.json", "choose another folder"]),
    ],
)
def test_a_folder_of_another_configuration_is_left_as_it_is(
    folder, tmp_path, capfd, run_json, says
):
    for name, content in {**EARLIER, "run.json": run_json}.items():
        (tmp_path / name).write_text(content)
    with compilation.counted() as compiles:
        status = call(arguments(folder, tmp_path))
    assert_one_line(status, capfd.readouterr().err, [str(tmp_path), *says])
    assert compiles.count == 0
    assert_untouched(tmp_path, run_json)


def test_an_experiment_must_be_named(tmp_path, capfd):
    (tmp_path / "part.gin").write_text("SIZE = 3\n")  # meant to be included by others
    status = call(["run", f"--gin_file={tmp_path / 'part.gin'}", f"--output_dir={tmp_path}"])
    assert_one_line(status, capfd.readouterr().err, ["part.gin", "bind run.execute.experiment"])


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(GAMMA=-1), ["gamma=-1", "0 or more"]),
        (dict(files=["nowhere.gin"]), ["nowhere.gin", "correct the path"]),
        (dict(TARGET="cut_weights"), ["cut_weights/model.safetensors", "copy it again"]),
    ],
)
def test_the_program_itself_ends_in_the_same_line(folder, tmp_path, changes, says):
    completed = subprocess.run(
        [sys.executable, "-m", "experiments.run", *arguments(folder, tmp_path, **changes)[1:]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert_one_line(completed.returncode, completed.stderr, says)


def assert_one_line(status: int, stderr: str, says) -> None:
    assert status == 2
    assert stderr.startswith("error: ") and stderr.endswith("\n"), stderr
    assert stderr.count("\n") == 1 and "Traceback" not in stderr, stderr
    assert all(text in stderr for text in says), stderr


def assert_untouched(output_dir: pathlib.Path, run_json: str | None = None) -> None:
    expected = {**EARLIER, **({} if run_json is None else {"run.json": run_json})}
    left = {path.name: path.read_text() for path in output_dir.iterdir()}
    left.pop("error.log", None)
    assert left == expected


# What only Python can ask for.
def test_a_temperature_that_is_no_number_is_refused(folder, tmp_path):
    task = FileTask(str(folder / "sentences.tsv"))
    paths = dict(target="none", draft="none", vocabulary="none", task=task)
    with pytest.raises(ValueError, match="temperature=nan: must be 0"):
        compare.compare(str(tmp_path), temperatures=(math.nan,), **paths)
    with pytest.raises(ValueError, match=r"top_p=nan: must lie in \(0, 1\]"):
        compare.compare(str(tmp_path), top_p=math.nan, **paths)
    assert not list(tmp_path.iterdir())


def test_a_source_or_a_prompt_without_room_is_refused(folder):
    pair = load_pair(folder / "target", folder / "draft", folder / "spiece.model")
    with pytest.raises(ValueError, match="source text 1 is empty: leave it out"):
        pair.decode(["the dog", " "])
    inputs, _, keys = pair.request(["the dog"], seed=0)
    prompt = jnp.zeros((1, 9), jnp.int32)
    config = SpecConfig(gamma=1, max_new_tokens=2, cache_length=8)
    for decode, needed in ((pair.plain, 9 + 2 + 1), (pair.speculate, 9 + 2 + 2)):
        with (
            compilation.counted() as compiles,
            pytest.raises(ValueError, match=f"cache_length=8 < prompt 9 .* = {needed}: raise"),
        ):
            decode((inputs, prompt, keys), settings(0), config)
        assert compiles.count == 0


@pytest.mark.parametrize(
    "num_pieces, target, draft",
    [(55, 55, 128), (55, 128, 55), (32000, 32128, 32100), (32000, 32100, 32128)],
)
def test_tables_of_one_vocabulary_may_be_padded_differently(
    folder, monkeypatch, num_pieces, target, draft
):
    monkeypatch.setattr(Vocabulary, "num_pieces", num_pieces)
    tables = [folder / f"table_of_{num_rows}" for num_rows in (target, draft)]
    for num_extra_ids in (0, 100) if num_pieces == 32000 else (0,):
        load_pair(*tables, folder / "spiece.model", num_extra_ids=num_extra_ids)


def test_a_refused_run_leaves_the_folder_to_the_next(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert call(arguments(folder, tmp_path, GAMMA=-1)) == 2
    assert "gamma=-1" in (tmp_path / "error.log").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["error.log"]
    assert records.read(str(tmp_path)) == []
