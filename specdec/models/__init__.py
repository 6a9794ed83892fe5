"""Models, as `LanguageModel`s."""

from specdec.models.gpt import GPTConfig, GPTLanguageModel
from specdec.models.kinds import Config, language_model
from specdec.models.t5 import CONFIGS, T5Config, T5LanguageModel

__all__ = [
    "CONFIGS",
    "Config",
    "GPTConfig",
    "GPTLanguageModel",
    "T5Config",
    "T5LanguageModel",
    "language_model",
]
