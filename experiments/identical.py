"""Greedy speculative decoding against greedy plain decoding, over many sentences and gammas.

In batches, rows of different lengths together. One record a gamma.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence

import jax

from experiments import records
from experiments.compare import NotIdentical
from experiments.data import Task, first_pairs
from specdec import metrics
from specdec.config import check_count
from specdec.sampling import settings
from specdec.text import TextPair, load_pair

logger = logging.getLogger(__name__)


def check(
    output_dir: str,
    *,
    target: str,
    draft: str,
    vocabulary: str,
    task: Task,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    batch_size: int = 20,
    max_new_tokens: int = 128,
    num_sentences: int = 500,
) -> None:
    """Decodes all sentences plainly and with every gamma, and lists ties and bugs.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
      NotIdentical: if outputs differ by more than rounding.
    """
    if not gammas or not isinstance(gammas, tuple | list):
        raise ValueError(f"gammas={gammas!r}: give a list of at least one, as (1, 2, 3)")
    texts = [text for text, _ in first_pairs(task, num_sentences)]
    pair = load_pair(target, draft, vocabulary, prefix=task.prefix)
    configs = {g: pair.config(gamma=g, max_new_tokens=max_new_tokens) for g in gammas}
    batches = list(_batches(pair, texts, batch_size))
    records.claim(
        output_dir,
        experiment="identical",
        target=target,
        draft=draft,
        vocabulary=vocabulary,
        task=dataclasses.asdict(task),
        gammas=gammas,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        num_sentences=num_sentences,
    )
    records.write_environment(output_dir)
    greedy = settings(0)
    began = time.monotonic()
    plain = [jax.device_get(pair.plain(one, greedy, configs[gammas[0]])) for one in batches]
    num_bugs = 0
    for number, (gamma, config) in enumerate(configs.items(), 1):
        fast = [jax.device_get(pair.speculate(one, greedy, config)) for one in batches]
        found = [
            {"batch": batch, **dataclasses.asdict(one)}
            for batch, results in enumerate(zip(batches, plain, fast, strict=True))
            for one in pair.differences(*results, config)
        ]
        bugs = [one for one in found if not one["is_tie"]]
        num_bugs += len(bugs)
        record = {
            "experiment": "identical",
            "task": task.path,
            "target": target,
            "draft": draft,
            "temperature": 0.0,
            "gamma": gamma,
            "batch_size": batch_size,
            "max_new_tokens": max_new_tokens,
            **metrics.summarize(fast),
            "identical": len(texts) - len(found),
            "ties": [one for one in found if one["is_tie"]],
            "bugs": bugs,
            "dtype": "float32",
            "device": jax.devices()[0].device_kind,
        }
        records.append(output_dir, record)
        left = (time.monotonic() - began) / number * (len(configs) - number)
        logger.info(
            "gamma %d: %d/%d identical, %d ties, %d bugs, %.2f tokens per call  (%.0f s left)",
            gamma,
            record["identical"],
            len(texts),
            len(record["ties"]),
            len(bugs),
            record["tokens_per_call"],
            left,
        )
    if num_bugs:
        raise NotIdentical(f"{num_bugs} outputs differ from plain decoding's by more than rounding")


def _batches(pair: TextPair, texts: Sequence[str], batch_size: int) -> Iterator[tuple]:
    """Requests of batch_size texts, short ones together."""
    check_count("batch_size", batch_size, least=1)
    if len(texts) % batch_size:
        raise ValueError(
            f"{len(texts)} sentences don't fill batches of {batch_size}: choose a batch_size or "
            "num_sentences that divides"
        )
    by_length = sorted(texts, key=lambda text: len(pair.vocabulary.encode([text])[0]))
    for start in range(0, len(texts), batch_size):
        yield pair.request(by_length[start : start + batch_size], seed=start)
