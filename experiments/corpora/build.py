"""Builds English-German training text with held-out documents from Debian packages.

    python -m experiments.corpora.build --output_dir=FOLDER [--exclude=FILE ...]

Writes to FOLDER: train.tsv (English, German, source), heldout.tsv (the same and the document),
out of it test.tsv to score translators on and demo.tsv to show them on, and card.md with the
counts. Downloads stay in FOLDER/downloads, so a second run is quick and
an interrupted one goes on where it stopped.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags

from experiments.corpora import ddtp, lohelp, manpages
from experiments.corpora.files import write_lines, write_rows
from experiments.corpora.heldout import Split, in_turn, split
from experiments.corpora.packages import Packages, require_debian
from experiments.corpora.pairs import Pair
from experiments.corpora.program import CorpusError, reason, run

# Of heldout.tsv, for test.tsv, in about the shares that an epoch of gin_configs/train/ende_data.gin
# gives them; and LibreOffice help alone for demo.tsv, for its licence.
TEST_PAIRS = {lohelp.SOURCE: 300, manpages.SOURCE: 130, ddtp.SOURCE: 70}
DEMO_PAIRS, DEMO_WORDS = 200, range(15, 61)
EXTRACTORS = {module.SOURCE: module for module in (lohelp, ddtp, manpages)}


def define_flags() -> None:
    """Called only when run as a program: other programs have flags of the same names."""
    flags.DEFINE_string("output_dir", None, "Folder to write to.", required=True)
    flags.DEFINE_list("sources", list(EXTRACTORS), "Which sources to build.")
    flags.DEFINE_multi_string(
        "exclude",
        [],
        "Text or TSV file none of whose lines (fields) may occur in train.tsv, such as"
        " a test set. May be given several times, also as --exclude=A B C.",
    )
    flags.DEFINE_float("heldout_percent", 3.0, "Share of the documents to hold out.", 0, 100)


def excluded_texts(paths: list[str]) -> Iterator[str]:
    for path in paths:
        try:
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                yield from line.split("\t")
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(
                f"cannot read {path} of --exclude ({reason(error)}); give a UTF-8 text file"
            ) from error


def card(result: Split, extracted: Counter, percent: float) -> str:
    """The counts a reader of the data needs, as Markdown."""
    documents = {(pair.source, pair.document) for pair in result.heldout}
    train = Counter(pair.source for pair in result.train)
    heldout = Counter(pair.source for pair in result.heldout)
    lines = [
        "# English-German pairs from Debian packages", "",
        f"{percent:g} % of the documents are held out. Nothing extracted from them, in either"
        " language, is in train.tsv, whatever its case, punctuation and digits. The texts keep"
        " the licences of their packages.", "",
        "| source | extracted | train.tsv | heldout.tsv | held-out documents |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    held_documents = Counter(source for source, _ in documents)
    columns = (extracted, train, heldout, held_documents)
    for source in extracted:
        lines.append(f"| {source} | " + " | ".join(f"{c[source]:,}" for c in columns) + " |")
    lines.append("| all | " + " | ".join(f"{c.total():,}" for c in columns) + " |")
    lines += ["", "Left out, after duplicates:", ""]
    lines += [f"- {reason}: {count:,}" for reason, count in sorted(result.dropped.items())]
    return "\n".join(lines) + "\n"


def build(output: Path, sources: list[str], exclude: list[str], percent: float) -> None:
    unknown = sorted(set(sources) - EXTRACTORS.keys())
    if unknown:
        raise CorpusError(f"no source {', '.join(unknown)}; there are {', '.join(EXTRACTORS)}")
    _require_writable(output)
    excluded = list(excluded_texts(exclude))
    require_debian()
    packages = Packages(output / "downloads")
    print("package lists: fetching, unless they are here already", flush=True)
    packages.update()
    extracted: list[Pair] = []
    counts = Counter()
    for source in sources:
        print(f"{source}: downloading and pairing", flush=True)
        found = list(EXTRACTORS[source].pairs(packages))
        counts[source] = len(found)
        extracted += found
        print(f"{source}: {len(found):,} pairs", flush=True)
    print("holding out documents", flush=True)
    result = split(extracted, percent, excluded)
    write_rows(output / "train.tsv", (pair[:3] for pair in result.train))
    write_rows(output / "heldout.tsv", result.heldout)
    write_rows(output / "test.tsv", pairs_to_score(result.heldout))
    write_rows(output / "demo.tsv", pairs_to_show(result.heldout))
    write_lines(output / "card.md", [card(result, counts, percent)])
    numbers = f"{len(result.train):,} training and {len(result.heldout):,} held-out pairs"
    print(f"wrote {numbers}, and card.md, to {output}")


def pairs_to_score(heldout: list[Pair]) -> Iterator[Pair]:
    for source, count in TEST_PAIRS.items():
        yield from in_turn((pair for pair in heldout if pair.source == source), count)


def pairs_to_show(heldout: list[Pair]) -> list[Pair]:
    return in_turn(
        (
            pair
            for pair in heldout
            if pair.source == lohelp.SOURCE and len(pair.english.split()) in DEMO_WORDS
        ),
        DEMO_PAIRS,
    )


def _require_writable(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CorpusError(
            f"cannot write to {output} ({reason(error)}); give a folder you may write to with"
            " --output_dir"
        ) from error


def main(arguments: list[str]) -> int:
    options = flags.FLAGS
    exclude = list(options.exclude)
    if arguments[1:]:
        if not exclude:
            print(f"corpora: unexpected argument {arguments[1]}; see --help", file=sys.stderr)
            return 2
        exclude += arguments[1:]
    folder, percent = Path(options.output_dir), options.heldout_percent
    return run(lambda: build(folder, options.sources, exclude, percent))


if __name__ == "__main__":
    define_flags()
    app.run(main)
