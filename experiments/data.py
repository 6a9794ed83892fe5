"""Text tasks as arrays of ids: read, tokenised once, kept in a cache file.

A task is told apart by the prefix of its input, as in T5 ("translate English to German: ..."),
so that several can be mixed in one training.
"""

import dataclasses
import gzip
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from specdec.config import check_count

Column = int | str


class Task(Protocol):
    """Pairs of input and output text.

    Attributes:
      path: what tells it apart in records and errors.
      prefix: put before each input.
      weight: passes over the task in one epoch: 1 = each pair once, 0.5 = half of the pairs in this
        epoch, the other half in the next.
    """

    path: str
    prefix: str
    weight: float

    def pairs(self) -> list[tuple[str, str]]:
        """(Input without prefix, output) of each example."""
        ...

    def digest(self) -> str:
        """Identifies the pairs, whatever the files are called."""
        ...


@dataclasses.dataclass(frozen=True)
class FileTask:
    """A `Task` in a file, an example a line; gzip where its name ends in .gz.

    .jsonl is JSON lines, whose columns are keys; .txt is text without columns, for a decoder-only
    model; all else is tab-separated, its columns numbered from 0.

    Attributes:
      path: the file.
      prefix, weight: see `Task`.
      source_column, target_column: of input and output; source_column=None: the input is empty.
      filter_column, filter_value: take only lines with this value there; None = all lines.
      limit: at most this many pairs, spread evenly over the file; 0 = all.
    """

    path: str
    prefix: str = ""
    source_column: Column | None = 0
    target_column: Column = 1
    weight: float = 1.0
    filter_column: Column | None = None
    filter_value: str | None = None
    limit: int = 0

    def __post_init__(self):
        if not pathlib.Path(self.path).is_file():
            raise ValueError(f"no data file at {self.path!r}: make it or correct the task's path")
        if self.weight <= 0:
            raise ValueError(f"weight={self.weight} of {self.path!r}: must be above 0")

    def pairs(self) -> list[tuple[str, str]]:
        """See `Task`; lines with an empty column are passed over.

        Raises:
          ValueError: naming file and line where a column is missing, or a file that is no text.
        """
        opened = gzip.open if self.path.endswith(".gz") else open
        try:
            with opened(self.path, "rt", encoding="utf-8") as lines:
                pairs = [
                    pair for pair in self._pairs(lines) if all(pair[self.source_column is None :])
                ]
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
            raise ValueError(
                f"{self.path!r} can't be read ({error}): make it UTF-8 text, or gzip if it ends in "
                ".gz"
            ) from error
        return evenly(pairs, self.limit)

    def digest(self) -> str:
        settings = dataclasses.asdict(self)
        for name in ("path", "weight"):
            settings.pop(name)
        content = hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps([content, settings]).encode()).hexdigest()

    def _pairs(self, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
        name = self.path.removesuffix(".gz")
        if name.endswith(".txt"):
            yield from (("", line.strip()) for line in lines)
            return
        fields_of = json.loads if name.endswith(".jsonl") else lambda line: line.split("\t")
        wanted = (self.source_column, self.target_column, self.filter_column)
        for number, line in enumerate(lines, 1):
            try:
                fields = fields_of(line.rstrip("\n"))
                source, target, kind = (None if one is None else fields[one] for one in wanted)
            except (LookupError, TypeError, json.JSONDecodeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}: has no columns {wanted} "
                    f"({_what_there_is(line, name)}; columns of text count from 0): mend the line "
                    "or the task's columns"
                ) from error
            if self.filter_column is None or kind == self.filter_value:
                yield "" if source is None else source.strip(), target.strip()


def _what_there_is(line: str, name: str) -> str:
    if not name.endswith(".jsonl"):
        return f"{len(line.split(chr(9)))} columns"
    try:
        return f"keys {', '.join(json.loads(line))}"
    except (ValueError, TypeError):
        return "no JSON object"


