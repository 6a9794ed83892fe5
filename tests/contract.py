"""What every LanguageModel must do, as checks that any model's test file can call.

    logits, cache = model.extend(params, cache, tokens [B, T], positions [B])

overwrites slots positions[b] .. positions[b]+T-1, and query t sees slot s iff s <= positions[b]+t.
All else follows: however a sequence is cut into blocks, and whatever was written and rolled back
before, the logits are those of one full pass.

Dimensions: B batch, T block, L length of the sequences, V vocabulary. Shapes are few and fixed, so
that a model compiles once a block length.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.types import Cache, LanguageModel, Params

CACHE_LENGTH = 64
SEQUENCE_LENGTH = 46  # past T5's exact buckets, and room for a prefix of 40 and 6 more


@partial(jax.jit, static_argnames=("model", "cache_length"))
def init_cache(model: LanguageModel, params: Params, inputs: Any, cache_length: int) -> Cache:
    return model.init_cache(params, inputs, cache_length)


@partial(jax.jit, static_argnames="model")
def extend(model: LanguageModel, params: Params, cache: Cache, tokens, positions):
    return model.extend(params, cache, tokens, positions)


@partial(jax.jit, static_argnames="model")
def first_logits(model: LanguageModel, params: Params, inputs: Any, tokens):
    """Logits [B, T, V] of one block in a cache that holds nothing else."""
    cache = model.init_cache(params, inputs, tokens.shape[1])
    return model.extend(params, cache, tokens, jnp.zeros(tokens.shape[0], jnp.int32))[0]


def random_tokens(model: LanguageModel, batch_size: int, length: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, model.vocab_size, (batch_size, length)).astype(np.int32)


def full_pass(model: LanguageModel, params: Params, inputs: Any, tokens: np.ndarray) -> np.ndarray:
    return np.asarray(first_logits(model, params, inputs, tokens))


def feed(
    model: LanguageModel,
    params: Params,
    cache: Cache,
    tokens: np.ndarray,
    positions: np.ndarray,
    chunks: Sequence[int],
) -> tuple[np.ndarray, Cache]:
    """Feeds tokens [B, sum(chunks)] from positions [B] on, cut into chunks."""
    rows, start = [], 0
    for size in chunks:
        block = tokens[:, start : start + size]
        logits, cache = extend(model, params, cache, block, positions + start)
        rows.append(np.asarray(logits))
        start += size
    return np.concatenate(rows, axis=1), cache


def check_blocks_equal_full_pass(
    model, params, inputs, *, batch_size=3, gamma=4, tolerance=1e-4, full_pass_fn=full_pass
):
    """Full pass == blocks of 1 == blocks of gamma + 1 == a mixture of both.

    `full_pass_fn(model, params, inputs, tokens)` may be another road to the same logits.
    """
    tokens = random_tokens(model, batch_size, SEQUENCE_LENGTH, seed=0)
    expected = full_pass_fn(model, params, inputs, tokens)
    cache = init_cache(model, params, inputs, CACHE_LENGTH)
    whole, rest = divmod(SEQUENCE_LENGTH, gamma + 1)
    for chunks in (
        [1] * SEQUENCE_LENGTH,
        [gamma + 1] * whole + [1] * rest,
        [1, gamma + 1] + [gamma + 1] * (whole - 1) + [1] * (rest - 1),
    ):
        logits, _ = feed(model, params, cache, tokens, _at(0, tokens), chunks)
        _close(logits, expected[:, : logits.shape[1]], tolerance, f"chunks {chunks}")


def check_rolled_back_tokens_leave_no_trace(
    model, params, inputs, *, batch_size=3, gamma=4, tolerance=1e-4
):
    """A block, a roll-back of a few rows' choosing, another block: as if the first never was."""
    tokens = random_tokens(model, batch_size, SEQUENCE_LENGTH, seed=1)
    junk = random_tokens(model, batch_size, SEQUENCE_LENGTH, seed=2)
    expected = full_pass(model, params, inputs, tokens)
    cache = init_cache(model, params, inputs, CACHE_LENGTH)
    positions = _at(0, tokens)
    for seed in range(6):
        block = _take(tokens, positions, gamma + 1)
        accepted = np.random.default_rng(seed).integers(1, gamma + 2, batch_size).astype(np.int32)
        # The first `accepted` tokens of the block are right, the rest are to be rolled back.
        is_right = np.arange(gamma + 1) < accepted[:, None]
        mixed = np.where(is_right, block, junk[:, seed : seed + gamma + 1])
        logits, cache = extend(model, params, cache, mixed, positions)
        wanted = np.where(is_right[:, :, None], _take(expected, positions, gamma + 1), logits)
        _close(logits, wanted, tolerance, f"round {seed} at {positions}")
        positions = positions + accepted
    # Further back than the last block, and on from there one by one.
    positions = np.maximum(positions - 2 * gamma, 0)
    again, _ = feed(model, params, cache, _take(tokens, positions, 6), positions, [1] * 6)
    _close(again, _take(expected, positions, 6), tolerance, "rolled back twice a block")


