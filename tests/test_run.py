"""The command line: T5X's flag style, and one line for whatever is wrong."""

import os
import pathlib
import re
import subprocess
import sys

import gin
import pytest

from experiments import run

ROOT = pathlib.Path(__file__).parent.parent
CONFIGS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("gin_configs/**/*.gin"))
# What others include.
PARTS = re.compile(r"/models/|/tasks/|_data\.gin|/adafactor\.gin|/xxl_[a-z]+\.gin|/finetune\.gin")


@pytest.fixture(autouse=True)
def fresh_gin():
    yield
    gin.clear_config()


@pytest.fixture
def echo_gin(tmp_path):
    """A gin file whose experiment writes its setting into the output folder, or raises it."""
    (tmp_path / "echo_experiment.py").write_text(
        "import pathlib\n"
        "def echo(output_dir, *, size, word='a', fault=None):\n"
        "    if fault:\n"
        "        raise {'stop': KeyboardInterrupt, 'bug': KeyError}[fault](fault)\n"
        "    if size < 0:\n"
        "        raise ValueError(f'size={size}: must be 0 or more')\n"
        "    (pathlib.Path(output_dir) / 'echo').write_text(word * size)\n"
    )
    path = tmp_path / "echo.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "import echo_experiment\n"
        "from experiments import run\n"
        "SIZE = %gin.REQUIRED\n"
        "echo_experiment.echo.size = %SIZE\n"
        "run.execute.experiment = @echo_experiment.echo\n"
    )
    return str(path)


@pytest.fixture
def command(echo_gin, tmp_path):
    """Calls the program; gives exit status and stderr."""

    def call(*flags):
        completed = subprocess.run(
            [sys.executable, "-m", "experiments.run", *flags],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return completed.returncode, completed.stderr

    return call


def test_gin_flags_are_t5xs():
    assert run.rewrite_gin_flags(["run", "--gin.SIZE=3", "--gin.a.b='x=y'", "--output_dir=o"]) == [
        "run",
        "--gin_bindings=SIZE = 3",
        "--gin_bindings=a.b = 'x=y'",
        "--output_dir=o",
    ]


def test_command_runs_the_experiment_and_keeps_its_configuration(command, echo_gin, tmp_path):
    out = tmp_path / "out"
    status, log = command(
        f"--gin_file={echo_gin}",
        f"--output_dir={out}",
        "--gin.SIZE=3",
        "--gin.echo_experiment.echo.word='b'",
    )
    assert status == 0, log
    assert (out / "echo").read_text() == "bbb"
    config = (out / "config.gin").read_text()
    assert "SIZE = 3" in config
    assert "echo.word = 'b'" in config


def test_bad_input_ends_in_one_line_and_a_non_zero_status(command, echo_gin, tmp_path):
    status, log = command(f"--gin_file={echo_gin}", f"--output_dir={tmp_path}/o", "--gin.SIZE=-1")
    assert status == 2
    assert log.strip() == "error: size=-1: must be 0 or more"
    assert "Traceback" in (tmp_path / "o" / "error.log").read_text()


def test_an_interruption_ends_in_one_line_and_status_130(command, echo_gin, tmp_path):
    out = tmp_path / "o"
    status, log = command(
        f"--gin_file={echo_gin}",
        f"--output_dir={out}",
        "--gin.SIZE=1",
        "--gin.echo_experiment.echo.fault='stop'",
    )
    assert status == 130
    assert log.startswith(f"interrupted; {out} keeps what was written") and log.count("\n") == 1


def test_a_bug_ends_in_its_traceback(command, echo_gin, tmp_path):
    status, log = command(
        f"--gin_file={echo_gin}",
        f"--output_dir={tmp_path}/o",
        "--gin.SIZE=1",
        "--gin.echo_experiment.echo.fault='bug'",
    )
    assert status == 1
    assert "Traceback" in log and "KeyError: 'bug'" in log


def test_a_run_that_fails_leaves_the_configuration_of_the_one_before(
    echo_gin, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "out"
    run.run([echo_gin], ["SIZE = 3"], ["."], str(out))
    before = (out / "config.gin").read_text()
    for size in (-1, -2):
        with pytest.raises(ValueError, match=f"size={size}"):
            run.run([echo_gin], [f"SIZE = {size}"], ["."], str(out))
        gin.clear_config()
    assert (out / "config.gin").read_text() == before
    log = (out / "error.log").read_text()
    assert "size=-1" in log and "size=-2" in log and "SIZE = -2" in log


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (["SIZE = 3", "SISE = 4"], "no macro SISE in .*it knows SIZE"),
        (["SIZE = 3", "echo_experiment.echo.wort = 'b'"], "parameter named 'wort'"),
        (["SIZE = 3", "echo_experiment.eco.word = 'b'"], "No configurable matching"),
        ([], "SIZE has no value: give it with --gin.SIZE="),
        (["SIZE = ("], r"'SIZE = \(': .*EOF"),
    ],
)
def test_misspelt_settings_are_named(echo_gin, tmp_path, monkeypatch, bindings, message):
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(run.BadInput, match=message) as caught:
        run.run([echo_gin], bindings, ["."], str(tmp_path / "out"))
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(echo_gin, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(run.BadInput, match=r"nowhere\.gin"):
        run.run(["nowhere.gin"], [], ["."], str(tmp_path))
    with pytest.raises(run.BadInput, match="--gin_file"):
        run.run([], [], ["."], str(tmp_path))
    with pytest.raises(run.BadInput, match="--output_dir"):
        run.run([echo_gin], ["SIZE = 1"], ["."], None)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(run.BadInput, match="cannot write to output_dir"):
        run.run([echo_gin], ["SIZE = 1"], ["."], str(file / "out"))


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_parse_and_say_their_command(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    run.parse_config([name], [], ["."], is_whole=False)
    text = (ROOT / name).read_text()
    assert PARTS.search(name) or f"--gin_file={name}" in text


def test_compiled_programs_and_profiles_are_kept_on_disk(command, tmp_path, monkeypatch):
    (tmp_path / "square_experiment.py").write_text(
        "import jax\n"
        "def square(output_dir):\n"
        "    jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))).block_until_ready()\n"
    )
    gin_file = tmp_path / "square.gin"
    gin_file.write_text(
        "from __gin__ import dynamic_registration\n"
        "import square_experiment\n"
        "from experiments import run\n"
        "run.execute.experiment = @square_experiment.square\n"
    )
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    profile = tmp_path / "profile"
    flags = (f"--gin_file={gin_file}", f"--output_dir={tmp_path / 'out'}")
    status, log = command(*flags, f"--profile_dir={profile}")
    assert status == 0, log
    assert list(profile.rglob("*.xplane.pb"))
    kept = set((tmp_path / "cache" / "specdec").glob("*-cache"))
    assert kept
    assert command(*flags)[0] == 0
    assert set((tmp_path / "cache" / "specdec").glob("*-cache")) == kept


def test_profile_folder_that_cannot_be_written_is_refused(command, echo_gin, tmp_path):
    (tmp_path / "file").touch()
    out = f"--output_dir={tmp_path / 'out'}"
    flags = (f"--gin_file={echo_gin}", out, "--gin.SIZE=2", f"--profile_dir={tmp_path / 'file'}")
    status, log = command(*flags)
    assert status == 2 and "--profile_dir" in log and len(log.splitlines()) == 1
