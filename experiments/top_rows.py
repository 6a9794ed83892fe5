"""The target's most likely ids at every position of a corpus, computed once and kept on disk.

Dimensions: N kept ids, B batch, T decoder length, K real ids.

Worth it where a corpus is passed over several times, or by several trainings; a step then runs
no more of the target than its students read. The mass beyond the N ids is one event of its own,
"any other id", with its exact probability, so the losses compare two laws over N + 1 events
(`losses.forward_kl` and `losses.total_variation` apply as they are). By merging events both can
only fall: they are lower bounds of the full losses, tight where the N ids hold most of the mass.
"""

import json
import logging
import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.batching import Buckets, Planned, make_batch, plan_in_order
from experiments.data import Examples
from experiments.distill import Target, view_target

logger = logging.getLogger(__name__)
_FLOOR = 1e-9  # of "any other id": rounding can leave it at 0, whose log is no gradient
_SECONDS_BETWEEN_SAVES = 120


class TopRows(NamedTuple):
    """Rows of a batch: ids [B, T, N] int32, log_probs [B, T, N] float32 of the target."""

    ids: np.ndarray
    log_probs: np.ndarray


def merged_log_probs(rows: TopRows, log_q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both laws over the N ids and "any other": log_q [B, T, K] -> log_p, log_q [B, T, N + 1].

    Example: p = [.5, .3, .2], N = 1, q = [.4, .4, .2] -> p [.5, .5], q [.4, .6].
    """
    return _with_rest(rows.log_probs), _with_rest(jnp.take_along_axis(log_q, rows.ids, axis=-1))


def _with_rest(log_probs: jax.Array) -> jax.Array:
    rest = jnp.log(jnp.maximum(1.0 - jnp.sum(jnp.exp(log_probs), axis=-1), _FLOOR))
    return jnp.concatenate([log_probs, rest[..., None]], axis=-1)


class TopRowStore:
    """Two files with a line for each target token of the examples, in their order.

    Attributes:
      size: N.
    """

    def __init__(self, folder: str, num_tokens: int, size: int):
        self.size = size
        self._folder = pathlib.Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ids = self._open("ids.npy", num_tokens, np.uint16)
        self._log_probs = self._open("log_probs.npy", num_tokens, np.float16)

    def _open(self, name: str, num_tokens: int, dtype) -> np.ndarray:
        path = self._folder / name
        if path.is_file():
            return np.lib.format.open_memmap(path, mode="r+")
        shape = (num_tokens, self.size)
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    @property
    def num_batches_done(self) -> int:
        """Of the batches of `plan_in_order`; a killed pass goes on from there."""
        path = self._folder / "done.json"
        return json.loads(path.read_text()) if path.is_file() else 0

    def fill(self, target: Target, examples: Examples, buckets: Buckets, *, num_ids: int) -> None:
        """Runs the target over whatever is not stored yet."""
        top_rows = jax.jit(_compute, static_argnames=("config", "num_ids", "size"))
        planned = plan_in_order(examples, buckets)
        saved_at = time.monotonic()
        for done in range(self.num_batches_done, len(planned)):
            batch = make_batch(examples, planned[done], buckets)
            rows = top_rows(
                target.params, batch, config=target.config, num_ids=num_ids, size=self.size
            )
            self._put(examples, planned[done], TopRows(*map(np.asarray, rows)))
            is_last = done + 1 == len(planned)
            if is_last or time.monotonic() - saved_at > _SECONDS_BETWEEN_SAVES:
                self._mark_done(done + 1)
                saved_at = time.monotonic()
                logger.info("target's top rows: %d of %d batches", done + 1, len(planned))

    def _put(self, examples: Examples, planned: Planned, rows: TopRows) -> None:
        for row, index in enumerate(planned.indices):
            span = slice(examples.target_starts[index], examples.target_starts[index + 1])
            length = span.stop - span.start
            self._ids[span] = rows.ids[row, :length]
            self._log_probs[span] = rows.log_probs[row, :length]

    def _mark_done(self, num_batches: int) -> None:
        self._ids.flush()
        self._log_probs.flush()
        temporary = self._folder / "done.tmp"
        temporary.write_text(json.dumps(num_batches))
        temporary.replace(self._folder / "done.json")

    def rows(self, examples: Examples, planned: Planned, buckets: Buckets) -> TopRows:
        """The stored rows of a planned batch."""
        shape = (buckets.batch_size(planned.shape), planned.shape[1], self.size)
        ids = np.zeros(shape, np.int32)
        # Empty slots hold a proper law, too: NaN there would spoil gradients through the mask.
        log_probs = np.full(shape, -np.log(self.size + 1), np.float32)
        for row, index in enumerate(planned.indices):
            span = slice(examples.target_starts[index], examples.target_starts[index + 1])
            ids[row, : span.stop - span.start] = self._ids[span]
            log_probs[row, : span.stop - span.start] = self._log_probs[span]
        return TopRows(ids, log_probs)


def _compute(params, batch, *, config, num_ids, size) -> TopRows:
    view = view_target(config, params, batch, num_ids=num_ids, with_logits=True)
    log_probs, ids = jax.lax.top_k(view.log_p, size)
    return TopRows(ids, log_probs)
