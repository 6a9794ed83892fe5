"""What a translator and its drafts are worth: translation scores, held-out loss, alpha.

One record per model and test set, and one per draft and temperature. A run that was killed goes on
when called again: records that are there are not made again, and outputs are kept batch by batch.
"""

import dataclasses
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import counts, distill, records
from experiments.alphas import alpha_on, target_outputs
from experiments.batching import Buckets
from experiments.data import Task, tokenize
from experiments.evaluation import heldout_losses
from experiments.quality import quality
from experiments.translate import Decoding, encode_sources, translate_to
from experiments.translators import DraftAlone, Translator, load_translator
from experiments.update import Updater
from specdec.drafters import BigramDrafter
from specdec.drafters.ngram import bigram_logits
from specdec.sampling import settings
from specdec.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

TARGET = "target"
BIGRAM = "bigram"
# The name of all held-out test sets together.
POOLED = "heldout"
# The stages of a draft's training: the last, and whatever earlier ones are given names. A bigram
# is counted, not trained: it has none.
FINAL, NO_STAGE = "final", ""
# Of the teacher-forced loss; longer pairs are left out of it.
_LOSS_BUCKETS = Buckets((32, 64, 128, 256), slots_per_batch=2048)


@dataclasses.dataclass(frozen=True)
class NamedTask:
    """A test set.

    Attributes:
      name: in the records.
      task: sentences with references.
      is_heldout: whether it is one of the parts of the pooled set, which alphas are measured on.
    """

    name: str
    task: Task
    is_heldout: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """A model to score.

    Attributes:
      name, stage: in the records; the target has no stage.
      weights: digest of its weights.
      translator: see `Translator`.
    """

    name: str
    stage: str
    weights: str
    translator: Translator


def score(
    output_dir: str,
    *,
    target: str,
    vocabulary: str,
    test_sets: Sequence[NamedTask],
    drafts: Mapping[str, str],
    decoding: Decoding,
    earlier: Mapping[str, Mapping[str, str]] | None = None,
    bigram_tasks: Sequence[Task] = (),
    temperatures: Sequence[float] = (0.0, 1.0),
) -> None:
    """Writes records.jsonl, environment.json and the outputs that were scored (DIR/outputs).

    Drafts and temperatures may be added in a later call; the rest stays.

    Args:
      output_dir: of the results.
      target, vocabulary: paths.
      test_sets: see `NamedTask`; at least one is held out.
      drafts: checkpoint folders by name.
      decoding: greedy, for the scores; its limits hold for the outputs that alphas are taken on.
      earlier: other stages of the same drafts' training, each a name and the checkpoint folders by
        name: their alphas are measured, too.
      bigram_tasks: text whose target sides a bigram draft is counted on, each once; () = none.
      temperatures: of the alphas.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
    """
    _check(test_sets, decoding, temperatures, earlier or {})
    pairs = {one.name: _pairs(one) for one in test_sets}
    words = Vocabulary(vocabulary)
    models = [load_scored(TARGET, NO_STAGE, target, words)]
    beside = models[0].translator
    for stage, paths in ((FINAL, drafts), *(earlier or {}).items()):
        models += [load_scored(name, stage, path, words, beside) for name, path in paths.items()]
    records.claim(
        output_dir,
        experiment="scores",
        target=models[0].weights,
        vocabulary=words.digest,
        test_sets=[dataclasses.asdict(one) for one in test_sets],
        decoding=dataclasses.asdict(decoding),
        bigram_tasks=[dataclasses.asdict(task) for task in bigram_tasks],
    )
    records.write_environment(output_dir)
    for model in models:
        if model.stage in (FINAL, NO_STAGE):
            score_translations(output_dir, model, test_sets, pairs, decoding)
    for temperature in temperatures:
        how = dataclasses.replace(decoding, temperature=temperature)
        measure_alphas(output_dir, models, _pooled_sources(test_sets, pairs), how, bigram_tasks)


def _check(test_sets, decoding: Decoding, temperatures, earlier) -> None:
    if decoding.temperature != 0:
        raise ValueError(f"temperature={decoding.temperature}: scores are of greedy outputs, 0")
    for temperature in temperatures:
        settings(temperature)
    if taken := sorted({FINAL, NO_STAGE} & set(earlier)):
        raise ValueError(f"earlier stage {taken[0]!r}: give it another name")
    names = [one.name for one in test_sets]
    if len({*names, POOLED}) <= len(names) or not any(one.is_heldout for one in test_sets):
        raise ValueError(
            f"test sets {names}: give each a name of its own, not {POOLED!r}, and hold one out"
        )


def _pairs(one: NamedTask) -> list[tuple[str, str]]:
    pairs = one.task.pairs()
    if not pairs:
        raise ValueError(f"no sentences in {one.task.path!r} for {one.name!r}: check its filter")
    return pairs


def _pooled_sources(test_sets, pairs) -> list[str]:
    """Prefixes included: they may differ from part to part."""
    parts = [one for one in test_sets if one.is_heldout]
    return [one.task.prefix + source for one in parts for source, _ in pairs[one.name]]


def load_scored(
    name: str, stage: str, path: str, vocabulary: Vocabulary, target: Translator | None = None
) -> Scored:
    """A checkpoint under its name; a draft beside its target."""
    translator = load_translator(path, vocabulary, target=target)
    return Scored(name, stage, distill.weights_digest(path), translator)


def _record(output_dir: str, row: dict[str, Any]) -> None:
    records.append(output_dir, {**row, "device": jax.devices()[0].device_kind})
    logger.info("%s", row)


