"""Sweeps: every point once, whatever interrupts them. Nothing here compiles."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import gin
import numpy as np
import pytest

from experiments import records, run, speedups, sweep
from specdec import theory

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def fresh_gin():
    yield
    gin.clear_config()


@pytest.fixture
def command(tmp_path):
    """The command line of a sweep whose points write a record, having told calls.txt of it."""
    (tmp_path / "counting_experiment.py").write_text(
        "import os, time\n"
        "from experiments import records\n"
        "def experiment(output_dir, *, size, word, seconds):\n"
        "    with open('calls.txt', 'a') as file:\n"
        "        file.write(f'{word}{size}\\n')\n"
        "    records.append(output_dir, {'half': 1})\n"
        "    time.sleep(seconds)\n"
        "    if size < 0:\n"
        "        raise ValueError(f'size={size}: must be 0 or more')\n"
        "    records.append(output_dir, {'length': len(word * size)})\n"
    )
    (tmp_path / "sweep.gin").write_text(
        "from __gin__ import dynamic_registration\n"
        "import counting_experiment\n"
        "from experiments import run\n"
        "from experiments import sweep\n"
        "SIZE = %gin.REQUIRED\n"
        "WORD = %gin.REQUIRED\n"
        "SECONDS = 0\n"
        "AXES = {'WORD': ('a', 'b/b'), 'SIZE': (1, 2)}\n"
        "counting_experiment.experiment.size = %SIZE\n"
        "counting_experiment.experiment.word = %WORD\n"
        "counting_experiment.experiment.seconds = %SECONDS\n"
        "run.execute.experiment = @counting_experiment.experiment\n"
        "sweep.Grid.axes = %AXES\n"
    )
    return [
        *(sys.executable, "-m", "experiments.sweep"),
        *("--gin_file=sweep.gin", "--output_dir=out"),
    ]


def call(command, tmp_path, *flags):
    return subprocess.run(
        [*command, *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def calls(tmp_path):
    return (tmp_path / "calls.txt").read_text().split()


def test_points_docstring_example():
    assert sweep.Grid({"A": (1, 2), "B": (3, 4)}).points() == [
        {"A": 1, "B": 3},
        {"A": 1, "B": 4},
        {"A": 2, "B": 3},
        {"A": 2, "B": 4},
    ]
    with pytest.raises(ValueError, match="axis A='xy'"):
        sweep.Grid({"A": "xy"})
    with pytest.raises(ValueError, match="no axes"):
        sweep.Grid({})


def test_every_point_is_run_once_and_its_records_name_it(command, tmp_path):
    assert call(command, tmp_path).returncode == 0
    assert calls(tmp_path) == ["a1", "a2", "b/b1", "b/b2"]
    rows = [row for row in records.read(str(tmp_path / "out")) if "length" in row]
    assert [(row["point"]["WORD"], row["length"]) for row in rows] == [
        *[("a", 1), ("a", 2)],
        *[("b/b", 3), ("b/b", 6)],
    ]
    again = call(command, tmp_path)
    assert "4 points, 4 of them done" in again.stderr and len(calls(tmp_path)) == 4


def test_a_sweep_of_comparisons_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    row = dict(speedup=1.7, speedup_low=1.6, speedup_high=1.8, alpha=0.7, c=0.05, verify_cost=1.1)
    rows = [
        {**row, "draft": f"drafts/{draft}", "gamma": gamma, "temperature": temperature}
        for draft in ("small", "large")
        for gamma in (4, 1, 2)
        for temperature in (0.0, 1.0)
    ]
    panels = speedups.figure(rows).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["T = 0", "T = 1"]
    solid = next(line for line in panels[0].get_lines() if len(line.get_xdata()) == 4)
    np.testing.assert_array_equal(solid.get_xdata(), [1, 2, 3, 4])
    np.testing.assert_allclose(
        solid.get_ydata(), theory.walltime_factor(0.7, solid.get_xdata(), 0.05)
    )
    speedups.draw(rows, str(tmp_path))
    assert (tmp_path / "speedups.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="run the sweep first"):
        speedups.figure([])


def test_a_killed_sweep_goes_on_with_the_point_that_was_under_way(command, tmp_path):
    slow = subprocess.Popen(
        [*command, "--gin.SECONDS=2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        if (tmp_path / "calls.txt").exists() and len(calls(tmp_path)) == 2:
            break
        time.sleep(0.1)
    slow.send_signal(signal.SIGKILL)
    slow.wait()
    lines = (tmp_path / "out/records.jsonl").read_text().splitlines()
    assert [json.loads(line)["point"]["SIZE"] for line in lines] == [1, 1]
    assert call(command, tmp_path, "--gin.SECONDS=2").returncode == 0
    assert calls(tmp_path) == ["a1", "a2", "a2", "b/b1", "b/b2"]
    assert len((tmp_path / "out/records.jsonl").read_text().splitlines()) == 8


def test_a_point_that_fails_ends_the_sweep_in_one_line_and_loses_nothing(command, tmp_path):
    bad = call(command, tmp_path, "--gin.AXES={'WORD': ('a',), 'SIZE': (1, -1, 2)}")
    assert bad.returncode == 2 and bad.stderr.strip().endswith("size=-1: must be 0 or more")
    assert "Traceback" not in bad.stderr and calls(tmp_path) == ["a1", "a-1"]
    assert len(records.read(str(tmp_path / "out"))) == 2


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--gin.AXES={'COLOUR': (1,)}", "no macro COLOUR in sweep.gin; it knows AXES, SECONDS"),
        ("--gin.AXES={'SIZE': 3}", "axis SIZE=3: give it a list of values"),
        ("--gin.AXES={'SIZE': (1,)}", "WORD has no value: give it with --gin.WORD=..."),
    ],
)
def test_bad_grids_are_refused_before_a_point_is_run(
    command, tmp_path, flag, message, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (name, value) = flag.removeprefix("--gin.").split("=", 1)
    with pytest.raises((ValueError, run.BadInput)) as caught:
        sweep.sweep(["sweep.gin"], [f"{name} = {value}"], ["."], "out")
    assert message in str(caught.value) and not (tmp_path / "calls.txt").exists()