def check_slots_beyond_the_position_never_leak(
    model,
    params,
    inputs,
    *,
    spoil_fn: Callable[[Cache, np.ndarray, float], Cache],
    batch_size=3,
    gamma=4,
    tolerance=1e-6,
):
    """NaN, infinity and huge values in slots that aren't written yet change nothing.

    `spoil_fn(cache, positions [B], value)` puts the value in all slots at and beyond positions.
    """
    tokens = random_tokens(model, batch_size, SEQUENCE_LENGTH, seed=3)
    empty = init_cache(model, params, inputs, CACHE_LENGTH)
    _, full = feed(model, params, empty, tokens[:, :40], _at(0, tokens), [gamma + 1] * 8)
    start = np.array([9, 40, 0] * batch_size, np.int32)[:batch_size]
    for positions, size in itertools.product((start, start + 7), (1, gamma + 1)):
        block = _take(tokens, np.minimum(positions, 40), size)
        clean, clean_cache = extend(model, params, full, block, positions)
        # One more token: the block has overwritten its own slots, beyond them the value still lies.
        clean_after, _ = extend(model, params, clean_cache, block[:, :1], positions + size)
        for value in (np.nan, np.inf, 1e30, -1e30):
            spoilt = spoil_fn(full, positions, value)
            logits, cache = extend(model, params, spoilt, block, positions)
            _close(logits, clean, tolerance, f"{value} beyond {positions}")
            after, _ = extend(model, params, cache, block[:, :1], positions + size)
            _close(after, clean_after, tolerance, f"{value} beyond {positions}, one token later")


def check_rows_are_independent(model, params, inputs, *, gamma=4, tolerance=1e-5):
    """A batch of 3 rows at ragged positions equals each row alone, whatever the others hold.

    `inputs` has 3 rows along the leading axis of each of its leaves.
    """
    tokens = random_tokens(model, 3, SEQUENCE_LENGTH, seed=4)
    others = random_tokens(model, 3, SEQUENCE_LENGTH, seed=5)
    positions = np.array([3, 17, 40], np.int32)
    sizes = [1, gamma + 1]
    chunks = [gamma + 1] * 8

    def logits_of(inputs, tokens, positions):
        cache = init_cache(model, params, inputs, CACHE_LENGTH)
        _, cache = feed(model, params, cache, tokens[:, :40], _at(0, tokens), chunks)
        after = _take(tokens, positions, sum(sizes))
        return feed(model, params, cache, after, positions, sizes)[0]

    together = logits_of(inputs, tokens, positions)
    for row in range(3):
        one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], inputs)
        alone = logits_of(one, tokens[row : row + 1], positions[row : row + 1])
        _close(together[row : row + 1], alone, tolerance, f"row {row} in a batch and alone")
        is_row = np.arange(3) == row
        mixed_inputs = jax.tree.map(
            lambda leaf, row=row: jnp.roll(leaf, 1, axis=0).at[row].set(leaf[row]), inputs
        )
        mixed = logits_of(
            mixed_inputs,
            np.where(is_row[:, None], tokens, others),
            np.where(is_row, positions, np.array([30, 2, 11], np.int32)),
        )
        _close(mixed[row], together[row], tolerance, f"row {row} beside other rows")


