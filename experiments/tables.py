"""Records as tables: a line each, a column for each way of showing one.

On the screen (`of`, `show`), as Markdown and as LaTeX (`markdown`, `latex`, `write`).
"""

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import rich
from rich import box
from rich.console import Console
from rich.table import Table

# Of a column's heading, what a record shows there.
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]


def of(title: str, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row a record; headings and cells may have several lines."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(show(row) for show in columns.values()))
    return table


def show(table: Table) -> None:
    """Prints it as wide as it is: cut, it would lose digits; a terminal wraps long lines."""
    console = rich.get_console()
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(console.width, needed)).print(table)


def markdown(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, all to the right; two lines of a cell have a slash between them."""
    return markdown_of(_headings(columns), _cells(columns, rows), num_names=0) + "\n"


def markdown_of(
    header: Sequence[str], cells: Iterable[Sequence[str]], *, num_names: int = 1
) -> str:
    """The first columns, which are names, to the left; the others, numbers, to the right."""
    rule = ["---"] * num_names + ["---:"] * (len(header) - num_names)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *cells])


def latex(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    """A LaTeX tabular in booktabs' style, all to the right."""
    lines = [_headings(columns), *_cells(columns, rows)]
    head, *body = (" & ".join(map(_escaped, line)) + r" \\" for line in lines)
    begin = rf"\begin{{tabular}}{{{'r' * len(columns)}}}"
    parts = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(parts) + "\n"


def write(path: pathlib.Path, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> None:
    """path.md and path.tex."""
    path.with_suffix(".md").write_text(markdown(columns, rows), encoding="utf-8")
    path.with_suffix(".tex").write_text(latex(columns, rows), encoding="utf-8")


def _headings(columns: Columns) -> list[str]:
    return [heading.replace("-\n", "").replace("\n", " ").strip() for heading in columns]


def _cells(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [[show(row).replace("\n", " / ") for show in columns.values()] for row in rows]


def _escaped(cell: str) -> str:
    for sign in "&%_#":
        cell = cell.replace(sign, rf"\{sign}")
    return cell
