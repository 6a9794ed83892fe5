"""Puts a trained target and its drafts into one folder, in bfloat16: what a repository can hold."""

import logging
import pathlib
import shutil
from collections.abc import Mapping
from types import MappingProxyType

import jax.numpy as jnp

from specdec.checkpoints import native
from specdec.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_NO_BASES: Mapping[str, str] = MappingProxyType({})


def ship(
    output_dir: str,
    *,
    pair: str,
    models: Mapping[str, str],
    vocabulary: str,
    bases: Mapping[str, str] = _NO_BASES,
) -> None:
    """Writes PAIR/<name> for every model and PAIR/spiece.model. What has these names goes.

    Args:
      output_dir: not used; it gets the configuration, whose paths are nobody else's business.
      pair: the folder to publish.
      models: export folders by name.
      vocabulary: the SentencePiece model that all of them were trained with.
      bases: shipped checkpoints by name, that models were trained on from: what is the same in both
        is written once, see `specdec.checkpoints.bases`.

    Raises:
      ValueError: before anything is written, for what is missing or doesn't go together.
    """
    del output_dir
    words = Vocabulary(vocabulary)
    for name, base in bases.items():
        if name not in models:
            raise ValueError(f"bases has {name!r}, which is none of {', '.join(models)}")
        native.load(base)
    loaded = {name: native.load(path) for name, path in models.items()}
    for name, (_, config) in loaded.items():
        words.check_rows(models[name], config.vocab_size)
    folder = pathlib.Path(pair)
    for name, (params, config) in loaded.items():
        native.save(folder / name, params, config, storage_dtype=jnp.bfloat16, base=bases.get(name))
    copy = folder / "spiece.model"
    if pathlib.Path(vocabulary).resolve() != copy.resolve():
        shutil.copyfile(vocabulary, copy)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    logger.info("%s: %s, %.1f MB in all", folder, ", ".join(loaded), size / 1e6)