def check_a_token_changes_its_own_and_later_rows_only(
    model, params, inputs, *, batch_size=3, gamma=4, tolerance=1e-6
):
    """B16: row j of a block sees the cache and the block's tokens 0..j, nothing else."""
    tokens = random_tokens(model, batch_size, SEQUENCE_LENGTH, seed=6)
    empty = init_cache(model, params, inputs, CACHE_LENGTH)
    _, full = feed(model, params, empty, tokens[:, :40], _at(0, tokens), [gamma + 1] * 8)
    later = np.array([9, 40, 23] * batch_size, np.int32)[:batch_size]
    for cache, positions in ((empty, _at(0, tokens)), (full, later)):
        block = _take(tokens, positions, gamma + 1)
        logits = np.asarray(extend(model, params, cache, block, positions)[0])
        for j in range(gamma + 1):
            changed = block.copy()
            changed[:, j] = (changed[:, j] + 1) % model.vocab_size
            other = np.asarray(extend(model, params, cache, changed, positions)[0])
            _close(other[:, :j], logits[:, :j], tolerance, f"rows before token {j}")
            moved = np.abs(other[:, j:] - logits[:, j:]).max(axis=-1)
            assert (moved > 10 * tolerance).all(), f"token {j} doesn't reach rows {j}..: {moved}"


def check_every_chunking_agrees(model, params, inputs, *, tolerance=1e-4):
    """B15: all 2^5 ways to cut 6 tokens, after prefixes of 9, 40 and 23 in one batch of 3."""
    tokens = random_tokens(model, 3, SEQUENCE_LENGTH, seed=7)
    prefixes = np.array([9, 40, 23], np.int32)
    expected = _take(full_pass(model, params, inputs, tokens), prefixes, 6)
    cache = init_cache(model, params, inputs, CACHE_LENGTH)
    _, cache = feed(model, params, cache, tokens[:, :40], _at(0, tokens), [5] * 8)
    after = _take(tokens, prefixes, 6)
    for cuts in itertools.product((False, True), repeat=5):
        edges = [0, *(i + 1 for i, is_cut in enumerate(cuts) if is_cut), 6]
        chunks = np.diff(edges).tolist()
        logits, _ = feed(model, params, cache, after, prefixes, chunks)
        _close(logits, expected, tolerance, f"chunks {chunks}")


def check_inputs_are_equivalent(model, params, variants: Sequence[Any], *, tolerance=1e-5):
    """B19: the same request in other padding gives the same logits (variants of one batch size)."""
    batch_size = len(jax.tree.leaves(variants[0])[0])
    tokens = random_tokens(model, batch_size, 6, seed=8)
    expected = None
    for number, inputs in enumerate(variants):
        logits = full_pass(model, params, inputs, tokens)
        expected = logits if expected is None else expected
        _close(logits, expected, tolerance, f"variant {number} of the inputs")


def all_checks(spoil_fn: Callable[[Cache, np.ndarray, float], Cache]) -> dict[str, Callable]:
    """By name, those that need no more than (model, params, inputs of 3 rows)."""
    return {
        "blocks": check_blocks_equal_full_pass,
        "roll-back": check_rolled_back_tokens_leave_no_trace,
        "beyond": partial(check_slots_beyond_the_position_never_leak, spoil_fn=spoil_fn),
        "rows": check_rows_are_independent,
        "causality": check_a_token_changes_its_own_and_later_rows_only,
        "chunking": check_every_chunking_agrees,
    }


def _at(position: int, tokens: np.ndarray) -> np.ndarray:
    return np.full(tokens.shape[0], position, np.int32)


def _take(rows: np.ndarray, positions: np.ndarray, length: int) -> np.ndarray:
    """rows[b, positions[b] : positions[b] + length], [B, length, ...]."""
    return np.stack([row[n : n + length] for row, n in zip(rows, positions, strict=True)])


def _close(actual: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Within an absolute tolerance; NaN and infinity are never close."""
    difference = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
    worst = difference.max(initial=0.0)
    assert worst <= tolerance, f"{what}: logits differ by {worst:.3g}, more than {tolerance}"
