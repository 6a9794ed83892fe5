"""alpha of drafts on a target's own outputs (Corollary 3.6 of arXiv 2211.17192), in batches.

Dimensions: B batch, N slots for outputs.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.translate import Decoding, Translated, translate_all
from experiments.translators import Translator
from specdec import metrics
from specdec.config import SpecConfig
from specdec.sampling import Settings
from specdec.speculative import PairParams
from specdec.types import Drafter
from specdec.vocabulary import EOS_ID, PAD_ID

# Slots come in multiples of this: all batches of a source bucket share one program.
_SLOTS = 32


def target_outputs(
    translator: Translator, sources: Sequence[str], decoding: Decoding
) -> list[Translated]:
    """The target's outputs as tokens, [B, N], cut to what the longest of a source bucket needs."""
    batches = list(translate_all(translator, sources, decoding))
    num_slots: dict[tuple, int] = {}
    for batch in batches:
        longest = int(batch.decoded.lengths.max())
        needed = min(-(-longest // _SLOTS) * _SLOTS, decoding.max_new_tokens)
        num_slots[batch.shape] = max(needed, num_slots.get(batch.shape, 1))

    def cut(batch: Translated) -> Translated:
        tokens = batch.decoded.tokens[:, : num_slots[batch.shape]]
        return batch._replace(decoded=batch.decoded.replace(tokens=tokens))

    return [cut(batch) for batch in batches]


def alpha_on(
    outputs: Sequence[Translated],
    translator: Translator,
    drafter: Drafter,
    draft_params: Any,
    *,
    settings: Settings,
    draft_settings: Settings | None = None,
) -> dict[str, float | int]:
    """alpha, its standard error, the number of tokens and how neighbouring betas correlate.

    Args:
      outputs: of the target under `settings`.
      translator: the target.
      drafter, draft_params: the draft.
      settings, draft_settings: how logits become p and q, by default alike.
    """
    config = SpecConfig(eos_id=EOS_ID, pad_id=PAD_ID, num_ids=translator.vocabulary.num_ids)
    betas = []
    for batch in outputs:
        found = metrics.overlaps_on_tokens(
            PairParams(translator.params, draft_params),
            batch.inputs,
            batch.prompt,
            jnp.asarray(batch.decoded.tokens),
            jnp.asarray(batch.decoded.lengths),
            batch.keys,
            target=translator.model,
            drafter=drafter,
            settings=settings,
            draft_settings=draft_settings,
            config=config,
        )
        betas += list(np.asarray(found)[: len(batch.indices)])
    alpha, error, num_tokens = metrics.mean_over_rows(betas)
    return {
        "alpha": alpha,
        "alpha_standard_error": error,
        "num_alpha_tokens": num_tokens,
        "beta_autocorrelation": metrics.autocorrelation(betas),
    }
