"""Public T5 checkpoints by name: their shapes, where they come from, where they lie here.

A folder, by default checkpoints/public, holds each under its own name, in T5X's form or Hugging
Face's; what was fine-tuned from one on a task is called by both names, t5_1_1_small_ende.
"""

import dataclasses
import pathlib

from specdec.models.t5 import CONFIGS, T5Config

FOLDER = "checkpoints/public"
VERSIONS = ("1.0", "1.1", "flan")
_BUCKET = "gs://t5-data/pretrained_models/t5x"
# Where Hugging Face's names differ from T5X's.
_HUB = {"t5": "google-t5/t5-{}", "t5_1_1": "google/t5-v1_1-{}", "flan_t5": "google/flan-t5-{}"}


@dataclasses.dataclass(frozen=True)
class Published:
    """A public checkpoint.

    Attributes:
      name: T5X's.
      config: its shape.
      is_ready: whether it translates and summarises as it is, told by T5's prefixes; T5 1.1 was
        trained on C4 alone and must be fine-tuned first.
    """

    name: str
    config: T5Config
    is_ready: bool

    @property
    def bucket(self) -> str:
        """T5X's form: a folder of checkpoint_N folders."""
        return f"{_BUCKET}/{self.name}"

    @property
    def hub(self) -> str:
        """Hugging Face's repository."""
        family, size = self.name.rsplit("_", 1)
        return _HUB[family].format(size.lower())


PUBLISHED = {
    name: Published(name, config, is_ready=not name.startswith("t5_1_1"))
    for name, config in CONFIGS.items()
}


def published(name: str) -> Published:
    """Raises a ValueError for a name that isn't known."""
    if name not in PUBLISHED:
        raise ValueError(f"checkpoint {name!r} is none of {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def shape(name: str, **changes) -> T5Config:
    """The shape of a public checkpoint, with changes: dropout_rate, dtype ..."""
    return dataclasses.replace(published(name).config, **changes)


def path(name: str, folder: str = FOLDER) -> str:
    """Where a public checkpoint lies."""
    return str(pathlib.Path(folder, published(name).name))


def name_of(version: str, size: str) -> str:
    """Example: "1.1", "small" -> t5_1_1_small.

    The largest is 11B in version 1.0 and XXL in the others: both names mean either.
    """
    if version not in VERSIONS:
        raise ValueError(f"version={version!r} is none of {', '.join(VERSIONS)}")
    is_old = version == "1.0"
    size = {"xxl": "11B", "xl": "3B"}.get(size, size) if is_old else size
    family = {"1.0": "t5", "1.1": "t5_1_1", "flan": "flan_t5"}[version]
    return published(f"{family}_{size}").name


def model_path(version: str, size: str, task: str, folder: str = FOLDER) -> str:
    """Where the model of a version and size lies that does a task, fine-tuned if it had to be."""
    name = name_of(version, size)
    return path(name, folder) if published(name).is_ready else f"{path(name, folder)}_{task}"


def of_path(path: str) -> Published | None:
    """Which public checkpoint a path is named after, fine-tuned or not."""
    named = pathlib.PurePath(path).name
    found = [name for name in PUBLISHED if named == name or named.startswith(f"{name}_")]
    return PUBLISHED[max(found, key=len)] if found else None
