"""The compiled kernels are built once, and done without where they can't be."""

from pathlib import Path

import pytest

from specdec.kernels import library


@pytest.mark.parametrize(
    "environment",
    [{"SPECDEC_KERNELS": "0"}, {"CXX": "/no/such/compiler"}, {"CXX": "false"}],
    ids=["switched off", "no compiler", "a compiler that fails"],
)
def test_whatever_stands_in_the_way_is_told_in_one_line(environment, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not library.DECODING.register()
    assert bool(caplog.records) == ("CXX" in environment)
    assert not list(tmp_path.rglob("*.so"))


def test_each_library_has_a_file_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library.subprocess, "run", lambda command, **_: Path(command[-1]).touch())
    assert library.DECODING.built() != library.TRAINING.built()


def test_a_second_process_takes_what_the_first_built(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def compile_it(command, **kwargs):
        made.append(command[-1])
        Path(command[-1]).touch()

    monkeypatch.setattr(library.subprocess, "run", compile_it)
    monkeypatch.setenv("CXX", "c++")
    first, second = library.DECODING.built(), library.DECODING.built()
    assert first == second and first.exists() and len(made) == 1
    assert list(first.parent.iterdir()) == [first], "nothing half-made is left"
