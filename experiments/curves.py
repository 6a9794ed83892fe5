"""What the curves of finished training runs say: tokens trained on, held-out losses."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.run_state import read_curve


class Point(NamedTuple):
    """A held-out report.

    Attributes:
      step: how many steps had been taken.
      num_tokens: target tokens trained on by then; NaN if the run did not count them.
      losses: by name, see `losses.LossWeights`.
    """

    step: int
    num_tokens: float
    losses: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Finished:
    """One student of a training run.

    Attributes:
      run, student: names.
      num_steps, num_tokens: of the whole run.
      points: held-out reports in order.
    """

    run: str
    student: str
    num_steps: int
    num_tokens: float
    points: tuple[Point, ...]

    @property
    def label(self) -> str:
        """The student, and which run it was in unless that is called the same."""
        return self.student if self.student == self.run else f"{self.student}, {self.run}"


def read_runs(folders: Mapping[str, str | os.PathLike]) -> list[Finished]:
    """Every student of every run, by the runs' names.

    Raises:
      ValueError: for a folder without a curve.
    """
    return [student for name, folder in folders.items() for student in _read_run(name, folder)]


def _read_run(name: str, folder: str | os.PathLike) -> Iterable[Finished]:
    rows = read_curve(folder)
    train = [row for row in rows if row["kind"] == "train"]
    heldout = [row for row in rows if row["kind"] == "heldout"]
    if not train or not heldout:
        raise ValueError(
            f"no learning curve with held-out reports in {str(folder)!r} for the run {name!r}: "
            "give a training's output folder"
        )
    num_steps = train[-1]["step"]
    tokens = tokens_at(train, [row["step"] for row in heldout])
    for student in [key for key, value in heldout[-1].items() if isinstance(value, dict)]:
        points = [
            Point(row["step"], float(num), row[student])
            for row, num in zip(heldout, tokens, strict=True)
        ]
        num_tokens = float(tokens_at(train, [num_steps])[0])
        yield Finished(name, student, num_steps, num_tokens, tuple(points))


def tokens_at(train_rows: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> np.ndarray:
    """Target tokens trained on by given steps [N] -> [N], from the curve's "train" rows in order.

    A row stands for the steps since the one before. Rows without a count get the others' mean;
    where none has one, the result is NaN.

    Example: rows at steps 20 and 40 with 100 and 300 tokens a step -> 2000 at step 20, 5000 at 30.
    """
    ends = np.array([row["step"] for row in train_rows], float)
    counts = np.array([row.get("tokens_per_step", np.nan) for row in train_rows], float)
    if np.isnan(counts).all():
        return np.full(len(steps), np.nan)
    counts = np.where(np.isnan(counts), np.nanmean(counts), counts)
    totals = np.cumsum(counts * np.diff(ends, prepend=0))
    return np.interp(steps, [0, *ends], [0, *totals])
