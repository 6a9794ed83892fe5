"""The records of `compare` as a table: to look at, and as Markdown for the README.

    python -m experiments.comparison_table README.md results/ende/*/records.jsonl

puts the records' table between the two marks in README.md. No figure there is typed by hand.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from experiments import tables

Record = dict[str, Any]

# Two lines where there are two: headings, and what plain decoding got below what speculation did.
COLUMNS: dict[str, Callable[[Record], str]] = {
    "draft": lambda row: pathlib.Path(row["draft"]).name,
    "T": lambda row: f"{row['temperature']:g}",
    "gamma": lambda row: str(row["gamma"]),
    "alpha\n ": lambda row: f"{row['alpha']:.3f}",
    "alpha\nloop": lambda row: f"{row['alpha_loop']:.3f}",
    "alpha\naccepted": lambda row: f"{row['alpha_accepted']:.3f}",
    "tokens\nper call": lambda row: f"{row['tokens_per_call']:.2f}",
    "c": lambda row: f"{row['c']:.3f}",
    "r": lambda row: f"{row['verify_cost']:.2f}",
    "speed-up\n[95 % interval]": lambda row: (
        f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    ),
    "with\nencoders": lambda row: f"{row['speedup_total']:.2f}",
    "Thm 3.8\nc alone": lambda row: f"{row['expected_speedup_c']:.2f}",
    "Thm 3.8\nc and r": lambda row: f"{row['expected_speedup']:.2f}",
    "ac-\ncounted": lambda row: f"{row['accounted_speedup']:.2f}",
    "BLEU /\nplain": lambda row: f"{row['bleu']:.1f}\n{row['bleu_plain']:.1f}",
    "chrF /\nplain": lambda row: f"{row['chrf']:.1f}\n{row['chrf_plain']:.1f}",
    "identical /\nties": lambda row: _identity(row),
}
_MARKS = ("<!-- table: made by experiments.comparison_table -->", "<!-- end of table -->")


def _identity(row: Record) -> str:
    if row["identical"] is None:
        return "-"
    return f"{row['identical']}/{row['num_examples']}\n{len(row['ties'])}"


def as_table(rows: Sequence[Record]) -> Table:
    """One row a record."""
    return tables.of("Speculative over plain decoding, batch 1", COLUMNS, rows)


def as_markdown(rows: Sequence[Record]) -> str:
    """The same table for a document."""
    return tables.markdown(COLUMNS, rows).rstrip()


def with_table(text: str, table: str) -> str:
    """A document with what stands between its marks replaced.

    Raises:
      ValueError: if it doesn't have both marks.
    """
    before, found, rest = text.partition(_MARKS[0])
    _, found_end, after = rest.partition(_MARKS[1])
    if not found or not found_end:
        raise ValueError(f"no place for the table: it goes between {_MARKS[0]} and {_MARKS[1]}")
    return f"{before}{_MARKS[0]}\n\n{table}\n\n{_MARKS[1]}{after}"


def read(paths: Sequence[str | pathlib.Path]) -> list[Record]:
    """The records of several files, in order of temperature, then of the files."""
    rows = [
        json.loads(line) for path in paths for line in pathlib.Path(path).read_text().splitlines()
    ]
    return sorted(rows, key=lambda row: row["temperature"])


def main(argv: Sequence[str]) -> int:
    if len(argv) < 3:
        print("usage: comparison_table DOCUMENT RECORDS.jsonl ...", file=sys.stderr)
        return 2
    document = pathlib.Path(argv[1])
    document.write_text(with_table(document.read_text(), as_markdown(read(argv[2:]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
