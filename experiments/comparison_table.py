"""The records of `compare` as a table."""

import pathlib
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


def _identity(row: Record) -> str:
    if row["identical"] is None:
        return "-"
    return f"{row['identical']}/{row['num_examples']}\n{len(row['ties'])}"


def as_table(rows: Sequence[Record]) -> Table:
    """One row a record."""
    return tables.of("Speculative over plain decoding, batch 1", COLUMNS, rows)
