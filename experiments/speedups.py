"""A picture of comparisons over gamma: measured points over the theory's curves."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import pictures
from specdec import theory


def figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Speed-up over gamma, a panel a temperature, a colour a draft.

    Points are measured, bars their 95 % intervals. A draft's curves are Theorem 3.8 at the medians
    of its alpha and c: solid as it stands, with r = 1; dotted with the r measured at each gamma.

    Args:
      rows: records of `compare`, one or more a temperature and draft.

    Raises:
      ValueError: for no rows.
    """
    temperatures = sorted({row["temperature"] for row in rows})
    if not temperatures:
        raise ValueError("no records of comparisons to draw: run the sweep first")
    picture, panels = pictures.panels([f"T = {temperature:g}" for temperature in temperatures])
    for axes, temperature in zip(panels, temperatures, strict=True):
        drafts: dict[str, list] = {}
        for row in sorted(rows, key=lambda row: row["gamma"]):
            if row["temperature"] == temperature:
                drafts.setdefault(row["draft"], []).append(row)
        for number, (draft, points) in enumerate(sorted(drafts.items())):
            _draw(axes, pathlib.Path(draft).name, points, f"C{number}")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xlabel="gamma", ylabel="times as fast as plain decoding")
        axes.set_ylim(bottom=min(0.6, axes.get_ylim()[0]))  # room for the legend below 1
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    return picture


def _draw(axes: Any, name: str, points: Sequence[Mapping[str, Any]], color: str) -> None:
    column = lambda key: np.array([row[key] for row in points])
    gammas, speeds = column("gamma"), column("speedup")
    alpha, c = float(np.median(column("alpha"))), max(float(np.median(column("c"))), 0.0)
    bars = np.abs([speeds - column("speedup_low"), column("speedup_high") - speeds])
    label = f"{name}: alpha {alpha:.2f}, c {c:.2f}"
    axes.errorbar(gammas, speeds, bars, color=color, fmt="o", capsize=3, label=label)
    curve = np.arange(1, gammas.max() + 1)
    axes.plot(curve, theory.walltime_factor(alpha, curve, c), color=color, alpha=0.6)
    dotted = theory.walltime_factor(alpha, gammas, c, column("verify_cost"))
    axes.plot(gammas, dotted, color=color, alpha=0.6, linestyle=":")


def draw(rows: Sequence[Mapping[str, Any]], output_dir: str) -> None:
    """speedups.png and .svg in a folder."""
    pictures.save(figure(rows), pathlib.Path(output_dir) / "speedups", (".png", ".svg"))
