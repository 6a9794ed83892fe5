"""Models small enough to enumerate: a table from prefixes to logits.

Dimensions: B batch, S cache slots, T block, M rows of the table, V vocabulary.

A table model hashes the whole prefix (slots 0..s, each with a weight of its own) to one of M rows
of logits. So a token in the wrong slot, a stale slot or a slot too few changes the law, and the
law over all sequences of a few tokens can be written down exactly.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.buffers import write_at

START = 0
NUM_ROWS = 31
# Odd, and different from slot to slot.
_WEIGHTS = np.random.default_rng(7).integers(0, 1000, 4096) * 2 + 1


class TableInputs(NamedTuple):
    """Stands for a source sentence: [B] int32, shifts the hash of a row's prefixes."""

    salt: jax.Array


class TableCache(NamedTuple):
    tokens: jax.Array  # [B, S]
    salt: jax.Array  # [B]


@dataclasses.dataclass(frozen=True)
class TableModel:
    """A `LanguageModel`; its parameters are the table [M, V] of logits."""

    vocab_size: int

    def init_cache(self, params, inputs, cache_length):
        # -1 is no token: a slot that is read without having been written shows.
        tokens = jnp.full((inputs.salt.shape[0], cache_length), -1)
        return TableCache(tokens, inputs.salt)

    def extend(self, params, cache, tokens, positions):
        written = write_at(cache.tokens, tokens, positions)
        slots = jnp.arange(written.shape[1])
        queries = positions[:, None] + jnp.arange(tokens.shape[1])
        visible = slots <= queries[:, :, None]  # [B, T, S]
        weighted = written * jnp.asarray(_WEIGHTS[: written.shape[1]])
        sums = jnp.where(visible, weighted[:, None], 0).sum(-1)
        rows = (sums + cache.salt[:, None]) % params.shape[0]
        return params[rows], cache._replace(tokens=written)

    def share_encoder(self, params, cache, cache_length):
        return self.init_cache(params, TableInputs(cache.salt), cache_length)


def random_table(
    seed: int, vocab_size: int, scale: float = 1.5, *, num_rows: int = NUM_ROWS
) -> np.ndarray:
    """[M, V] logits."""
    rng = np.random.default_rng(seed)
    return (scale * rng.standard_normal((num_rows, vocab_size))).astype(np.float32)


def constant_table(logits, *, num_rows: int = NUM_ROWS) -> np.ndarray:
    """The same logits whatever the prefix."""
    return np.tile(np.asarray(logits, np.float32), (num_rows, 1))


def logits_after(table: np.ndarray, prefix: tuple[int, ...], salt: int = 0) -> np.ndarray:
    """The table's logits [V] after a prefix (start token included), computed without a cache."""
    code = sum(int(t) * int(w) for t, w in zip(prefix, _WEIGHTS, strict=False)) + salt
    return table[code % len(table)]


def scripted_table(
    script: list[int], vocab_size: int, *, num_rows: int | None = None
) -> np.ndarray:
    """A table that puts all mass on the tokens of a script, one after the other, from START.

    Without `num_rows`, sizes are tried until no two of the script's prefixes share a row.
    """
    for size in [num_rows] if num_rows else range(NUM_ROWS, 5000):
        codes = [
            sum(t * int(w) for t, w in zip((START, *script[:i]), _WEIGHTS, strict=False)) % size
            for i in range(len(script))
        ]
        if len(set(codes)) == len(codes):
            table = np.zeros((size, vocab_size), np.float32)
            for code, token in zip(codes, script, strict=True):
                table[code] = np.where(np.arange(vocab_size) == token, 0.0, -60.0)
            return table
    raise AssertionError("no table without collisions")


def softmax(logits: np.ndarray) -> np.ndarray:
    """In float64."""
    logits = np.asarray(logits, np.float64)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def standardized(logits, *, temperature=1.0, top_k=None, top_p=None) -> np.ndarray:
    """An independent, slow reading of the order: temperature, top-k, top-p; ties to low ids."""
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    probs = softmax(logits / temperature)
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    kept = order[: top_k or len(order)]
    if top_p is not None:
        total, mass, inside = probs[kept].sum(), 0.0, []
        for i in kept:
            if inside and mass / total >= top_p:
                break
            inside.append(i)
            mass += probs[i]
        kept = inside
    out = np.zeros_like(probs)
    out[kept] = probs[kept]
    return out / out.sum()


def enumerate_law(
    table: np.ndarray, num_tokens: int, *, eos_id: int, salt: int = 0, **how
) -> dict[tuple[int, ...], float]:
    """The exact law of plain decoding: every sequence of at most num_tokens -> probability."""
    law: dict[tuple[int, ...], float] = {}
    frontier = {(): 1.0}
    for depth in range(1, num_tokens + 1):
        longer = {}
        for sequence, mass in frontier.items():
            probs = standardized(logits_after(table, (START, *sequence), salt), **how)
            for token in np.flatnonzero(probs):
                extended = (*sequence, int(token))
                is_whole = token == eos_id or depth == num_tokens
                (law if is_whole else longer)[extended] = mass * float(probs[token])
        frontier = longer
    return law


def sequences(tokens: np.ndarray, lengths: np.ndarray) -> list[tuple[int, ...]]:
    """Rows of a decoded batch as tuples."""
    return [tuple(map(int, row[:n])) for row, n in zip(tokens, lengths, strict=True)]


def chi_square_p_value(counts: dict, law: dict[tuple[int, ...], float]) -> float:
    """p-value of observed counts under a law; cells pooled to an expected 5 or more.

    An outcome outside the law's support gives 0.
    """
    if any(outcome not in law for outcome in counts):
        return 0.0
    total = sum(counts.values())
    cells, pooled = [], [0.0, 0.0]
    for outcome, mass in sorted(law.items(), key=lambda item: -item[1]):
        observed, expected = counts.get(outcome, 0), total * mass
        if expected >= 5:
            cells.append([observed, expected])
        else:
            pooled = [pooled[0] + observed, pooled[1] + expected]
    if pooled[1] >= 5:
        cells.append(pooled)
    elif cells:
        cells[-1] = [cells[-1][0] + pooled[0], cells[-1][1] + pooled[1]]
    if len(cells) < 2:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    # The upper tail of chi-square, as a regularised incomplete gamma function.
    return float(jax.scipy.special.gammaincc((len(cells) - 1) / 2, statistic / 2))
