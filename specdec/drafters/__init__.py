"""Drafters: what proposes tokens to the target."""

from specdec.drafters.combined import CopyOrModelDrafter
from specdec.drafters.heads import HeadsDrafter
from specdec.drafters.lookup import CopyDrafter
from specdec.drafters.model import ModelDrafter, SharedEncoderDrafter
from specdec.drafters.ngram import BigramDrafter, UnigramDrafter
from specdec.drafters.random import RandomDrafter

__all__ = [
    "BigramDrafter",
    "CopyDrafter",
    "CopyOrModelDrafter",
    "HeadsDrafter",
    "ModelDrafter",
    "RandomDrafter",
    "SharedEncoderDrafter",
    "UnigramDrafter",
]
