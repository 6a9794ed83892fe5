"""Batches of few static shapes, in an order that follows from seed and step number alone.

Dimensions: B batch, E encoder length, T decoder length; E = T = the bucket's length.

A pair goes to the shortest bucket that holds both of its sides. Every bucket has its own batch
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
      lengths: ascending; the last one is the longest side a pair may have.
      slots_per_batch: target slots of a batch, padding included; a bucket's batch size is this
        over its length.
    """

    lengths: Sequence[int] = (16, 24, 40, 64, 96)
    slots_per_batch: int = 3072

    def __post_init__(self):
        object.__setattr__(self, "lengths", tuple(self.lengths))
        is_ascending = list(self.lengths) == sorted(set(self.lengths))
        if not self.lengths or not is_ascending or self.lengths[0] < 2:
            raise ValueError(f"bucket lengths {self.lengths}: must ascend, from 2 or more")
        if self.slots_per_batch < self.max_length:
            raise ValueError(
                f"slots_per_batch={self.slots_per_batch} holds no row of the longest bucket, "
                f"{self.max_length}: raise it or shorten the buckets"
            )

    @property
    def max_length(self) -> int:
        return self.lengths[-1]

    def batch_size(self, length: int) -> int:
        return self.slots_per_batch // length


class Planned(NamedTuple):
    """A batch to be: its bucket's length, and the examples [<= B] that fill it."""

    length: int
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
    longest_side = np.maximum(examples.input_lengths, examples.target_lengths)[chosen]
    bucket_ids = np.searchsorted(buckets.lengths, longest_side)
    planned = []
    for bucket_id, length in enumerate(buckets.lengths):
        members = chosen[bucket_ids == bucket_id]
        size = buckets.batch_size(length)
        starts = range(0, len(members), size)
        planned += [Planned(length, members[start : start + size]) for start in starts]
    return planned


def make_batch(examples: Examples, planned: Planned, buckets: Buckets) -> Batch:
    """The arrays of a planned batch."""
    shape = (buckets.batch_size(planned.length), planned.length)
    inputs = np.full(shape, PAD_ID, np.int32)
    targets = np.full(shape, PAD_ID, np.int32)
    input_lengths, target_lengths = np.zeros((2, shape[0]), np.int32)
    for row, index in enumerate(planned.indices):
        source, target = examples.input(index), examples.target(index)
        inputs[row, : len(source)] = source
        targets[row, : len(target)] = target
        input_lengths[row], target_lengths[row] = len(source), len(target)
    start = np.full((shape[0], 1), START_ID, np.int32)
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
