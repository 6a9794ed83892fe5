"""The paper's data sets and their metrics, as seqio tasks with T5's prefixes.

`SeqioTask` gives a set's text to all that takes a `data.Task`; `add` and `add_file` put a task into
seqio's registry, a file's with the same reader as everywhere, for programs that go on with seqio.
seqio and TensorFlow are imported when a task is first read: `pip install -e '.[tasks]'`.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sacrebleu

from experiments.data import FileTask, evenly

ROUGE = ("rouge1", "rouge2", "rougeLsum")


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A TFDS set as T5's task of the same name reads it.

    Attributes:
      tfds: name, configuration and version.
      prefix: before every input.
      source, target: features; source=None: text alone.
      metric: of outputs, "bleu", "rouge" or "" for none.
    """

    tfds: str
    prefix: str
    source: str | None
    target: str
    metric: str = ""


DATA_SETS = {
    "wmt_t2t_ende_v003": DataSet(
        "wmt_t2t_translate/de-en:1.0.0", "translate English to German: ", "en", "de", "bleu"
    ),
    "cnn_dailymail_v002": DataSet(
        "cnn_dailymail:1.0.0", "summarize: ", "article", "highlights", "rouge"
    ),
    "lm1b": DataSet("lm1b:1.1.0", "", None, "text"),
}


@dataclasses.dataclass(frozen=True)
class SeqioTask:
    """A `data.Task` on a split of a data set.

    Attributes:
      name: of DATA_SETS.
      split: as TFDS has it, "test" or "validation[:100]".
      data_dir: TFDS's folder; None = its own default.
      weight, limit: see `data.FileTask`.
    """

    name: str
    split: str = "test"
    data_dir: str | None = None
    weight: float = 1.0
    limit: int = 0

    def __post_init__(self):
        if self.name not in DATA_SETS:
            raise ValueError(f"task {self.name!r} is none of {', '.join(DATA_SETS)}")
        if self.weight <= 0:
            raise ValueError(f"weight={self.weight} of {self.path}: must be above 0")

    @property
    def path(self) -> str:
        return f"{self.name}/{self.split}"

    @property
    def prefix(self) -> str:
        return DATA_SETS[self.name].prefix

    def pairs(self) -> list[tuple[str, str]]:
        """See `data.Task`.

        Raises:
          ValueError: without seqio, or where the data set isn't there, with what to do about it.
        """
        return evenly(list(_text_of(self.name, self.split, self.data_dir)), self.limit)

    def digest(self) -> str:
        about = [self.name, self.split, self.limit, DATA_SETS[self.name].tfds]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def check(self) -> None:
        """Raises a ValueError if the data can't be read here; nothing is imported for it."""
        if importlib.util.find_spec("seqio") is None:
            raise ValueError(
                f"task {self.name!r} needs seqio and TensorFlow: pip install -e '.[tasks]'"
            )
        if not folder_of(self.name, self.data_dir).is_dir():
            raise ValueError(missing(self.name, self.data_dir))


def folder_of(name: str, data_dir: str | None) -> pathlib.Path:
    """Where TFDS keeps a data set."""
    base = pathlib.Path(data_dir or pathlib.Path.home() / "tensorflow_datasets")
    return base / DATA_SETS[name].tfds.replace(":", "/")


def missing(name: str, data_dir: str | None) -> str:
    """That a data set isn't there, and the command that fetches it."""
    there = "" if data_dir is None else f", data_dir={data_dir!r}"
    load = f"tfds.load('{DATA_SETS[name].tfds}'{there})"
    return (
        f"no data set at {str(folder_of(name, data_dir))!r}: fetch it by python -c "
        f'"import tensorflow_datasets as tfds; {load}"'
    )