# Translation scores and losses


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What a model made of a test set.

    Attributes:
      texts, references: one a sentence.
      num_passed_over: sources too long to translate; their texts are empty.
      loss: nats per target token under teacher forcing, the mean over num_loss_tokens.
      num_loss_dropped: pairs that were too long for it.
    """

    texts: list[str]
    references: list[str]
    num_passed_over: int
    loss: float
    num_loss_tokens: int
    num_loss_dropped: int

    def as_record(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[2:]}
        return {"num_examples": len(self.texts), **quality(self.texts, self.references), **fields}


def score_translations(
    output_dir: str, model: Scored, test_sets, pairs, decoding: Decoding
) -> None:
    """The records of one model that are not there yet."""
    about = dict(kind="translation", model=model.name, weights=model.weights)
    missing = {
        name
        for name in (*pairs, POOLED)
        if not records.is_there(output_dir, {**about, "test_set": name})
    }
    loss_meter, parts = LossMeter(model.translator), []
    folder = pathlib.Path(output_dir) / "outputs" / f"{model.name}-{model.weights}"
    for one in test_sets:
        is_part = one.is_heldout and POOLED in missing
        if one.name not in missing and not is_part:
            continue
        translator = dataclasses.replace(model.translator, prefix=one.task.prefix)
        outputs = translate_and_measure(
            folder / f"{one.name}.tsv", translator, one.task, pairs[one.name], decoding, loss_meter
        )
        parts += [outputs] if is_part else []
        if one.name in missing:
            _record(output_dir, {**about, "test_set": one.name, **outputs.as_record()})
    if POOLED in missing:
        _record(output_dir, {**about, "test_set": POOLED, **_joined(parts).as_record()})


def translate_and_measure(
    path: pathlib.Path,
    translator: Translator,
    task: Task,
    pairs: Sequence[tuple[str, str]],
    decoding: Decoding,
    loss_meter: "LossMeter",
) -> Outputs:
    """Translates a task to `path` and measures the loss on its references."""
    sources, references = map(list, zip(*pairs, strict=True))
    lengths = np.array([len(row) for row in encode_sources(translator, sources)])
    num_too_long = int((lengths > decoding.buckets[-1]).sum())
    texts = translate_to(path, translator, sources, decoding)
    return Outputs(texts, references, num_too_long, *loss_meter.measure(task))


def _joined(parts: Sequence[Outputs]) -> Outputs:
    """Several test sets as one; the loss is that of all their tokens."""
    num_tokens = sum(part.num_loss_tokens for part in parts)
    loss = sum(part.loss * part.num_loss_tokens for part in parts if part.num_loss_tokens)
    return Outputs(
        [text for part in parts for text in part.texts],
        [reference for part in parts for reference in part.references],
        sum(part.num_passed_over for part in parts),
        loss / num_tokens if num_tokens else float("nan"),
        num_tokens,
        sum(part.num_loss_dropped for part in parts),
    )


class LossMeter:
    """The loss of one model, compiled once for all test sets."""

    def __init__(self, translator: Translator):
        self._vocabulary = translator.vocabulary
        self._params, self._target_params = translator.params, None
        model, target_config = translator.model, None
        if isinstance(model, DraftAlone):
            self._target_params, self._params = translator.params
            model, target_config = model.drafter.model, model.target.config
        self._updater = Updater(
            {"model": model.config},
            None,  # nothing is trained
            num_ids=self._vocabulary.num_ids,
            seed=0,
            target_config=target_config,
        )

    def measure(self, task: Task) -> tuple[float, int, int]:
        """Loss, tokens that it is the mean of, and pairs that were too long for it."""
        max_lengths = _LOSS_BUCKETS.max_lengths
        examples, num_dropped = tokenize([task], self._vocabulary, max_lengths=max_lengths)
        if not len(examples):
            return float("nan"), 0, num_dropped
        losses = heldout_losses(
            self._updater,
            {"model": self._params},
            self._target_params,
            examples=examples,
            buckets=_LOSS_BUCKETS,
        )
        return losses["model"]["cross_entropy"], len(examples.targets), num_dropped


# Alphas


def measure_alphas(
    output_dir: str,
    models: Sequence[Scored],
    sources: Sequence[str],
    decoding: Decoding,
    bigram_tasks: Sequence[Task],
) -> None:
    """The records of all drafts at one temperature that are not there yet.

    Args:
      output_dir: of the records.
      models: the target, then the drafts.
      sources: prefixes included.
      decoding: of the target's outputs, with the temperature.
      bigram_tasks: see `score`.
    """
    target, outputs = models[0].translator, []
    temperature = float(decoding.temperature)

    def measure(name, stage, weights, draft_fn):
        key = dict(kind="alpha", draft=name, stage=stage, weights=weights)
        key |= dict(temperature=temperature, test_set=POOLED)
        if records.is_there(output_dir, key):
            return
        outputs.extend([] if outputs else target_outputs(target, sources, decoding))
        found = alpha_on(outputs, target, *draft_fn(), settings=decoding.settings)
        _record(output_dir, {**key, "num_examples": len(sources), **found})

    for draft in models[1:]:
        translator = draft.translator
        pair = (translator.model.drafter, translator.params.draft)
        measure(draft.name, draft.stage, draft.weights, lambda pair=pair: pair)
    if bigram_tasks:
        words = target.vocabulary
        table = lambda: jnp.asarray(bigram_logits(counts.count_tasks(bigram_tasks, words)))
        measure(BIGRAM, NO_STAGE, "", lambda: (BigramDrafter(words.num_ids), table()))
