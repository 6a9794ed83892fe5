"""Every kind of draft, by a configuration that is loaded beside a target.

A kind's `load` gives the drafter and its parameters.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from experiments import counts
from experiments.translators import Translator
from specdec.drafters import (
    BigramDrafter,
    CopyDrafter,
    CopyOrModelDrafter,
    HeadsDrafter,
    RandomDrafter,
    UnigramDrafter,
)
from specdec.drafters.ngram import bigram_logits, unigram_logits
from specdec.kernels import library
from specdec.text import drafter_for, load_model
from specdec.types import Drafter


class Loaded(NamedTuple):
    """A drafter and its parameters."""

    drafter: Drafter
    params: Any


class Draft(Protocol):
    """A kind of draft."""

    def load(self, target: Translator) -> Loaded:
        """Raises a ValueError for what is missing, or doesn't fit the target."""
        ...


@dataclasses.dataclass(frozen=True)
class Model:
    """A smaller model, from its checkpoint folder."""

    path: str

    def load(self, target: Translator) -> Loaded:
        # As `text.load_pair` has it.
        params, model = load_model(self.path, stays_narrow=library.is_available())
        target.vocabulary.check_rows(self.path, model.vocab_size)
        return Loaded(drafter_for(target.model, model), params)


@dataclasses.dataclass(frozen=True)
class Bigram:
    """The law of a token given the one before it, counted on training text (see `counts`)."""

    counts: str

    def load(self, target: Translator) -> Loaded:
        words = target.vocabulary
        table = bigram_logits(counts.read(self.counts, words))
        return Loaded(BigramDrafter(words.num_ids), jnp.asarray(table))


@dataclasses.dataclass(frozen=True)
class Unigram:
    """The same law everywhere, of the same counts."""

    counts: str

    def load(self, target: Translator) -> Loaded:
        words = target.vocabulary
        table = unigram_logits(counts.read(self.counts, words))
        return Loaded(UnigramDrafter(words.num_ids), jnp.asarray(table))


@dataclasses.dataclass(frozen=True)
class Copy:
    """Copies what follows the longest match of the last tokens, of 3 down to 1."""

    longest: int = 3
    shortest: int = 1

    def load(self, target: Translator) -> Loaded:
        return Loaded(CopyDrafter(target.model.vocab_size, self.longest, self.shortest), ())


@dataclasses.dataclass(frozen=True)
class CopyOrModel:
    """Copies where there is a match of `shortest` tokens or more, else a model drafts."""

    path: str
    longest: int = 3
    shortest: int = 2

    def load(self, target: Translator) -> Loaded:
        model = Model(self.path).load(target)
        copy = Copy(self.longest, self.shortest).load(target)
        return Loaded(CopyOrModelDrafter(copy.drafter, model.drafter), model.params)


@dataclasses.dataclass(frozen=True)
class Heads:
    """A model that drafts all gamma tokens in one run, from its checkpoint folder."""

    path: str

    def load(self, target: Translator) -> Loaded:
        drafter, params = Model(self.path).load(target)
        if getattr(drafter.model.config, "num_ahead", 1) < 2:
            raise ValueError(f"{self.path!r} predicts one token ahead: load it as drafts.Model")
        return Loaded(HeadsDrafter(drafter.model), params)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Any id as likely as any other."""

    def load(self, target: Translator) -> Loaded:
        return Loaded(RandomDrafter(target.vocabulary.num_ids), ())
