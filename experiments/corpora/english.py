"""Builds English training text with held-out parts for language models and for two more tasks.

    python -m experiments.corpora.english --text=FOLDER --output_dir=DIR
        [--prose=NAME,NAME] [--descriptions=FILE] [--dialogues=FILE]

Reads FOLDER/*.txt and *.txt.gz, a paragraph a line. Writes to DIR, each as train and heldout:

    lm_*.tsv         passage, name of its file
    restore_*.tsv    a passage of 60 to 120 words without case and punctuation, and as it was; from
                     the files that --prose names; restore_short_*.tsv: the same text, 6 to 30 words
                     at a time, which is where copying is learnt
    summarize_*.tsv  text and summary, of --descriptions: JSON, a list of {"text", "summary"}
    dialogue_*.tsv   turns of a scene, of --dialogues: JSON, a list of {"turns": [[speaker, text]]}

Runs of neighbouring paragraphs (of scenes, of packages) are held out together, by a checksum, so
every build holds out the same: 1 %, of the dialogue 10 %. Nothing that stands in a held-out part
stays in training.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import app, flags

from experiments.corpora import restore
from experiments.corpora.files import entries, opened, write_rows
from experiments.corpora.heldout import is_held_out
from experiments.corpora.pairs import one_line, words
from experiments.corpora.passages import passages
from experiments.corpora.program import CorpusError, run

HELDOUT_PERCENT = 1.0
DIALOGUE_PERCENT = 10.0  # there is so little of it that 1 % would measure nothing
RUN = 40  # neighbouring entries that are held out together, or not
DIALOGUE_WORDS = 90
Row = tuple[str, ...]


def define_flags() -> None:
    """Called only when run as a program: other programs have flags of the same names."""
    flags.DEFINE_string("text", None, "Folder of text files, a paragraph a line.", required=True)
    flags.DEFINE_string("output_dir", None, "Folder to write to.", required=True)
    flags.DEFINE_list("prose", [], "Names of the files (without .txt.gz) for the restoring task.")
    flags.DEFINE_string("descriptions", None, "JSON file of texts and summaries.")
    flags.DEFINE_string("dialogues", None, "JSON file of scenes with turns.")


def paragraphs(path: Path) -> Iterator[str]:
    try:
        with opened(path) as lines:
            yield from (line for line in map(one_line, lines) if line)
    except (UnicodeDecodeError, EOFError) as error:
        raise CorpusError(f"cannot read {path} ({error}); give UTF-8 text") from error


def split(
    named: Iterable[tuple[str, Iterable[Row]]], column: int = -1, percent: float = HELDOUT_PERCENT
) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows of named sequences.

    Each row once; a training row that says what a held-out one does in `column` is left out.
    """
    training: dict[Row, None] = {}
    heldout: dict[Row, None] = {}
    for name, rows in named:
        for number, row in enumerate(rows):
            is_held = is_held_out(name, str(number // RUN), percent)
            (heldout if is_held else training)[row] = None
    seen = {words(row[column]) for row in heldout}
    return [row for row in training if words(row[column]) not in seen], list(heldout)


def dialogues(scenes: Iterable[dict]) -> Iterator[Row]:
    """Scenes as one line each, in pieces of neighbouring turns: "Speaker: text Speaker: text"."""
    for number, scene in enumerate(scenes, 1):
        try:
            turns = [(speaker, text) for speaker, text in scene["turns"]]
        except (ValueError, TypeError) as error:
            raise CorpusError(
                f"scene {number} of the dialogues: {error}; give turns as [[speaker, text], ...]"
            ) from error
        piece: list[str] = []
        for speaker, text in turns:
            turn = one_line(f"{speaker}: {text}")
            if piece and len(" ".join([*piece, turn]).split()) > DIALOGUE_WORDS:
                yield (" ".join(piece),)
                piece = []
            if len(turn.split()) <= DIALOGUE_WORDS:
                piece.append(turn)
        if piece:
            yield (" ".join(piece),)


def build(text: Path, output: Path, prose: list[str], descriptions, scenes) -> None:
    files = {path.name.split(".")[0]: path for path in sorted(text.glob("*.txt*"))}
    if not files:
        raise CorpusError(f"no *.txt or *.txt.gz in {text}; give a folder of text with --text")
    unknown = sorted(set(prose) - files.keys())
    if unknown:
        raise CorpusError(f"--prose: no {', '.join(unknown)}; there are {', '.join(files)}")
    output.mkdir(parents=True, exist_ok=True)

    def of(name: str, **lengths: int) -> Iterator[str]:
        return (one for line in paragraphs(files[name]) for one in passages(line, **lengths))

    rows = ((name, ((one, name) for one in of(name))) for name in files)
    _write(output, "lm", split(rows, column=0))
    lengths = dict(shortest=restore.SHORTEST, longest=restore.LONGEST)
    rows = ((name, ((restore.stripped(one), one) for one in of(name, **lengths))) for name in prose)
    parts = split(rows)
    _write(output, "restore", parts)
    _write(output, "restore_short", tuple(map(shortened, parts)))
    if descriptions is not None:
        pairs = ((one_line(one["text"]), one_line(one["summary"])) for one in descriptions)
        _write(output, "summarize", split([("descriptions", pairs)]))
    if scenes is not None:
        _write(output, "dialogue", split([("scenes", dialogues(scenes))], percent=DIALOGUE_PERCENT))


def shortened(rows: Iterable[Row]) -> list[Row]:
    """Texts to restore, cut into shorter ones."""
    lengths = dict(shortest=restore.LEAST, longest=restore.SHORT)
    cut = (one for _, text in rows for one in passages(text, **lengths))
    return [(restore.stripped(one), one) for one in cut]


def _write(output: Path, task: str, parts: tuple[list[Row], list[Row]]) -> None:
    for part, rows in zip(("train", "heldout"), parts, strict=True):
        write_rows(output / f"{task}_{part}.tsv", rows)
    print(f"{task}: {len(parts[0]):,} to train on, {len(parts[1]):,} held out", flush=True)


def main(arguments: list[str]) -> int:
    del arguments
    options = flags.FLAGS

    def given(path: str | None, *fields: str):
        return None if path is None else entries(Path(path), *fields)

    def build_all() -> None:
        descriptions = given(options.descriptions, "text", "summary")
        scenes = given(options.dialogues, "turns")
        build(Path(options.text), Path(options.output_dir), options.prose, descriptions, scenes)

    return run(build_all)


if __name__ == "__main__":
    define_flags()
    app.run(main)
