"""Records as tables, and that the README's is made of the records that are here."""

import pathlib

import pytest

from experiments import comparison_table

ROOT = pathlib.Path(__file__).parent.parent
RECORDS = sorted(ROOT.glob("results/ende/*/records.jsonl"))


def test_every_cell_of_the_readme_is_a_records():
    table = comparison_table.as_markdown(comparison_table.read(RECORDS))
    text = (ROOT / "README.md").read_text()
    assert RECORDS and comparison_table.with_table(text, table) == text


def test_both_tables_have_a_row_a_record():
    rows = comparison_table.read(RECORDS)
    assert comparison_table.as_table(rows).row_count == len(rows)
    markdown = comparison_table.as_markdown(rows).splitlines()
    assert len(markdown) == len(rows) + 2
    assert len({line.count("|") for line in markdown}) == 1


def test_a_document_without_marks_is_refused():
    with pytest.raises(ValueError, match="no place for the table"):
        comparison_table.with_table("# Title", "| a |")
