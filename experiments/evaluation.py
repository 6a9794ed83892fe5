"""Held-out loss, and BLEU and chrF of greedy outputs, while a model trains.

Dimensions: B batch, E encoder length, L output length.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.batching import Batch, Buckets, Planned, make_batch, plan_in_order
from experiments.data import Examples
from experiments.distill import Target
from experiments.quality import quality
from experiments.reporting import Metrics
from experiments.update import Updater
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.models import GPTConfig
from specdec.models.t5 import T5, T5Cache, T5Config, T5LanguageModel
from specdec.sampling import settings
from specdec.vocabulary import EOS_ID, START_ID, Vocabulary

_ROWS = 32  # a decoding batch


def heldout_losses(
    updater: Updater, params: Any, target_params: Any, *, examples: Examples, buckets: Buckets
) -> Metrics:
    """Means per target token of every loss, by student, in batches of the training's shapes."""
    sums: Metrics = {name: {} for name in updater.configs}
    num_tokens = 0
    for planned in plan_in_order(examples, buckets):
        batch = make_batch(examples, planned, buckets)
        count = int(batch.target_lengths.sum())
        num_tokens += count
        for name, means in updater.evaluate(params, target_params, batch).items():
            for part, mean in means.items():
                sums[name][part] = sums[name].get(part, 0.0) + float(mean) * count
    return {
        name: {part: total / num_tokens for part, total in parts.items()}
        for name, parts in sums.items()
    }


def sample_evenly(examples: Examples, size: int) -> np.ndarray:
    """Indices of `size` examples spread evenly over all."""
    return np.unique(np.linspace(0, len(examples) - 1, min(size, len(examples))).astype(int))


def translation_scores(
    updater: Updater,
    params: Any,
    target: Target | None,
    *,
    examples: Examples,
    indices: Sequence[int],
    vocabulary: Vocabulary,
    max_lengths: tuple[int, int],
) -> Metrics:
    """`quality` of greedy outputs, by student."""
    references = [vocabulary.decode(examples.target(index)) for index in indices]
    scores = {}
    for name, config in updater.configs.items():
        if isinstance(config, GPTConfig):
            continue  # nothing to translate
        outputs = []
        for start in range(0, len(indices), _ROWS):
            batch = _encoder_batch(examples, indices[start : start + _ROWS], max_lengths)
            encoded = _encode(config, params[name], target, batch)
            tokens = greedy(
                params[name],
                encoded,
                batch.input_lengths,
                config=config,
                max_length=max_lengths[1],
                num_ids=updater.num_ids,
            )
            outputs += [vocabulary.decode(row) for row in np.asarray(tokens)]
        scores[name] = quality(outputs[: len(indices)], references)
    return scores


def _encoder_batch(
    examples: Examples, indices: Sequence[int], max_lengths: tuple[int, int]
) -> Batch:
    """Static shapes [_ROWS, E] and [_ROWS, T], whatever the sentences: a single compile."""
    buckets = Buckets([max_lengths], slots_per_batch=-(-_ROWS * sum(max_lengths) // 2))
    return make_batch(examples, Planned(max_lengths, np.asarray(indices)), buckets)


def _encode(config: T5Config, params: Any, target: Target | None, batch: Batch) -> jax.Array:
    if config.num_encoder_layers == 0:
        config, params = target
    return _jitted_encode(params, batch.inputs, batch.input_lengths, config=config)


@functools.partial(jax.jit, static_argnames="config")
def _jitted_encode(params, inputs, lengths, *, config):
    return T5(config).apply({"params": params}, inputs, lengths, method="encode")


class _Encoded(NamedTuple):
    """Encoder output as the inputs of a model: [B, E, D], [B]."""

    encoded: jax.Array
    lengths: jax.Array


@dataclasses.dataclass(frozen=True)
class _OverEncoded(T5LanguageModel):
    """A T5 whose inputs have been encoded, by itself or by the target that it reads."""

    def init_cache(self, params: Any, inputs: _Encoded, cache_length: int) -> T5Cache:
        return self.init_cache_over(params, *inputs, cache_length)


def greedy(
    params: Any,
    encoded: jax.Array,
    encoder_lengths: jax.Array,
    *,
    config: T5Config,
    max_length: int,
    num_ids: int,
) -> jax.Array:
    """Most likely tokens one by one: encoded [B, E, D] -> [B, L]. Rows without input get none."""
    num_rows = encoded.shape[0]
    result = autoregressive_decode(
        params,
        _Encoded(encoded, encoder_lengths),
        jnp.full((num_rows, 1), START_ID),
        jax.random.split(jax.random.key(0), num_rows),  # not used at temperature 0
        model=_OverEncoded(config),
        settings=settings(0),
        config=SpecConfig(max_new_tokens=max_length, eos_id=EOS_ID, num_ids=num_ids),
        limits=jnp.where(jnp.asarray(encoder_lengths) > 0, max_length, 0),
    )
    return result.tokens
