"""Table 1 and the theory's figures by command."""

import sys

import pytest

from experiments import pictures, run, tables


def run_gin(name, output_dir):
    run.run([f"gin_configs/paper/{name}.gin"], [], ["."], str(output_dir))


def test_table_1_has_the_papers_numbers_beside_ours(tmp_path):
    run_gin("table1", tmp_path)
    lines = (tmp_path / "table_1.md").read_text().splitlines()
    assert len(lines) == 2 + 6
    for line in lines[2:]:
        _, _, operations, theirs, speed, their_speed = line.strip("| ").split(" | ")
        assert (operations, speed) == (theirs, their_speed)
    assert r"0.9 & 10 & 1.60 & 1.60 & 6.86 & 6.86 \\" in (tmp_path / "table_1.tex").read_text()


@pytest.mark.parametrize("number", [2, 3, 4])
def test_figures_are_drawn_twice(number, tmp_path):
    pytest.importorskip("matplotlib")
    run_gin(f"figure{number}", tmp_path)
    assert (tmp_path / f"figure_{number}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / f"figure_{number}.svg").read_text()


def test_figures_without_matplotlib_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(pictures.MissingPlots, match=r"pip install -e '.\[plots\]'"):
        run_gin("figure2", tmp_path)


def test_tables_in_both_languages_by_hand():
    columns = {"a\nb": lambda row: row["x"], "50 %": lambda row: "y\nz"}
    rows = [{"x": "p_1"}]
    assert tables.markdown(columns, rows) == "| a b | 50 % |\n| ---: | ---: |\n| p_1 | y / z |\n"
    assert r"a b & 50 \% \\" in tables.latex(columns, rows)
    assert r"p\_1 & y / z \\" in tables.latex(columns, rows)
