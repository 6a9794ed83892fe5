"""A target at work on a task with the drafts to try: what the paper's tables have a block for."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from experiments import programs, records
from experiments.alphas import target_outputs
from experiments.data import Task
from experiments.drafts import Draft, Loaded
from experiments.translate import Decoding, Translated
from experiments.translators import Translator, load_translator
from specdec import sampling
from specdec.speculative import PairParams
from specdec.text import TextPair
from specdec.vocabulary import Vocabulary

# What drafts that are models are called, the smallest first.
LADDER = ("tiny", "small", "medium", "large")


@dataclasses.dataclass(frozen=True)
class Workload:
    """A target, a task and drafts.

    Attributes:
      name: of the task, in the records.
      target, vocabulary: paths.
      task: whose inputs the target goes on from; `limit` says how many.
      drafts: by name, see `drafts`.
      prompt_tokens: of a decoder-only target, see `Translator`.
      max_new_tokens: most tokens of an output.
    """

    name: str
    target: str
    vocabulary: str
    task: Task
    drafts: Mapping[str, Draft]
    prompt_tokens: int | None = None
    max_new_tokens: int = 128

    def load(self) -> Translator:
        """Raises a ValueError for files that are missing, damaged, or don't go together."""
        words = Vocabulary(self.vocabulary)
        about = dict(prefix=self.task.prefix, prompt_tokens=self.prompt_tokens)
        return load_translator(self.target, words, **about)

    def pair_with(self, target: Translator, draft: Loaded) -> TextPair:
        """Target and draft, for one text at a time."""
        return TextPair(
            target.model,
            draft.drafter,
            PairParams(target.params, draft.params),
            target.vocabulary,
            target.prefix,
            target.prompt_tokens,
        )

    def load_drafts(self, target: Translator) -> dict[str, Loaded]:
        """All drafts by name, beside the target."""
        return {name: draft.load(target) for name, draft in self.drafts.items()}

    def pairs(self) -> list[tuple[str, str]]:
        """What the target goes on from, and the reference; of text without an input both is it."""
        return [(source or text, text) for source, text in self.task.pairs()]


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How outputs are drawn.

    Attributes:
      temperature: 0 is greedy.
      top_k, top_p: the target's filters; 0 and 1 are off.
      is_draft_filtered: whether the draft has them, too, or the temperature alone.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    is_draft_filtered: bool = True

    def __post_init__(self):
        self.settings  # noqa: B018 (refuses what makes no sense)

    @property
    def settings(self) -> sampling.Settings:
        """The target's."""
        return self.of(Decoding()).settings

    @property
    def draft_settings(self) -> sampling.Settings:
        return self.settings if self.is_draft_filtered else sampling.settings(self.temperature)

    def of(self, decoding: Decoding) -> Decoding:
        """A batch decoding with the target's temperature and filters."""
        how = dict(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return dataclasses.replace(decoding, **how)

    def as_key(self) -> dict[str, Any]:
        """As entries of a record."""
        return {**dataclasses.asdict(self), "temperature": float(self.temperature)}

    def __str__(self) -> str:
        filters = [f"top-k {self.top_k}"] if self.top_k else []
        filters += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        filters += ["draft unfiltered"] if filters and not self.is_draft_filtered else []
        return ", ".join([f"T={self.temperature:g}", *filters])


def each_missing(
    output_dir: str,
    experiment: str,
    workload: Workload,
    target: Translator,
    drafts: Mapping[str, Loaded],
    sampling: Sampling,
    decoding: Decoding,
) -> Iterator[tuple[dict[str, Any], Loaded, list[Translated]]]:
    """The drafts that have no record yet under a sampling.

    Yields:
      The record's key, the draft, and the target's outputs, made for the first of them.
    """
    outputs: list[Translated] = []
    sources = [source for source, _ in workload.pairs()]
    for name, draft in drafts.items():
        key = dict(experiment=experiment, task=workload.name, draft=name, **sampling.as_key())
        if not records.is_there(output_dir, key):
            outputs = outputs or target_outputs(target, sources, sampling.of(decoding))
            yield key, draft, outputs
    programs.forget()
