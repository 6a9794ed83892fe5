"""Debian's package descriptions and their one-line synopses: texts to summarise.

    python -m experiments.corpora.descriptions --output_dir=DIR [--unlike=FILE ...]

Writes DIR/descriptions.json, a list of {"package", "text", "summary"}: what --descriptions of
experiments.corpora.english reads; and summarize.tsv, text and summary. With --unlike, a file of
that form that models were trained on, only what is new: no synopsis of it, and of no text more than
half of the word triples. Packages that say much the same are there once. Needs a Debian machine;
downloads stay in DIR/downloads.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from absl import app, flags

from experiments.corpora import ddtp
from experiments.corpora.files import entries, write_lines, write_rows
from experiments.corpora.heldout import triples
from experiments.corpora.packages import Packages, require_debian
from experiments.corpora.pairs import words
from experiments.corpora.program import run

LEAST_WORDS = 20
MOST_SEEN = 0.5  # of a text's word triples
Entry = Mapping[str, str]


def define_flags() -> None:
    """Called only when run as a program: other programs have flags of the same names."""
    flags.DEFINE_string("output_dir", None, "Folder to write to.", required=True)
    flags.DEFINE_multi_string("unlike", [], "JSON file of descriptions that are known already.")


def described(packages: Packages) -> Iterator[Entry]:
    """Every package's text, all of its paragraphs as one, and its synopsis as the summary."""
    for package, _, lines in ddtp.entries(packages, "en"):
        (synopsis,), *parts = ddtp.paragraphs(lines)
        text = " ".join(item for part in parts for item in part)
        yield dict(package=package, text=text, summary=synopsis)


def new(found: Iterable[Entry], known: Iterable[Entry]) -> Iterator[Entry]:
    """Of the found ones those that neither the known ones nor the ones before them say already."""
    seen: set[tuple[str, ...]] = set()
    synopses: set[tuple[str, ...]] = set()
    for one in known:
        seen |= triples(one["text"])
        synopses.add(words(one["summary"]))
    for one in found:
        of_text, synopsis = triples(one["text"]), words(one["summary"])
        is_known = len(of_text & seen) > MOST_SEEN * len(of_text) or synopsis in synopses
        if is_known or len(words(one["text"])) < LEAST_WORDS:
            continue
        yield one
        seen |= of_text
        synopses.add(synopsis)


def build(output: Path, unlike: Iterable[Path]) -> None:
    """Writes both files."""
    known = [one for path in unlike for one in entries(path, "text", "summary")]
    require_debian()
    packages = Packages(output / "downloads")
    print("package lists: fetching, unless they are here already", flush=True)
    packages.update()
    found = list(new(described(packages), known))
    write_lines(output / "descriptions.json", [json.dumps(found, ensure_ascii=False, indent=1)])
    write_rows(output / "summarize.tsv", ((one["text"], one["summary"]) for one in found))
    print(f"wrote {len(found):,} descriptions to {output}")


def main(arguments: list[str]) -> int:
    del arguments
    options = flags.FLAGS
    return run(lambda: build(Path(options.output_dir), map(Path, options.unlike)))


if __name__ == "__main__":
    define_flags()
    app.run(main)
