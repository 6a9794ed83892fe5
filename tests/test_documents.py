"""Tables in documents are made of the records that are here."""

import pathlib

import pytest

from experiments import comparison_table, documents

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("document", ["README.md", "docs/tables.md"])
def test_every_cell_of_a_document_is_a_records(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert documents.filled(text, ROOT) == text


def test_a_table_has_a_row_a_record_in_its_order():
    text = "# Title\n<!-- table: pair -->\nold\n<!-- end of table -->\nThe end.\n"
    filled = documents.filled(text, ROOT)
    lines = [line for line in filled.splitlines() if line.startswith("|")]
    rows = documents.SOURCES["pair"].read(ROOT)
    assert comparison_table.as_table(rows).row_count == len(rows)
    assert len(lines) == len(rows) + 2
    assert len({line.count("|") for line in lines}) == 1
    temperatures = [line.split("|")[2].strip() for line in lines[2:]]
    assert temperatures == sorted(temperatures)
    assert "old" not in filled and filled.endswith("The end.\n")


@pytest.mark.parametrize(
    "text, message",
    [
        ("# Title\n| a |", "no table"),
        (
            "<!-- table: speed -->\n<!-- end of table -->",
            "'speed': must be one of pair, peers, table1, table2",
        ),
        ("<!-- table: pair -->\n<!-- end of table -->", "no records there"),
    ],
)
def test_what_cannot_be_filled_is_refused(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        documents.filled(text, tmp_path)
