"""Drafting from counted tables: the bigram of section 3.6 (arXiv 2211.17192), and the unigram.

Dimensions: B batch, T block length, G gamma, V vocabulary.

A table is counted on text once, smoothed, and handed to the drafter as its parameters: logits that
go through `sampling.standardize` like any other draft's. Looking a row up costs next to nothing, so
any alpha above 0 is a gain.

Smoothing interpolates three laws, w being the token before x:

    unigram  u(x)     = (1 - FLOOR) c(x) / N + FLOOR / V          N tokens in all, FLOOR = 0.01
    bigram   q(x | w) = (c(w, x) + PRIOR u(x)) / (c(w) + PRIOR)   PRIOR = 8

so the unigram weighs PRIOR / (c(w) + PRIOR): everything after a token that was never seen, next to
nothing after a common one. q is above 0 everywhere.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.drafters.model import ModelDrafter
from specdec.types import Context, Proposal

FLOOR = 0.01
PRIOR = 8.0


@dataclasses.dataclass(frozen=True)
class BigramDrafter:
    """The law of a token given the one before it; parameters: `bigram_logits` [V, V]."""

    vocab_size: int

    @property
    def model(self) -> "BigramModel":
        return BigramModel(self.vocab_size)

    def init(self, params, inputs, prompt, target_cache, *, cache_length: int) -> tuple:
        """No state: the context holds all that a table asks for."""
        del params, inputs, prompt, target_cache, cache_length
        return ()

    def propose(
        self, params, state, context: Context, keys: jax.Array, *, settings: Any, config: Any
    ) -> tuple[Proposal, tuple]:
        """gamma tokens, drawn as a model's are; a look-up is no run of a model."""
        proposal, state = ModelDrafter(self.model).propose(
            params, state, context, keys, settings=settings, config=config
        )
        return proposal._replace(num_calls=jnp.zeros_like(context.lengths)), state


@dataclasses.dataclass(frozen=True)
class UnigramDrafter(BigramDrafter):
    """The same law at every position; parameters: `unigram_logits` [V]."""

    @property
    def model(self) -> "UnigramModel":
        return UnigramModel(self.vocab_size)


@dataclasses.dataclass(frozen=True)
class BigramModel:
    """A `LanguageModel` that looks up the row of the last token. Its cache is empty."""

    vocab_size: int

    def init_cache(self, params, inputs, cache_length: int) -> tuple:
        del params, inputs, cache_length
        return ()

    def extend(self, params, cache, tokens: jax.Array, positions) -> tuple[jax.Array, tuple]:
        """tokens [B, T] -> logits [B, T, V]."""
        del positions
        return params[tokens], cache


@dataclasses.dataclass(frozen=True)
class UnigramModel(BigramModel):
    """A `LanguageModel` with one row of logits."""

    def extend(self, params, cache, tokens: jax.Array, positions) -> tuple[jax.Array, tuple]:
        """tokens [B, T] -> logits [B, T, V]."""
        del positions
        return jnp.broadcast_to(params, (*tokens.shape, self.vocab_size)), cache


def count_bigrams(rows: Iterable[Sequence[int]], num_ids: int, *, start_id: int = 0) -> np.ndarray:
    """How often x follows w: counts [V, V] float32, V = num_ids.

    Example: rows [[2, 2, 1]], 3 ids -> counts[0, 2] = counts[2, 2] = counts[2, 1] = 1: the first
    token follows the start id.

    Args:
      rows: token ids, each row with its end-of-sequence id.
      num_ids: ids that exist.
      start_id: what the decoder starts from, T5's is 0.

    Raises:
      ValueError: for no tokens, or an id outside 0..num_ids-1.
    """
    rows = [np.asarray(row, np.int64) for row in rows]
    if not sum(map(len, rows)):
        raise ValueError("no tokens to count bigrams of: give text")
    following = np.concatenate(rows)
    leading = np.concatenate([np.append(start_id, row[:-1]) for row in rows if len(row)])
    if following.min() < 0 or following.max() >= num_ids:
        raise ValueError(
            f"ids {following.min()}..{following.max()} are not all in 0..{num_ids - 1}: count with "
            "the vocabulary that the text was tokenised with"
        )
    cells, counts = np.unique(leading * num_ids + following, return_counts=True)
    table = np.zeros((num_ids, num_ids), np.float32)
    table.ravel()[cells] = counts
    return table


def unigram_logits(counts: np.ndarray) -> np.ndarray:
    """log u [V] of bigram counts [V, V]: see the module's docstring.

    Example: x follows something 3, 1, 0 times -> u = .99 [3/4, 1/4, 0] + .01 / 3.
    """
    return np.log(_unigram(counts)).astype(np.float32)


def bigram_logits(counts: np.ndarray) -> np.ndarray:
    """log q [V, V] of bigram counts [V, V]; row w is the law after w. See the module's docstring.

    Example: c(w, .) = [6, 2, 0], u = [.5, .25, .25] -> q(. | w) = [10, 4, 2] / 16.
    """
    # In place: a table of 8,000 ids takes 256 MB.
    table = counts + np.float32(PRIOR) * _unigram(counts).astype(np.float32)
    table /= counts.sum(1, keepdims=True) + np.float32(PRIOR)
    return np.log(table, out=table)


def _unigram(counts: np.ndarray) -> np.ndarray:
    totals = counts.sum(0, dtype=np.float64)
    return (1 - FLOOR) * totals / totals.sum() + FLOOR / len(totals)