@functools.cache
def _text_of(name: str, split: str, data_dir: str | None) -> tuple[tuple[str, str], ...]:
    """(Input without prefix, output) of every example, in the set's own order."""
    SeqioTask(name, split, data_dir).check()
    task = add(name, data_dir=data_dir)
    prefix = DATA_SETS[name].prefix
    pairs = []
    whole = task.get_dataset(sequence_length=None, split=split, shuffle=False)
    for example in whole.as_numpy_iterator():
        source, target = (
            example.get(f"{side}_pretokenized", b"").decode() for side in ("inputs", "targets")
        )
        if not source.startswith(prefix):
            raise ValueError(f"{name}: an input without the prefix {prefix!r}: {source[:50]!r}")
        pairs.append((source.removeprefix(prefix).strip(), target.strip()))
    return tuple(pairs)


# seqio's registry


def add(name: str, *, vocabulary: str | None = None, data_dir: str | None = None) -> Any:
    """A data set's seqio task, registered under its own name if it isn't yet.

    Args:
      name: of DATA_SETS.
      vocabulary: path of a SentencePiece model; None = text as UTF-8 bytes, which is enough for
        who reads the text.
      data_dir: TFDS's folder.
    """
    import seqio

    about = DATA_SETS[name]
    if data_dir is not None:
        seqio.set_tfds_data_dir_override(data_dir)
    metrics = [METRICS[about.metric]] if about.metric else []
    source = seqio.TfdsDataSource(tfds_name=about.tfds)
    return _add(name, source, [functools.partial(_as_text, about=about)], vocabulary, metrics)


def add_file(name: str, task: FileTask, *, vocabulary: str | None = None, metric: str = "") -> Any:
    """A file's seqio task, its only split "all"."""
    import seqio
    import tensorflow as tf

    def read(split: str, shuffle_files: bool = False, seed: int | None = None):
        del split, shuffle_files, seed
        pairs = task.pairs()
        inputs = [task.prefix + source for source, _ in pairs]
        return tf.data.Dataset.from_tensor_slices(
            {"inputs": inputs, "targets": [target for _, target in pairs]}
        )

    metrics = [METRICS[metric]] if metric else []
    source = seqio.FunctionDataSource(read, splits=["all"])
    return _add(name, source, [], vocabulary, metrics)


def _add(
    name: str,
    source: Any,
    preprocessors: Sequence[Callable],
    vocabulary: str | None,
    metrics: Sequence[Callable],
) -> Any:
    import seqio

    if name in seqio.TaskRegistry.names():
        seqio.TaskRegistry.remove(name)
    words = (
        seqio.ByteVocabulary()
        if vocabulary is None
        else seqio.SentencePieceVocabulary(vocabulary, extra_ids=0)
    )
    features = {side: seqio.Feature(words, add_eos=True) for side in ("inputs", "targets")}
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *preprocessors,
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features=features,
        metric_fns=list(metrics),
    )


def _as_text(dataset: Any, about: DataSet) -> Any:
    """A data set's features as inputs and targets."""
    import tensorflow as tf

    def convert(example: Mapping[str, Any]) -> dict[str, Any]:
        source = tf.constant("") if about.source is None else example[about.source]
        return {
            "inputs": tf.strings.join([about.prefix, source]),
            "targets": example[about.target],
        }

    return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


# Metrics, of seqio's form: (targets, predictions) -> scores


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU by sacrebleu, with its own tokeniser."""
    return {"bleu": sacrebleu.corpus_bleu(list(predictions), [list(targets)]).score}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Mean F1 of ROUGE-1, -2 and -L (of whole summaries), times 100, by rouge-score, stemmed.

    Raises:
      ValueError: without rouge-score.
    """
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise ValueError("ROUGE needs rouge-score: pip install -e '.[tasks]'") from error
    scorer = rouge_scorer.RougeScorer(ROUGE, use_stemmer=True)
    # A sentence a line is what ROUGE-L of summaries goes by.
    lines = [[text.replace(". ", ".\n") for text in texts] for texts in (targets, predictions)]
    scores = [scorer.score(*pair) for pair in zip(*lines, strict=True)]
    num = max(len(scores), 1)
    return {name: 100 * sum(score[name].fmeasure for score in scores) / num for name in ROUGE}


METRICS: dict[str, Callable[[Sequence[str], Sequence[str]], dict[str, float]]] = {
    "bleu": bleu,
    "rouge": rouge,
}
