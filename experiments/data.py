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

import numpy as np

from specdec.config import check_count


@dataclasses.dataclass(frozen=True)
class Task:
    """Pairs of input and output text in a tab-separated file (gzip where it ends in .gz).

    Text without an input, for a decoder-only model, has no source column.

    Attributes:
      path: the file.
      prefix: put before each input.
      source_column, target_column: 0-based columns of input and output; source_column=None: the
        input is empty.
      weight: passes over the task in one epoch: 1 = each pair once, 0.5 = half of the pairs
        in this epoch, the other half in the next.
      filter_column, filter_value: take only lines with this value there; None = all lines.
      limit: at most this many pairs, spread evenly over the file; 0 = all.
    """

    path: str
    prefix: str = ""
    source_column: int | None = 0
    target_column: int = 1
    weight: float = 1.0
    filter_column: int | None = None
    filter_value: str | None = None
    limit: int = 0

    def __post_init__(self):
        if not pathlib.Path(self.path).is_file():
            raise ValueError(f"no data file at {self.path!r}: make it or correct the task's path")
        if self.weight <= 0:
            raise ValueError(f"weight={self.weight} of {self.path!r}: must be above 0")


def read_pairs(task: Task) -> list[tuple[str, str]]:
    """(Input without prefix, output) of each line; lines with an empty column are passed over.

    Raises:
      ValueError: naming file and line where a column is missing, or a file that is no text.
    """
    opened = gzip.open if task.path.endswith(".gz") else open
    try:
        with opened(task.path, "rt", encoding="utf-8") as lines:
            pairs = [
                pair for pair in _pairs(task, lines) if all(pair[task.source_column is None :])
            ]
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(
            f"{task.path!r} can't be read ({error}): make it UTF-8 text, or gzip if it ends in .gz"
        ) from error
    if 0 < task.limit < len(pairs):
        pairs = [pairs[index] for index in np.linspace(0, len(pairs) - 1, task.limit).astype(int)]
    return pairs


def _pairs(task: Task, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    source, target = task.source_column, task.target_column
    last_column = max(source or 0, target, task.filter_column or 0)
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\n").split("\t")
        if last_column >= len(fields):
            raise ValueError(
                f"{task.path}, line {number}: {len(fields)} columns, but column {last_column} "
                "(counted from 0) is asked for: mend the line or the task's columns"
            )
        if task.filter_column is None or fields[task.filter_column] == task.filter_value:
            yield "" if source is None else fields[source].strip(), fields[target].strip()


def first_pairs(task: Task, num_sentences: int) -> list[tuple[str, str]]:
    """The first pairs of a task, or all of them if there are fewer.

    Raises:
      ValueError: for num_sentences below 1, or a task without pairs.
    """
    check_count("num_sentences", num_sentences, least=1)
    pairs = read_pairs(task)[:num_sentences]
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
    tasks: Sequence[Task], vocabulary, *, max_lengths: tuple[int, int]
) -> tuple[Examples, int]:
    """Tokenises the tasks; pairs with a side over its `max_lengths` ids, EOS too, are dropped.

    Returns:
      The examples, and the number of pairs dropped.
    """
    inputs, targets, task_ids, num_dropped = [], [], [], 0
    for task_id, task in enumerate(tasks):
        pairs = read_pairs(task)
        sources = vocabulary.encode([task.prefix + source for source, _ in pairs])
        outputs = vocabulary.encode([target for _, target in pairs])
        for source, output in zip(sources, outputs, strict=True):
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
    tasks: Sequence[Task], vocabulary, *, max_lengths: tuple[int, int], cache_dir: str
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
    path = pathlib.Path(cache_dir) / f"examples-{_key(tasks, vocabulary, max_lengths)}.npz"
    if path.is_file():
        with np.load(path) as stored:
            return Examples(**stored)
    examples, num_dropped = tokenize(tasks, vocabulary, max_lengths=max_lengths)
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


def _key(tasks: Sequence[Task], vocabulary, max_lengths) -> str:
    """A hash of all that tokenised examples depend on. Weights and file names are not part."""
    parts = [vocabulary.digest, max_lengths]
    for task in tasks:
        settings = dataclasses.asdict(task)
        content = hashlib.sha256(pathlib.Path(settings.pop("path")).read_bytes()).hexdigest()
        settings.pop("weight")
        parts.append([content, settings])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
