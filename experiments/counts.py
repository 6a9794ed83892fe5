"""Bigram counts of training text, for drafts that are counted: made once, kept in a small file."""

import logging
import pathlib
from collections.abc import Sequence

import numpy as np

from experiments.data import Task
from specdec.drafters.ngram import count_bigrams
from specdec.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def count(output_dir: str, *, tasks: Sequence[Task], vocabulary: str, least: int = 1) -> None:
    """Writes DIR/bigrams.npz: which token follows which how often, on the tasks' target sides.

    Args:
      output_dir: of the file.
      tasks: the text, each task once.
      vocabulary: path of the SentencePiece model.
      least: bigrams seen less often are left out; the unigrams then lose them, too.

    Raises:
      ValueError: for no text.
    """
    words = Vocabulary(vocabulary)
    table = count_tasks(tasks, words)
    cells = np.flatnonzero(table.ravel() >= least)
    counts = table.ravel()[cells].astype(np.uint32)
    path = pathlib.Path(output_dir) / "bigrams.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp.npz")
    # Differences of neighbouring cells are small numbers, which deflate well.
    gaps = np.diff(cells, prepend=0).astype(np.uint32)
    np.savez_compressed(partial, gaps=gaps, counts=counts, vocabulary=words.digest)
    partial.replace(path)
    logger.info("%s: %d bigrams of %d tokens", path, len(cells), int(table.sum()))


def read(path: str, vocabulary: Vocabulary) -> np.ndarray:
    """Counts [V, V] float32 of a file that `count` wrote.

    Raises:
      ValueError: if it is missing, no such file, or of another vocabulary.
    """
    try:
        with np.load(path) as stored:
            digest, gaps, counts = (stored[name] for name in ("vocabulary", "gaps", "counts"))
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path!r} holds no bigram counts ({error}): make it by gin_configs/count.gin"
        ) from error
    if str(digest) != vocabulary.digest:
        raise ValueError(f"{path!r} was counted with another vocabulary: count again with this one")
    table = np.zeros((vocabulary.num_ids, vocabulary.num_ids), np.float32)
    table.ravel()[np.cumsum(gaps.astype(np.int64))] = counts
    return table


def count_tasks(tasks: Sequence[Task], vocabulary: Vocabulary) -> np.ndarray:
    """Counts [V, V] float32 of the tasks' target sides."""
    texts = [text for task in tasks for _, text in task.pairs()]
    rows = [[*ids, vocabulary.eos_id] for ids in vocabulary.encode(texts)]
    return count_bigrams(rows, vocabulary.num_ids)
