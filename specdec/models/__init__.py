"""Models, as `LanguageModel`s."""

from specdec.models.gpt import GPTConfig, GPTLanguageModel
from specdec.models.t5 import CONFIGS, T5Config, T5LanguageModel

__all__ = ["CONFIGS", "GPTConfig", "GPTLanguageModel", "T5Config", "T5LanguageModel"]
