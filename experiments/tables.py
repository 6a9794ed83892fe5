"""Records as a table on the screen: a line each, a column for each way of showing one."""

from collections.abc import Callable, Mapping, Sequence
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
