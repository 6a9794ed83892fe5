"""Translates the source side of a task, in batches, into a TSV of source and output.

For distilling drafts on a target's own outputs (such a TSV is a training task as it stands), or
for outputs to score and to look at.

Dimensions: B batch, N rows of a batch that are sources (N <= B, the rest is filled up).
"""

import dataclasses
import logging
import os
import pathlib
import re
import time
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import distill, records
from experiments.data import Task
from experiments.translators import Translator, load_translator
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig, check_count
from specdec.generation import Decoded
from specdec.sampling import Settings, settings
from specdec.text import BUCKETS, prompt_ids
from specdec.types import EncoderInputs
from specdec.vocabulary import EOS_ID, PAD_ID, START_ID, Vocabulary

logger = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 15


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How sources are translated.

    Attributes:
      temperature: 0 is greedy.
      top_k, top_p: filters at temperatures above 0; 0 and 1 are off.
      max_new_tokens: most tokens of an output, EOS included; what is longer is cut.
      batch_size: rows of a batch.
      buckets: ascending source lengths that batches are padded to, prefix and EOS included; each
        costs a compile.
      seed: of the random numbers.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 128
    batch_size: int = 64
    buckets: Sequence[int] = BUCKETS
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "buckets", tuple(self.buckets))
        self.settings  # noqa: B018 (refuses what makes no sense)
        check_count("max_new_tokens", self.max_new_tokens, least=1)
        check_count("batch_size", self.batch_size, least=1)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"buckets={self.buckets}: give source lengths that ascend")

    @property
    def settings(self) -> Settings:
        top_p = None if self.top_p == 1 else self.top_p
        return settings(self.temperature, top_k=self.top_k or None, top_p=top_p)


class Translated(NamedTuple):
    """A batch that has been decoded.

    Attributes:
      indices: [N] which of the sources its first N rows are; the others have length 0.
      inputs, prompt, keys: what was decoded, of B rows.
      decoded: on the host.
    """

    indices: np.ndarray
    inputs: Any
    prompt: jax.Array
    keys: jax.Array
    decoded: Decoded

    @property
    def shape(self) -> tuple:
        """That of inputs and prompt: batches of one shape share a program."""
        return tuple(leaf.shape for leaf in jax.tree.leaves((self.inputs, self.prompt)))

    def texts(self, vocabulary: Vocabulary) -> list[str]:
        """The N outputs, each in one line without tabs, so that a TSV can hold it."""
        rows = self.decoded.tokens[: len(self.indices)]
        return [_in_one_line(vocabulary.decode(row)) for row in rows]


def translate_all(
    translator: Translator,
    sources: Sequence[str],
    decoding: Decoding,
    *,
    done: Container[int] = frozenset(),
) -> Iterator[Translated]:
    """Translates in batches, short sources first.

    What a source's output is follows from the seed and its index alone, up to rounding: whichever
    batches are left out, the others are the same.

    Args:
      translator: see `Translator`.
      sources: without the prefix. Those longer than the largest bucket are passed over; a
        decoder-only model goes on from them, in batches of prompts that are equally long.
      decoding: see `Decoding`.
      done: indices of sources; a batch of nothing else is left out.

    Yields:
      Translated, a batch each.
    """
    if translator.model.has_encoder:
        rows, buckets = encode_sources(translator, sources), decoding.buckets
    else:
        about = (translator.vocabulary, translator.prefix, translator.prompt_tokens)
        rows = prompt_ids(sources, *about)
        buckets = sorted({len(row) for row in rows})
    config = SpecConfig(
        max_new_tokens=decoding.max_new_tokens,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        num_ids=translator.vocabulary.num_ids,
    )
    base_key = jax.random.key(decoding.seed)
    for length, indices in plan([len(row) for row in rows], buckets, decoding.batch_size):
        if all(index in done for index in indices):
            continue
        size = decoding.batch_size
        row_ids = np.resize(indices, size)
        if translator.model.has_encoder:
            inputs = _padded([rows[index] for index in indices], (size, length))
            prompt = jnp.full((size, 1), START_ID, jnp.int32)
        else:
            inputs = jnp.zeros(size)
            prompt = jnp.asarray([rows[index] for index in row_ids], jnp.int32)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base_key, row_ids)
        decoded = autoregressive_decode(
            translator.params,
            inputs,
            prompt,
            keys,
            model=translator.model,
            settings=decoding.settings,
            config=config,
            limits=jnp.where(np.arange(size) < len(indices), decoding.max_new_tokens, 0),
        )
        yield Translated(indices, inputs, prompt, keys, jax.device_get(decoded))


def encode_sources(translator: Translator, sources: Sequence[str]) -> list[list[int]]:
    """Ids of every source, prefix and EOS included."""
    texts = [translator.prefix + source for source in sources]
    return [[*ids, EOS_ID] for ids in translator.vocabulary.encode(texts)]


def plan(
    lengths: Sequence[int], buckets: Sequence[int], batch_size: int
) -> list[tuple[int, np.ndarray]]:
    """Batches of sources by length: neighbours in a batch end at about the same step.

    Example: lengths [3, 9, 2, 5, 4], buckets (4, 8), batch_size 2 -> sources 2 and 0, then 4, at
    length 4; source 3 at length 8; source 1 fits no bucket and is left out.
    """
    lengths = np.asarray(lengths, np.int64)
    order = np.argsort(lengths, kind="stable")
    bucket_ids = np.searchsorted(buckets, lengths[order])
    planned = []
    for bucket_id, length in enumerate(buckets):
        members = order[bucket_ids == bucket_id]
        for start in range(0, len(members), batch_size):
            planned.append((length, members[start : start + batch_size]))
    return planned


