"""Models that translate on their own: a target, or a draft beside the target that it reads."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.drafters import ModelDrafter
from specdec.speculative import PairParams
from specdec.text import drafter_for, load_model
from specdec.types import Cache, EncoderInputs, LanguageModel
from specdec.vocabulary import START_ID, Vocabulary


@dataclasses.dataclass(frozen=True)
class DraftAlone:
    """A draft as a `LanguageModel` of its own; its parameters are those of the pair.

    The target runs as far as the draft reads it: its encoder, or (compiled) nothing at all.
    """

    target: LanguageModel
    drafter: ModelDrafter

    @property
    def has_encoder(self) -> bool:
        return self.target.has_encoder

    @property
    def vocab_size(self) -> int:
        return self.drafter.vocab_size

    def init_cache(self, params: PairParams, inputs: EncoderInputs, cache_length: int) -> Cache:
        """See `LanguageModel`."""
        target_cache = self.target.init_cache(params.target, inputs, cache_length)
        prompt = jnp.full((inputs.lengths.shape[0], 1), START_ID)
        return self.drafter.init(
            params.draft, inputs, prompt, target_cache, cache_length=cache_length
        )

    def extend(
        self, params: PairParams, cache: Cache, tokens: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """See `LanguageModel`."""
        return self.drafter.model.extend(params.draft, cache, tokens, positions)


@dataclasses.dataclass(frozen=True, eq=False)
class Translator:
    """A model with its vocabulary.

    Attributes:
      model, params: a `LanguageModel` over encoder inputs, and its parameters.
      vocabulary: see `Vocabulary`.
      prefix: put before every source.
      prompt_tokens: of a decoder-only model: tokens of a source that it goes on from, None = all.
    """

    model: LanguageModel
    params: Any
    vocabulary: Vocabulary
    prefix: str = ""
    prompt_tokens: int | None = None


def load_translator(
    path: str,
    vocabulary: Vocabulary,
    *,
    prefix: str = "",
    prompt_tokens: int | None = None,
    target: Translator | None = None,
) -> Translator:
    """A checkpoint as a translator: of its own, or as a draft beside its target.

    Raises:
      ValueError: for checkpoints that are missing, damaged, or don't go together.
    """
    params, model = load_model(path)
    vocabulary.check_rows(path, model.vocab_size)
    if target is not None:
        model = DraftAlone(target.model, drafter_for(target.model, model))
        params = PairParams(target.params, params)
    elif model.has_encoder and model.config.num_encoder_layers == 0:
        raise ValueError(
            f"{path!r} has num_encoder_layers=0 and reads its target's encoder output: give that "
            "target, too"
        )
    return Translator(model, params, vocabulary, prefix, prompt_tokens)
