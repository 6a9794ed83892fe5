"""alpha of drafts on a target's own outputs (Corollary 3.6 of arXiv 2211.17192), in batches.

Dimensions: B batch, N slots for outputs.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.translate import Decoding, Translated, translate_all
from experiments.translators import Translator
from specdec import metrics
from specdec.config import SpecConfig
from specdec.generation import Decoded
from specdec.sampling import Settings
from specdec.speculative import PairParams, speculative_decode
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
    how = dict(settings=settings, draft_settings=draft_settings)
    betas = values_on(outputs, translator, drafter, draft_params, **how)
    alpha, error, num_tokens = metrics.mean_over_rows(betas)
    return {
        "alpha": alpha,
        "alpha_standard_error": error,
        "num_alpha_tokens": num_tokens,
        "beta_autocorrelation": metrics.autocorrelation(betas),
    }


def values_on(
    outputs: Sequence[Translated],
    translator: Translator,
    drafter: Drafter,
    draft_params: Any,
    *,
    settings: Settings,
    draft_settings: Settings | None = None,
    **kwargs: Any,
) -> list[np.ndarray]:
    """beta (or another `statistic`, see `metrics.overlaps_on_tokens`) at every token: [N] a row."""
    config = SpecConfig(eos_id=EOS_ID, pad_id=PAD_ID, num_ids=translator.vocabulary.num_ids)
    values: list[np.ndarray] = []
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
            **kwargs,
        )
        values += list(np.asarray(found)[: len(batch.indices)])
    return values


def speculate_on(
    outputs: Sequence[Translated],
    translator: Translator,
    drafter: Drafter,
    draft_params: Any,
    *,
    gamma: int,
    **how: Any,
) -> list[Decoded]:
    """Speculative decoding of the requests that target outputs were made of, in the same batches.

    Args:
      outputs: see `target_outputs`; no row gets longer than the longest of its batch.
      translator, drafter, draft_params: the target and the draft.
      gamma: drafts a round.
      how: settings, draft_settings, verify_fn, see `speculative_decode`.

    Returns:
      A result a batch, on the host; rows that fill a batch up are empty.
    """
    results = []
    for batch in outputs:
        longest = batch.decoded.tokens.shape[1]
        config = SpecConfig(
            gamma=gamma,
            max_new_tokens=longest,
            eos_id=EOS_ID,
            pad_id=PAD_ID,
            num_ids=translator.vocabulary.num_ids,
        )
        is_real = jnp.arange(batch.prompt.shape[0]) < len(batch.indices)
        result = speculative_decode(
            PairParams(translator.params, draft_params),
            batch.inputs,
            batch.prompt,
            batch.keys,
            target=translator.model,
            drafter=drafter,
            config=config,
            limits=is_real * longest,
            **how,
        )
        results.append(jax.device_get(result))
    return results
