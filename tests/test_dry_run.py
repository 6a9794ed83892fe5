"""--dry_run of every gin file in the tree, and what it says."""

import glob
import re

import gin
import pytest
import toys

from experiments import dry_run, paper, published, run
from specdec import costs
from specdec.models.t5 import CONFIGS

# Files that are parts of others, with the ones that they are run with.
PARTS = re.compile(
    r"/models/|/tasks/|_data\.gin|/adafactor\.gin|/xxl_(ende|cnndm)\.gin|/finetune\.gin"
)
TUNING = ("gin_configs/train/finetune_ende.gin", "gin_configs/models/t5_1_1_small.gin")
BEFORE = {
    "gin_configs/devices.gin": ("gin_configs/quickstart.gin",),
    "gin_configs/train/distill_public.gin": TUNING,
    "gin_configs/train/finetune_ende.gin": TUNING,
    "gin_configs/train/finetune_cnndm.gin": TUNING[1:],
}
FILES = sorted(file for file in glob.glob("gin_configs/**/*.gin", recursive=True))


@pytest.fixture(autouse=True)
def fresh_gin():
    yield
    gin.clear_config()


@pytest.mark.parametrize("file", [file for file in FILES if not PARTS.search(file)])
def test_every_gin_file_says_what_it_would_run(file, capsys):
    run.show([*BEFORE.get(file, ()), file], [], ["."])
    said = capsys.readouterr().out
    assert "Missing:" in said or "Nothing is missing." in said


@pytest.mark.parametrize("row", paper.TABLES_2_AND_4, ids=lambda row: row.name)
def test_table_2_has_a_file_for_every_row_of_the_paper(row):
    file = f"gin_configs/table2/xxl_{row.task.lower()}_{row.draft}_t{row.temperature:g}.gin"
    run.parse_config([file], [], ["."])
    arguments, missing = dry_run.resolved(run.experiment())
    assert not missing
    assert dry_run.paper_row(arguments) == row
    assert arguments["gamma"] == row.gamma
    assert arguments["temperatures"] == (row.temperature,)
    assert arguments["target"].endswith(f"t5_1_1_xxl_{row.task.lower()}")
    run.parse_config([file], ["VERSION = '1.0'"], ["."])
    arguments, _ = dry_run.resolved(run.experiment())
    assert arguments["target"].endswith("/t5_11B")
    assert arguments["draft"].endswith(f"/t5_{row.draft}")


def test_the_xxl_row_is_told_with_its_memory_and_the_paper_s_numbers(capsys):
    files = ["gin_configs/table2/xxl_ende_small_t0.gin", "gin_configs/devices.gin"]
    run.show(files, ['MESH = {"data": 1, "model": 8}'], ["."])
    said = " ".join(capsys.readouterr().out.split())
    # 11.1 billion parameters, 22.3 GB in bfloat16, an eighth of that a device.
    assert "11,135.3M 22.271 2.785" in said
    assert "77.0M 0.154 0.019" in said  # 6 heads: their kernels split all the same
    assert "alpha 0.75, c 0.02, gamma 7: 3.4 times measured, 3.2 expected" in said
    for lacking in ("t5_1_1_xxl_ende'", "no vocabulary at", "finetune_"):
        assert lacking in said


def test_a_checkpoint_that_is_there_is_read_for_its_shape(tmp_path, capsys):
    folder = toys.write_pair(tmp_path)
    names = dict(
        TARGET="target", DRAFT="draft", VOCABULARY="spiece.model", SENTENCES="sentences.tsv"
    )
    bindings = [f"{name} = {str(folder / path)!r}" for name, path in names.items()]
    run.show(["gin_configs/compare.gin"], bindings, ["."])
    said = capsys.readouterr().out
    assert "Nothing is missing." in said and str(folder / "target") in said
    run.show(["gin_configs/compare.gin"], bindings[:-1], ["."])
    assert "SENTENCES: give it with --gin.SENTENCES=..." in capsys.readouterr().out


def test_shapes_have_the_published_sizes():
    for name, expected in (("t5_small", 60.5e6), ("t5_1_1_xxl", 11.14e9), ("flan_t5_base", 248e6)):
        size = costs.tree_bytes(dry_run.shapes_of(CONFIGS[name], "bfloat16")) / 2
        assert size == pytest.approx(expected, rel=0.003)


def test_published_names_versions_and_places():
    assert published.name_of("1.0", "xxl") == "t5_11B"
    assert published.name_of("flan", "xl") == "flan_t5_xl"
    assert published.model_path("1.1", "small", "ende", "x") == "x/t5_1_1_small_ende"
    assert published.model_path("1.0", "small", "ende", "x") == "x/t5_small"
    assert published.published("t5_11B").hub == "google-t5/t5-11b"
    assert published.published("t5_1_1_xxl").hub == "google/t5-v1_1-xxl"
    assert published.published("t5_3B").bucket.endswith("/t5x/t5_3B")
    assert published.of_path("a/t5_1_1_small_ende").name == "t5_1_1_small"
    assert published.of_path("a/t5_small").name == "t5_small"
    assert published.of_path("a/target") is None
    with pytest.raises(ValueError, match=r"version='2' is none of 1\.0, 1\.1, flan"):
        published.name_of("2", "small")
    with pytest.raises(ValueError, match="'t5_tiny' is none of t5_small"):
        published.published("t5_tiny")
