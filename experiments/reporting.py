"""What a training run says of itself: progress lines, the learning curve, scores."""

import dataclasses
import logging
import time
from typing import Any

import jax
import numpy as np

from experiments.run_state import Curve

logger = logging.getLogger(__name__)

# By student, then by the name of the metric.
Metrics = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Reports:
    """When to say what. In steps, except for checkpoints; 0 = never.

    Attributes:
      progress_every: the progress line, and a row of the curve.
      heldout_every: held-out loss.
      scores_every: BLEU and chrF of `num_scored` held-out sentences, decoded greedily.
      checkpoint_minutes: of wall-clock time between checkpoints; at most these are lost.
    """

    progress_every: int = 20
    heldout_every: int = 200
    scores_every: int = 600
    num_scored: int = 96
    checkpoint_minutes: float = 4.0

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 0:
                raise ValueError(f"{name}={value}: must be 0 (never) or more")


def is_due(step: int, every: int, steps: int) -> bool:
    """Whether a report that is wanted every so many steps, and at the end, is due now."""
    return every > 0 and (step % every == 0 or step == steps)


class Meter:
    """Means of the metrics per target token, and speed, since it was made or last read."""

    def __init__(self):
        self._reset()

    def add(self, metrics: Metrics, num_tokens: int) -> None:
        """Counts a step; waits for its metrics, which is what makes the time the step's."""
        self._rows.append((num_tokens, jax.device_get(metrics)))
        now = time.monotonic()
        self._seconds += now - self._started
        self._started = now

    def skip(self) -> None:
        """Leaves the time since the last step out: it went to a report, not to training."""
        self._started = time.monotonic()

    def read(self) -> tuple[Metrics, float, float]:
        """Means by student and metric, tokens per second, seconds per step; then starts anew."""
        counts = np.array([count for count, _ in self._rows], float)
        means = {
            name: {
                key: float(np.average([row[name][key] for _, row in self._rows], weights=counts))
                for key in metrics
            }
            for name, metrics in self._rows[0][1].items()
        }
        speed = float(counts.sum() / self._seconds), self._seconds / len(self._rows)
        self._reset()
        return means, *speed

    def _reset(self) -> None:
        self._rows: list[tuple[int, Metrics]] = []
        self._seconds = 0.0
        self._started = time.monotonic()


def report_progress(curve: Curve, meter: Meter, *, step: int, steps: int, epoch: int) -> None:
    """A line and a row on the steps since the last report."""
    means, tokens_per_s, seconds_per_step = meter.read()
    row = {
        "epoch": epoch,
        "tokens_per_s": round(tokens_per_s),
        # A mean, so that a row also stands for steps that a kill took from the curve.
        "tokens_per_step": round(tokens_per_s * seconds_per_step),
    }
    curve.append(kind="train", step=step, **row, **_rounded(means))
    minutes = (steps - step) * seconds_per_step / 60
    logger.info(
        "step %d/%d  epoch %d  %s  %.0f tokens/s  %.0f min left",
        step,
        steps,
        epoch,
        _in_words(means),
        tokens_per_s,
        minutes,
    )


def report_heldout(curve: Curve, kind: str, values: Metrics, *, step: int) -> None:
    """A line and a row on held-out text; `kind` is "heldout" (losses) or "scores"."""
    curve.append(kind=kind, step=step, **_rounded(values))
    logger.info("step %d  %s: %s", step, kind, _in_words(values))


def _rounded(values: Metrics) -> Metrics:
    return {
        name: {key: round(float(value), 4) for key, value in metrics.items()}
        for name, metrics in values.items()
    }


def _in_words(values: Metrics) -> str:
    return "; ".join(
        f"{name} " + " ".join(f"{key} {value:.3f}" for key, value in metrics.items())
        for name, metrics in values.items()
    )
