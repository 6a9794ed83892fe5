"""Debian's package descriptions and their translations, from apt's lists Translation-en and -de.

Licence of the text: mixed; a description is under the licence of its package, a translation
under that of the Debian Description Translation Project.
A document is one package. The lists are joined by Description-md5, the checksum of the English
text, so a translation is never paired with a later wording. Related packages share paragraphs:
the same sentence may stand in many documents.
"""

import re
from collections.abc import Iterable, Iterator

from experiments.corpora.packages import Packages
from experiments.corpora.pairs import Pair, align, one_line

SOURCE = "ddtp"
_FIELDS = {"Description-en": "Description", "Description-de": "Description"}
_BULLET = re.compile(r"\s*(?:[*+o·•-]|\d+[.)])\s")


def descriptions(lines: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(package, checksum, lines of the description) for each entry of a list."""
    entry: dict[str, list[str]] = {}
    field: list[str] = []
    for line in (*lines, ""):
        line = line.rstrip("\n")
        if line.startswith(" "):
            field.append(line)
        elif line:
            name, _, value = line.partition(":")
            field = entry[_FIELDS.get(name, name)] = [value.strip()]
        elif entry:
            if {"Package", "Description-md5", "Description"} <= entry.keys():
                yield entry["Package"][0], entry["Description-md5"][0], entry["Description"]
            entry = {}


def paragraphs(description: list[str]) -> list[list[str]]:
    """The synopsis, then each paragraph, as a list of its running text and list items."""
    found: list[list[str]] = [[description[0]], []]
    for line in description[1:]:
        text = line[1:]
        if text.strip() == ".":
            found.append([])
        elif not found[-1] or _BULLET.match(text):
            found[-1].append(text)
        else:
            found[-1][-1] += " " + text
    return [[one_line(item) for item in paragraph] for paragraph in found if paragraph]


def description_pairs(english: list[str], german: list[str], package: str) -> Iterator[Pair]:
    """Pairs paragraph by paragraph; of texts laid out differently only the synopsis is sure."""
    english_parts, german_parts = paragraphs(english), paragraphs(german)
    if len(english_parts) != len(german_parts):
        del english_parts[1:], german_parts[1:]
    for english_items, german_items in zip(english_parts, german_parts, strict=True):
        if len(english_items) != len(german_items):
            english_items, german_items = [" ".join(english_items)], [" ".join(german_items)]
        for pair in zip(english_items, german_items, strict=True):
            for english_text, german_text in align(*pair):
                yield Pair(english_text, german_text, SOURCE, package)


def pairs(packages: Packages) -> Iterator[Pair]:
    packages.update()
    german = {checksum: lines for _, checksum, lines in entries(packages, "de")}
    for package, checksum, lines in entries(packages, "en"):
        if checksum in german:
            # Once per checksum: versions of a package repeat their description.
            yield from description_pairs(lines, german.pop(checksum), package)


def entries(packages: Packages, language: str) -> Iterator[tuple[str, str, list[str]]]:
    """(package, checksum, lines of the description) of every package; versions repeat theirs."""
    for path in packages.descriptions(language):
        with open(path, encoding="utf-8") as lines:
            yield from descriptions(lines)
