"""Batches of few static shapes, in an order that follows from seed and step number alone.

Dimensions: B batch, E encoder length, T decoder length.

A pair goes to the smallest bucket that holds both of its sides. Every bucket has its own batch
size, so that all batches cost about the same; the last batch of a bucket is filled up with empty
rows (length 0), so no pair is left out.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.data import Examples
from specdec.vocabulary import PAD_ID, START_ID


class Batch(NamedTuple):
    """Attributes: what lies at and beyond a row's length has no meaning.

    inputs: [B, E] int32 encoder ids.
    input_lengths: [B] int32, 0 for an empty row.
    decoder_inputs: [B, T] int32, the targets shifted right behind the start id.
    targets: [B, T] int32.
    target_lengths: [B] int32, 0 for an empty row.
    """

    inputs: np.ndarray
    input_lengths: np.ndarray
    decoder_inputs: np.ndarray
    targets: np.ndarray
    target_lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The static shapes; each costs a compile.

    Attributes:
      lengths: of both sides, or pairs of an encoder's and a decoder's; E + T ascends. The last
        bucket holds the longest pair there may be.
      slots_per_batch: of a batch, padding included, the mean of both sides; a bucket's batch size
        is this over the mean of its lengths.

    Example: lengths (16, (96, 24), 64) are batches of [16, 16], [96, 24] and [64, 64]; the last
    one is refused, because it holds no input of 96.
    """

    lengths: Sequence[int | tuple[int, int]] = (16, 24, 40, 64, 96)
    slots_per_batch: int = 3072

    def __post_init__(self):
        object.__setattr__(self, "lengths", tuple(self.lengths))
        sums = [sum(shape) for shape in self.shapes]
        if not sums or sums != sorted(set(sums)) or min(map(min, self.shapes)) < 2:
            raise ValueError(f"bucket lengths {self.lengths}: must ascend, from 2 or more")
        if self.max_lengths != tuple(map(max, zip(*self.shapes, strict=True))):
            raise ValueError(
                f"bucket lengths {self.lengths}: the last one must be the longest on both sides"
            )
        if not self.batch_size(self.max_lengths):
            raise ValueError(
                f"slots_per_batch={self.slots_per_batch} holds no row of the longest bucket, "
                f"{self.lengths[-1]}: raise it or shorten the buckets"
            )

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(E, T) of every bucket."""
        return tuple((one, one) if isinstance(one, int) else tuple(one) for one in self.lengths)

    @property
    def max_lengths(self) -> tuple[int, int]:
        """(E, T) of the longest pair."""
        return self.shapes[-1]

    def batch_size(self, shape: tuple[int, int]) -> int:
        return 2 * self.slots_per_batch // sum(shape)


class Planned(NamedTuple):
    """A batch to be: its bucket's (E, T), and the examples [<= B] that fill it."""

    shape: tuple[int, int]
    indices: np.ndarray


def plan_epoch(
    examples: Examples, weights: Sequence[float], buckets: Buckets, *, seed: int, epoch: int
) -> list[Planned]:
    """The batches of an epoch, in order.

    Args:
      examples: all of them.
      weights: passes per epoch, one a task.
      buckets: the shapes.
      seed, epoch: all that the order depends on.
    """
    rng = np.random.default_rng([seed, epoch])
    chosen = rng.permutation(_select(examples, weights, seed=seed, epoch=epoch))
    planned = _fill(examples, chosen, buckets)
    return [planned[index] for index in rng.permutation(len(planned))]


def plan_in_order(examples: Examples, buckets: Buckets) -> list[Planned]:
    """Every example once, for evaluation."""
    return _fill(examples, np.arange(len(examples)), buckets)


def _select(examples: Examples, weights: Sequence[float], *, seed: int, epoch: int) -> np.ndarray:
    """Indices of the epoch's examples; one that is due twice stands there twice.

    Example r of n in a task (in a fixed random order) is due whenever epoch * weight + r / n
    passes a whole number: over the epochs each gets its `weight` passes, evenly spread.
    """
    rng = np.random.default_rng([seed])
    num_due = np.zeros(len(examples), np.int64)
    for task_id, weight in enumerate(weights):
        members = np.flatnonzero(examples.task_ids == task_id)
        phase = rng.permutation(len(members)) / max(len(members), 1)
        num_due[members] = np.floor((epoch + 1) * weight + phase) - np.floor(epoch * weight + phase)
    return np.repeat(np.arange(len(examples)), num_due)


def _fill(examples: Examples, chosen: np.ndarray, buckets: Buckets) -> list[Planned]:
    sides = np.stack([examples.input_lengths, examples.target_lengths], axis=-1)[chosen]
    fits = (sides[:, None] <= np.array(buckets.shapes)).all(axis=-1)
    bucket_ids = np.argmax(fits, axis=-1)  # the first one
    planned = []
    for bucket_id, shape in enumerate(buckets.shapes):
        members = chosen[bucket_ids == bucket_id]
        size = buckets.batch_size(shape)
        starts = range(0, len(members), size)
        planned += [Planned(shape, members[start : start + size]) for start in starts]
    return planned


def make_batch(examples: Examples, planned: Planned, buckets: Buckets) -> Batch:
    """The arrays of a planned batch."""
    size = buckets.batch_size(planned.shape)
    inputs, targets = (np.full((size, length), PAD_ID, np.int32) for length in planned.shape)
    input_lengths, target_lengths = np.zeros((2, size), np.int32)
    for row, index in enumerate(planned.indices):
        source, target = examples.input(index), examples.target(index)
        inputs[row, : len(source)] = source
        targets[row, : len(target)] = target
        input_lengths[row], target_lengths[row] = len(source), len(target)
    start = np.full((size, 1), START_ID, np.int32)
    decoder_inputs = np.concatenate([start, targets[:, :-1]], axis=1)
    return Batch(inputs, input_lengths, decoder_inputs, targets, target_lengths)


class BatchSource:
    """The planned training batches by step number."""

    def __init__(
        self, examples: Examples, weights: Sequence[float], buckets: Buckets, *, seed: int
    ):
        self._examples = examples
        self._weights = tuple(weights)
        self._buckets = buckets
        self._seed = seed
        self._first_steps = [0]  # of each epoch planned so far, and of the one after
        self._epoch, self._plan = -1, []

    def planned_at(self, step: int) -> Planned:
        epoch, index = self.locate(step)
        self._load(epoch)
        return self._plan[index]

    def locate(self, step: int) -> tuple[int, int]:
        """Epoch of a step, and the batch's index in it. Epochs may differ in length."""
        while self._first_steps[-1] <= step:
            self._load(len(self._first_steps) - 1)
            if not self._plan:
                # Weights so small that an epoch is empty would loop for ever.
                raise ValueError(
                    f"epoch {self._epoch} is empty with weights {self._weights}: raise them"
                )
            self._first_steps.append(self._first_steps[-1] + len(self._plan))
        epoch = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return epoch, step - self._first_steps[epoch]

    def _load(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._plan = plan_epoch(
                self._examples, self._weights, self._buckets, seed=self._seed, epoch=epoch
            )
            self._epoch = epoch
