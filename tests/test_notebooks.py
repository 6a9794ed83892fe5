"""The notebooks, cell by cell, on a toy pair and with small settings."""

import ast
import json
import pathlib
import shutil

import gin
import pytest
import toys

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SMALL = {
    "NUM_SENTENCES": "2",
    "GAMMA": "2",
    "GAMMAS": "(1,)",
    "TEMPERATURES": "(0.0,)",
    "DRAFTS": "('small',)",
}


def cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def source_of(cell) -> str:
    """A cell's code with the settings above in place of its own."""
    source = "".join(cell["source"])
    for name, value in SMALL.items():
        lines = source.split("\n")
        source = "\n".join(
            f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in lines
        )
    return source


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder that looks like the repository, with a toy pair for the shipped one."""
    root = tmp_path_factory.mktemp("root")
    folder = root / "checkpoints" / "ende"
    folder.mkdir(parents=True)
    toys.write_pair(folder)
    for name in ("small", "medium"):
        shutil.copytree(folder / "shared_draft", folder / name)
    (root / "gin_configs").symlink_to(NOTEBOOKS[0].parent.parent / "gin_configs")
    return root


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, root, monkeypatch, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="notebooks need the extra `plots`")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(root)
    names = {}
    for cell in cells(path):
        exec(compile(source_of(cell), path.name, "exec"), names)
    shown = capsys.readouterr().out
    assert ("identical: 2 of 2" in shown) or ("expected" in shown and pyplot.get_fignums())
    pyplot.close("all")
    gin.clear_config()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_imports_public_names_only(path):
    for cell in cells(path):
        assert not cell["outputs"] and cell["execution_count"] is None
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            assert not any(part.startswith("_") for name in names for part in name.split("."))
