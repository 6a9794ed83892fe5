"""Are acceptances independent? A picture of how many drafts rounds accept, over what that would be.

The paper takes betas for independent and alike (section 3.1); the accepted drafts of a round are
then a geometric variable, capped at gamma.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import pictures
from specdec import theory


def figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Shares of rounds over accepted drafts: a panel a task and temperature, a colour a draft.

    Points are measured, lines the capped geometric law at the alpha_accepted of the same rounds.
    Rounds that their row's end cut short are among them.

    Args:
      rows: records with accept_counts, gamma, alpha_accepted, task, draft, temperature.

    Raises:
      ValueError: for no rows.
    """
    keys = sorted({(row["temperature"], row["task"]) for row in rows})
    if not keys:
        raise ValueError("no records to draw: measure alpha first")
    titles = [f"{task}, T = {temperature:g}" for temperature, task in keys]
    picture, panels = pictures.panels(titles, size=(3.4, 3.2), num_columns=5)
    for axes, key in zip(panels, keys, strict=True):
        drawn = [row for row in rows if (row["temperature"], row["task"]) == key]
        for number, row in enumerate(drawn):
            accepted = np.arange(row["gamma"] + 1)
            counts = np.zeros(row["gamma"] + 1)
            counts[: len(row["accept_counts"])] = row["accept_counts"]
            color = f"C{number}"
            axes.plot(accepted, counts / counts.sum(), "o", color=color, label=row["draft"])
            law = theory.capped_geometric(row["alpha_accepted"], row["gamma"])
            axes.plot(accepted, law, color=color, alpha=0.6)
        axes.set(xlabel="accepted drafts", ylabel="share of rounds", ylim=(0, None))
        axes.set_xticks(accepted)
        axes.legend(frameon=False, fontsize=8)
    return picture


def draw(rows: Sequence[Mapping[str, Any]], output_dir: str) -> None:
    """accept_counts.png and .svg in a folder."""
    pictures.save(figure(rows), pathlib.Path(output_dir) / "accept_counts", (".png", ".svg"))
