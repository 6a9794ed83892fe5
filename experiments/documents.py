"""Tables in documents, made of the records under results/: no figure there is typed by hand.

    python -m experiments.documents README.md

fills what stands between a table's marks, `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import (
    acceptance,
    claims,
    comparison_table,
    lenience,
    records,
    rejection,
    tables,
    theory_figures,
    walltime,
)
from experiments.benchmarks import peers

Row = Mapping[str, Any]


class Source(NamedTuple):
    """What a table is made of.

    Attributes:
      columns: see `tables`.
      read: gives its rows, in order, out of the folder that has results/.
    """

    columns: tables.Columns
    read: Callable[[pathlib.Path], Sequence[Row]]


def recorded(
    folders: str,
    order: Callable[[Row], Any] = lambda row: 0,
    is_row: Callable[[Row], bool] = lambda row: True,
) -> Callable[[pathlib.Path], list[Row]]:
    """Reads the records of the folders of a pattern, equal ones of an order as they come."""

    def read(root: pathlib.Path) -> list[Row]:
        found = [row for path in sorted(root.glob(folders)) for row in records.read(str(path))]
        return sorted(filter(is_row, found), key=order)

    return read


SOURCES = {
    "pair": Source(
        comparison_table.COLUMNS, recorded("results/ende/*", lambda row: row["temperature"])
    ),
    "peers": Source(peers.COLUMNS, recorded("results/peers")),
    "table1": Source(theory_figures.TABLE_1, lambda root: theory_figures.rows_of_table_1()),
    "table2": Source(
        walltime.COLUMNS,
        recorded("results/table2", is_row=lambda row: row["experiment"] == "walltime"),
    ),
    "table3": Source(acceptance.COLUMNS, recorded("results/table3*", lambda row: row["task"])),
    "table5": Source(lenience.COLUMNS, recorded("results/table5")),
    "rejection": Source(rejection.COLUMNS, recorded("results/rejection")),
    "claims": Source(
        claims.COLUMNS,
        lambda root: claims.judged(str(root / "results/table3"), str(root / "results/table2")),
    ),
}
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(text: str, root: pathlib.Path) -> str:
    """A document with every table made anew of the records below `root`.

    Raises:
      ValueError: for a table that is not among SOURCES, one without records, or no table at all.
    """
    if not _TABLE.search(text):
        raise ValueError(
            "no table: one goes between <!-- table: NAME --> and <!-- end of table -->"
        )

    def made(match: re.Match) -> str:
        begin, name, end = match.groups()
        if name not in SOURCES:
            raise ValueError(f"table {name!r}: must be one of {', '.join(SOURCES)}")
        return f"{begin}\n{_markdown(name, root)}\n{end}"

    return _TABLE.sub(made, text)


def _markdown(name: str, root: pathlib.Path) -> str:
    columns, read = SOURCES[name]
    rows = read(root)
    if not rows:
        raise ValueError(f"table {name!r}: no records there below {str(root)!r}; see SOURCES")
    return tables.markdown(columns, rows)


def main(argv: Sequence[str]) -> int:
    if len(argv) < 2:
        print("usage: documents DOCUMENT ...", file=sys.stderr)
        return 2
    for document in map(pathlib.Path, argv[1:]):
        text = document.read_text(encoding="utf-8")
        document.write_text(filled(text, pathlib.Path()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
