"""Files of corpora: text that may be packed, lists of JSON objects, and lines written whole."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from experiments.corpora.program import CorpusError, reason


def opened(path: Path) -> TextIO:
    """A text file, unpacked if its name ends in .gz."""
    return (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8")


def entries(path: Path, *fields: str) -> list[dict[str, Any]]:
    """A JSON file's list of objects, every one of which has the fields.

    Raises:
      CorpusError: for a file that has no such list.
    """
    wanted = f"a list of objects with {', '.join(fields)}"
    try:
        with opened(path) as file:
            found = json.load(file)
    except (OSError, ValueError, EOFError) as error:
        raise CorpusError(f"cannot read {path} ({reason(error)}); give JSON, {wanted}") from error
    if not isinstance(found, list):
        raise CorpusError(f"{path} holds no list; give JSON, {wanted}")
    for number, one in enumerate(found, 1):
        if not isinstance(one, dict) or set(fields) - one.keys():
            raise CorpusError(f"{path}, entry {number}: {str(one)[:60]}; give {wanted}")
    return found


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes the file, under its name only once it is whole."""
    # A full disk or an interruption leaves no half file of that name.
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    part.replace(path)


def write_rows(path: Path, rows: Iterable[Iterable[str]]) -> None:
    """Writes tab-separated fields, a row a line."""
    write_lines(path, ("\t".join(row) + "\n" for row in rows))
