"""Models, as `LanguageModel`s."""

from specdec.models.t5 import CONFIGS, T5Config, T5LanguageModel

__all__ = ["CONFIGS", "T5Config", "T5LanguageModel"]
