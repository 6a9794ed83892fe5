"""The kinds of network there are, by the name that a checkpoint's config.json gives them."""

from specdec.models.gpt import GPTConfig, GPTLanguageModel
from specdec.models.t5 import T5Config, T5LanguageModel
from specdec.sharding import Layout

Config = T5Config | GPTConfig

CONFIG_TYPES: dict[str, type[Config]] = {"specdec_t5": T5Config, "specdec_gpt": GPTConfig}
_MODELS = {T5Config: T5LanguageModel, GPTConfig: GPTLanguageModel}


def model_type(config: Config) -> str:
    """The name of a configuration's kind."""
    return next(name for name, kind in CONFIG_TYPES.items() if isinstance(config, kind))


def language_model(
    config: Config, layout: Layout | None = None
) -> T5LanguageModel | GPTLanguageModel:
    """The model of a configuration, over the devices of a layout if there is one."""
    return _MODELS[type(config)](config, layout)