def _padded(rows: Sequence[Sequence[int]], shape: tuple[int, int]) -> EncoderInputs:
    """Ids of at most B rows as inputs of shape [B, E]; the rows beyond are empty."""
    tokens, lengths = np.full(shape, PAD_ID, np.int32), np.zeros(shape[0], np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
        lengths[row] = len(ids)
    return EncoderInputs(jnp.asarray(tokens), jnp.asarray(lengths))


def translate_to(
    path: str | os.PathLike, translator: Translator, sources: Sequence[str], decoding: Decoding
) -> list[str]:
    """Writes a line `source \\t output` for every source, in their order, and returns the outputs.

    A file that is whole is read, not made again. Until it is whole, every batch is appended to
    PATH.part with its lines' numbers, and a run that was killed goes on from there.

    A source over the largest bucket gets an empty output, which a `data.FileTask` passes over.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return _read_outputs(path, len(sources))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    outputs = _read_part(part)
    lengths = np.array([len(row) for row in encode_sources(translator, sources)], np.int64)
    num_too_long = int((lengths > decoding.buckets[-1]).sum())
    if num_too_long:
        logger.warning(
            "%d of %d sources have more than %d tokens and are passed over",
            num_too_long,
            len(sources),
            decoding.buckets[-1],
        )
    progress = _Progress(lengths[lengths <= decoding.buckets[-1]].sum(), lengths[list(outputs)])
    with part.open("a", encoding="utf-8") as file:
        for batch in translate_all(translator, sources, decoding, done=outputs.keys()):
            texts = batch.texts(translator.vocabulary)
            new = dict(zip(batch.indices.tolist(), texts, strict=True))
            file.write("".join(f"{number}\t{text}\n" for number, text in new.items()))
            file.flush()
            os.fsync(file.fileno())
            outputs.update(new)
            progress.add(lengths[batch.indices], int(batch.decoded.lengths.sum()))
    ordered = [outputs.get(number, "") for number in range(len(sources))]
    temporary = path.with_name(path.name + ".tmp")
    pairs = zip(sources, ordered, strict=True)
    temporary.write_text("".join(f"{source}\t{text}\n" for source, text in pairs), "utf-8")
    temporary.replace(path)
    part.unlink()
    return ordered


def _read_outputs(path: pathlib.Path, num_sources: int) -> list[str]:
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    if len(lines) != num_sources:
        raise ValueError(
            f"{path} has {len(lines)} lines, but there are {num_sources} sources: it was made of "
            "another file; remove it or choose another folder"
        )
    return [line.split("\t")[1] for line in lines]


def _read_part(part: pathlib.Path) -> dict[int, str]:
    """Outputs so far by line number. A last line that a kill cut short is cut off the file."""
    if not part.is_file():
        return {}
    content = part.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    os.truncate(part, len(whole))
    fields = [line.split("\t") for line in whole.decode("utf-8").split("\n")[:-1]]
    return {int(number): text for number, text in fields}


def _in_one_line(text: str) -> str:
    """Bytes that a model spells may be tabs and line ends."""
    return re.sub(r"[\t\r\n]+", " ", text).strip()


class _Progress:
    """A line now and then. Time goes with the sources' tokens, not with their number."""

    def __init__(self, num_source_tokens: int, done_lengths: np.ndarray):
        self._total = max(int(num_source_tokens), 1)
        self._before = int(done_lengths.sum())
        self._done = self._before
        self._num_sources = len(done_lengths)
        self._num_tokens = 0
        self._began = self._said = time.monotonic()

    def add(self, source_lengths: np.ndarray, num_output_tokens: int) -> None:
        self._done += int(source_lengths.sum())
        self._num_sources += len(source_lengths)
        self._num_tokens += num_output_tokens
        now = time.monotonic()
        if now - self._said < _SECONDS_BETWEEN_LINES and self._done < self._total:
            return
        self._said = now
        elapsed = now - self._began
        left = elapsed * (self._total - self._done) / (self._done - self._before)
        logger.info(
            "%d sentences, %.0f %%  %.0f output tokens/s  %.1f min left",
            self._num_sources,
            100 * self._done / self._total,
            self._num_tokens / elapsed,
            left / 60,
        )


def translate(
    output_dir: str,
    *,
    model: str,
    vocabulary: str,
    task: Task,
    target: str = "",
    decoding: Decoding,
) -> None:
    """Writes DIR/translations.tsv, see `translate_to`. Killed, it goes on when called again.

    Args:
      output_dir: of the results.
      model: checkpoint folder.
      vocabulary: path of the SentencePiece model.
      task: of which the source side is translated; lines whose source is empty are passed over.
      target: checkpoint whose encoder output the model reads, for a draft without an encoder.
      decoding: see `Decoding`.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
    """
    words = Vocabulary(vocabulary)
    beside = load_translator(target, words) if target else None
    translator = load_translator(model, words, prefix=task.prefix, target=beside)
    sources = [source for source, _ in task.pairs()]
    if not sources:
        raise ValueError(f"no sentences in {task.path!r}: check the task's columns and filter")
    records.claim(
        output_dir,
        experiment="translate",
        weights=[distill.weights_digest(path) for path in (model, target) if path],
        vocabulary=translator.vocabulary.digest,
        task=dataclasses.asdict(task),
        decoding=dataclasses.asdict(decoding),
    )
    path = pathlib.Path(output_dir) / "translations.tsv"
    outputs = translate_to(path, translator, sources, decoding)
    logger.info("%s: %d lines, %d with an output", path, len(outputs), sum(map(bool, outputs)))
