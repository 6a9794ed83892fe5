"""Rounding or bug: why a greedy output differs from plain decoding's.

At temperature 0 speculative decoding emits plain decoding's tokens. But a pass over gamma + 1
tokens adds up in another order than a pass over one, so two tokens whose logits all but tie may
come out the other way round. At the first difference, the logits of a full uncached pass decide:
if the two tokens are the top two and lie within `TIE`, it is a tie; anything else is a bug.
After a tie the outputs go separate ways, so later differences say nothing.

Dimensions: B batch, P prompt length, N max_new_tokens, V vocabulary.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.generation import Decoded
from specdec.types import LanguageModel, Params

# Largest gap between two logits that rounding may turn over, by dtype of the activations: float32
# passes of different block sizes differ by about 1e-5; bfloat16 keeps 8 bits of logits of order 10.
TIE = {"float32": 1e-4, "bfloat16": 0.25}


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference of a row.

    Attributes:
      row, slot: where; slot counts new tokens from 0.
      plain, other: the two tokens, None where an output had ended.
      gap: top logit minus the logit of the other token in a full uncached pass over the shared
        prefix; infinite where an output had ended or has an id that doesn't exist.
      is_tie: whether rounding explains it.
    """

    row: int
    slot: int
    plain: int | None
    other: int | None
    gap: float
    is_tie: bool


@partial(jax.jit, static_argnames="model")
def full_pass(params: Params, inputs: Any, tokens: jax.Array, *, model: LanguageModel) -> jax.Array:
    """Logits [B, T, V] of one uncached pass over tokens [B, T]."""
    cache = model.init_cache(params, inputs, tokens.shape[1])
    return model.extend(params, cache, tokens, jnp.zeros(tokens.shape[0], jnp.int32))[0]


def differences(
    plain: Decoded,
    other: Decoded,
    params: Params,
    inputs: Any,
    prompt: jax.Array,
    *,
    model: LanguageModel,
    num_ids: int | None = None,
    tie: float = TIE["float32"],
) -> list[Difference]:
    """First differences of two greedy results for the same requests, [] if there are none.

    Args:
      plain, other: results of the target alone and of another loop.
      params, model: of the target.
      inputs, prompt: of the requests, [B, P].
      num_ids: ids that exist.
      tie: largest gap of logits that counts as rounding.
    """
    plain, other = jax.device_get(plain), jax.device_get(other)
    found = []
    for row in range(len(plain.lengths)):
        a = plain.tokens[row, : plain.lengths[row]].tolist()
        b = other.tokens[row, : other.lengths[row]].tolist()
        if a == b:
            continue
        shared = min(len(a), len(b))
        slot = next((i for i in range(shared) if a[i] != b[i]), shared)
        one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], inputs)
        tokens = jnp.concatenate([prompt[row : row + 1], plain.tokens[row : row + 1]], axis=1)
        logits = full_pass(params, one, tokens, model=model)[0, prompt.shape[1] - 1 + slot]
        found.append(_judge(row, slot, a, b, np.asarray(logits)[:num_ids], tie))
    return found


def _judge(row: int, slot: int, a: list, b: list, logits: np.ndarray, tie: float) -> Difference:
    tokens = tuple(tokens[slot] if slot < len(tokens) else None for tokens in (a, b))
    # An output that goes on where the other ended, or an id that doesn't exist, is no rounding.
    if None in tokens or max(tokens) >= logits.size:
        return Difference(row, slot, *tokens, gap=float("inf"), is_tie=False)
    gap = float(logits.max() - min(logits[token] for token in tokens))
    return Difference(row, slot, *tokens, gap=gap, is_tie=gap <= tie)
