"""News articles of Spec-Bench (its CNN/DM part) as tasks: for measuring, not for training.

    python -m experiments.corpora.news --questions=spec_bench.jsonl --output_dir=DIR

Reads JSON lines with "category", "turns" and "reference"; takes the summaries. Writes to DIR:

    summarize.tsv    the article's beginning, whole sentences of --words at most, and its reference
    restore.tsv      passages of 60 to 120 words without case and punctuation, and as they were
"""

import json
import pathlib
from collections.abc import Iterator

from absl import app, flags

from experiments.corpora import restore
from experiments.corpora.files import write_rows
from experiments.corpora.pairs import one_line
from experiments.corpora.passages import passages
from experiments.corpora.program import CorpusError, run

CATEGORY, REQUEST = "summarization", "Summarize:"


def define_flags() -> None:
    """Called only when run as a program: other programs have flags of the same names."""
    flags.DEFINE_string("questions", None, "Spec-Bench's questions, JSON lines.", required=True)
    flags.DEFINE_string("output_dir", None, "Folder to write to.", required=True)
    flags.DEFINE_integer("words", 150, "Most words of an article.", lower_bound=20)


def articles(questions: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Articles and their summaries.

    Raises:
      CorpusError: for a line that has no such fields, or no article in the file.
    """
    num_found = 0
    for number, line in enumerate(questions.read_text(encoding="utf-8").splitlines(), 1):
        try:
            question = json.loads(line)
            if question["category"] != CATEGORY:
                continue
            (turn,), reference = question["turns"], question["reference"]
            summary = reference[0] if isinstance(reference, list) else reference
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CorpusError(
                f"{questions}, line {number}: no question of Spec-Bench ({error!r})"
            ) from error
        num_found += 1
        yield one_line(turn.removeprefix(REQUEST)), one_line(summary)
    if not num_found:
        raise CorpusError(f"{questions}: no question of category {CATEGORY!r}")


def build(questions: pathlib.Path, output: pathlib.Path, num_words: int) -> None:
    """Writes both files."""
    pairs = list(articles(questions))
    output.mkdir(parents=True, exist_ok=True)
    beginnings = ((next(passages(text, longest=num_words), ""), summary) for text, summary in pairs)
    lengths = dict(shortest=restore.SHORTEST, longest=restore.LONGEST)
    cut = (one for text, _ in pairs for one in passages(text, **lengths))
    for name, rows in (
        ("summarize", [row for row in beginnings if all(row)]),
        ("restore", [(restore.stripped(one), one) for one in cut]),
    ):
        write_rows(output / f"{name}.tsv", rows)
        print(f"{name}: {len(rows):,}", flush=True)


def main(arguments: list[str]) -> int:
    del arguments
    options = flags.FLAGS
    questions, output = pathlib.Path(options.questions), pathlib.Path(options.output_dir)
    return run(lambda: build(questions, output, options.words))


if __name__ == "__main__":
    define_flags()
    app.run(main)