def evenly(pairs: list[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
    """At most `limit` of the pairs, spread evenly; 0 = all."""
    if 0 < limit < len(pairs):
        return [pairs[index] for index in np.linspace(0, len(pairs) - 1, limit).astype(int)]
    return pairs


def first_pairs(task: Task, num_sentences: int) -> list[tuple[str, str]]:
    """The first pairs of a task, or all of them if there are fewer.

    Raises:
      ValueError: for num_sentences below 1, or a task without pairs.
    """
    check_count("num_sentences", num_sentences, least=1)
    pairs = task.pairs()[:num_sentences]
    if not pairs:
        raise ValueError(
            f"no sentences in {task.path!r}: give a file of lines with a source, a tab and a "
            "reference, none of them empty"
        )
    return pairs


@dataclasses.dataclass(frozen=True)
class Examples:
    """N tokenised pairs, laid end to end.

    Attributes:
      inputs, targets: [total] uint16 ids; every pair ends in the end-of-sequence id.
      input_starts, target_starts: [N + 1] where each pair begins.
      task_ids: [N] index into the tasks.
    """

    inputs: np.ndarray
    targets: np.ndarray
    input_starts: np.ndarray
    target_starts: np.ndarray
    task_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.task_ids)

    @property
    def digest(self) -> str:
        """Identifies the content and its order."""
        content = hashlib.sha256()
        for array in (self.inputs, self.targets, self.input_starts, self.target_starts):
            content.update(array.tobytes())
        return content.hexdigest()[:12]

    @property
    def input_lengths(self) -> np.ndarray:
        return np.diff(self.input_starts)

    @property
    def target_lengths(self) -> np.ndarray:
        return np.diff(self.target_starts)

    def input(self, index: int) -> np.ndarray:
        return self.inputs[self.input_starts[index] : self.input_starts[index + 1]]

    def target(self, index: int) -> np.ndarray:
        return self.targets[self.target_starts[index] : self.target_starts[index + 1]]


def tokenize(
    tasks: Sequence[Task], vocabulary, *, max_lengths: tuple[int, int], is_cut: bool = False
) -> tuple[Examples, int]:
    """Tokenises the tasks; pairs with a side over its `max_lengths` ids are dropped, or cut.

    Returns:
      The examples, and the number of pairs dropped.
    """
    inputs, targets, task_ids, num_dropped = [], [], [], 0
    for task_id, task in enumerate(tasks):
        pairs = task.pairs()
        sources = vocabulary.encode([task.prefix + source for source, _ in pairs])
        outputs = vocabulary.encode([target for _, target in pairs])
        for source, output in zip(sources, outputs, strict=True):
            if is_cut:
                source, output = source[: max_lengths[0] - 1], output[: max_lengths[1] - 1]
            if len(source) >= max_lengths[0] or len(output) >= max_lengths[1]:
                num_dropped += 1
                continue
            inputs.append([*source, vocabulary.eos_id])
            targets.append([*output, vocabulary.eos_id])
            task_ids.append(task_id)
    return from_lists(inputs, targets, task_ids), num_dropped


def from_lists(inputs, targets, task_ids=None) -> Examples:
    """Examples out of lists of ids, one list a side and pair."""

    def flatten(rows):
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return np.array([token for row in rows for token in row], np.uint16), starts

    flat_inputs, input_starts = flatten(inputs)
    flat_targets, target_starts = flatten(targets)
    ids = np.zeros(len(inputs), np.int32) if task_ids is None else np.array(task_ids, np.int32)
    return Examples(flat_inputs, flat_targets, input_starts, target_starts, ids)


def load_examples(
    tasks: Sequence[Task],
    vocabulary,
    *,
    max_lengths: tuple[int, int],
    cache_dir: str,
    is_cut: bool = False,
) -> Examples:
    """`tokenize`, done once per content of files, vocabulary and settings.

    Raises:
      ValueError: if no pair is left, or the vocabulary does not fit 16-bit ids.
    """
    if vocabulary.num_pieces > 1 << 16:
        raise ValueError(
            f"{vocabulary.num_pieces} pieces: examples are stored as 16-bit ids; make a "
            "vocabulary of at most 65536"
        )
    path = pathlib.Path(cache_dir) / f"examples-{_key(tasks, vocabulary, max_lengths, is_cut)}.npz"
    if path.is_file():
        with np.load(path) as stored:
            return Examples(**stored)
    examples, num_dropped = tokenize(tasks, vocabulary, max_lengths=max_lengths, is_cut=is_cut)
    print(
        f"tokenised {len(examples)} pairs, {len(examples.inputs)} input and "
        f"{len(examples.targets)} target tokens; dropped {num_dropped} over {max_lengths} tokens"
    )
    if not len(examples):
        raise ValueError(
            f"no pair of {[task.path for task in tasks]} is left at max_lengths={max_lengths} "
            f"({num_dropped} dropped): raise max_lengths or check the tasks' columns and filters"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, **dataclasses.asdict(examples))
    temporary.replace(path)  # so that a kill leaves no half file behind
    return examples


def _key(tasks: Sequence[Task], vocabulary, max_lengths, is_cut: bool) -> str:
    """A hash of all that tokenised examples depend on. Weights and file names are not part."""
    parts = [vocabulary.digest, max_lengths, is_cut, *(task.digest() for task in tasks)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
