"""Tables in documents, made of the records under results/: no figure there is typed by hand.

    python -m experiments.documents README.md

fills what stands between a table's marks, `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import comparison_table, records, tables
from experiments.benchmarks import peers


class Source(NamedTuple):
    """What a table is made of.

    Attributes:
      columns: see `tables`.
      folders: pattern of those that hold the records, from the one that has results/.
      order: of the rows; equal ones stay in the folders' order.
    """

    columns: tables.Columns
    folders: str
    order: Callable[[Mapping[str, Any]], Any] = lambda row: 0

    def read(self, root: pathlib.Path) -> list[dict[str, Any]]:
        """The records below `root`, in order."""
        found = [row for path in sorted(root.glob(self.folders)) for row in records.read(str(path))]
        return sorted(found, key=self.order)


SOURCES = {
    "pair": Source(
        comparison_table.COLUMNS,
        "results/ende/*",
        order=lambda row: row["temperature"],
    ),
    "peers": Source(peers.COLUMNS, "results/peers"),
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
        return f"{begin}\n{_markdown(SOURCES[name], root)}\n{end}"

    return _TABLE.sub(made, text)


def _markdown(source: Source, root: pathlib.Path) -> str:
    rows = source.read(root)
    if not rows:
        raise ValueError(f"{source.folders}: no records there")
    return tables.markdown(source.columns, rows)


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
