"""Bigram counts of training text, for drafts that are counted: made once, kept in a small file."""

import logging
import pathlib
from collections.abc import Sequence

import numpy as np

from experiments import records
from experiments.data import Task
from specdec.drafters.ngram import bigram_logits, count_bigrams, unigram_logits
from specdec.vocabulary import START_ID, Vocabulary

logger = logging.getLogger(__name__)


def count(
    output_dir: str,
    *,
    tasks: Sequence[Task],
    vocabulary: str,
    least: int = 1,
    heldout: Sequence[Task] = (),
) -> None:
    """Writes DIR/bigrams.npz: which token follows which how often, on the tasks' target sides.

    And a record of what both laws of all bigrams are worth on held-out text, in nats a token.

    Args:
      output_dir: of the file.
      tasks: the text, each task once.
      vocabulary: path of the SentencePiece model.
      least: bigrams seen less often are left out; the unigrams then lose them, too.
      heldout: other text; () = no record.

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
    if heldout:
        losses = losses_on(heldout, table, words)
        records.append(output_dir, {"experiment": "counts", **losses})
        logger.info("held out: %s", losses)


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
    return count_bigrams(_rows(tasks, vocabulary), vocabulary.num_ids)


def losses_on(tasks: Sequence[Task], table: np.ndarray, words: Vocabulary) -> dict[str, float]:
    """Cross-entropies of the bigram's and the unigram's law, in nats a token, and the tokens."""
    rows = _rows(tasks, words)
    before = np.concatenate([[START_ID, *row[:-1]] for row in rows])
    tokens = np.concatenate(rows)
    # Both tables hold logarithms of laws that add up to 1.
    bigram = -bigram_logits(table)[before, tokens].mean()
    unigram = -unigram_logits(table)[tokens].mean()
    return dict(bigram=float(bigram), unigram=float(unigram), num_tokens=len(tokens))


def _rows(tasks: Sequence[Task], vocabulary: Vocabulary) -> list[list[int]]:
    """Ids of every target side, with the end."""
    texts = [text for task in tasks for _, text in task.pairs()]
    return [[*ids, vocabulary.eos_id] for ids in vocabulary.encode(texts)]
