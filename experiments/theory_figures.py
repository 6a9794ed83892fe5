"""Table 1 and Figures 2, 3 and 4 of the paper (arXiv 2211.17192): theory alone, no model.

Axes and curves are the paper's; the numbers are `specdec.theory`'s.
"""

import logging
import pathlib

import numpy as np

from experiments import paper, pictures, tables
from specdec import theory

logger = logging.getLogger(__name__)
_ALPHAS = np.linspace(0.5, 0.9, 401)
_BOTH = (".png", ".svg")


TABLE_1: tables.Columns = {
    "alpha": lambda row: f"{row['alpha']:g}",
    "gamma": lambda row: str(row["gamma"]),
    "operations": lambda row: f"{row['our_operations']:.2f}",
    "operations\nin the paper": lambda row: f"{row['operations']:.2f}",
    "speed": lambda row: f"{row['our_speed']:.2f}",
    "speed\nin the paper": lambda row: f"{row['speed']:.2f}",
}


def rows_of_table_1() -> list[dict[str, float]]:
    """Operations and speed at c = 0 and c_hat = 0, and the paper's."""
    return [
        {
            **row._asdict(),
            "our_operations": float(theory.operations_factor(row.alpha, row.gamma, 0.0)),
            "our_speed": float(theory.walltime_factor(row.alpha, row.gamma, 0.0)),
        }
        for row in paper.TABLE_1
    ]


def table_1(output_dir: str) -> None:
    """Table 1 beside the paper's: table_1.md and .tex."""
    rows = rows_of_table_1()
    tables.show(tables.of("Table 1", TABLE_1, rows))
    tables.write(pathlib.Path(output_dir) / "table_1", TABLE_1, rows)


def figure_2(output_dir: str) -> None:
    """Tokens a round over alpha, for gamma 1, 3, 5, 7 and infinity: figure_2.png and .svg."""
    figure, (axes,) = pictures.panels(["Figure 2: expected tokens per iteration"])
    for gamma in (1, 3, 5, 7):
        axes.plot(_ALPHAS, theory.expected_tokens(_ALPHAS, gamma), label=f"gamma = {gamma}")
    axes.plot(_ALPHAS, 1 / (1 - _ALPHAS), label="gamma = infinity", color="C4")
    axes.axhline(1, color="black", linestyle=":", label="plain decoding")
    axes.set(xlabel="alpha", ylabel="E(tokens per iteration)", xlim=(0.5, 0.9), ylim=(0, 10))
    axes.legend(frameon=False, fontsize=9)
    _save(figure, output_dir, "figure_2")


def figure_3(output_dir: str) -> None:
    """The best gamma over alpha, for c .01, .02, .05 and .1: figure_3.png and .svg."""
    figure, (axes,) = pictures.panels(["Figure 3: optimal gamma"])
    for c in (0.01, 0.02, 0.05, 0.1):
        best = theory.optimal_gamma(_ALPHAS, c)
        axes.step(_ALPHAS, best, where="post", label=f"c = {c:g}")
    axes.set(xlabel="alpha", ylabel="gamma", xlim=(0.5, 0.9), ylim=(0, 24.5))
    axes.set_yticks(range(0, 25, 4))
    axes.legend(frameon=False, fontsize=9)
    _save(figure, output_dir, "figure_3")


def figure_4(output_dir: str) -> None:
    """Speed and operations over alpha at c = 0, for gamma 1, 3, 5, 7, 10: figure_4.png and .svg."""
    figure, (axes,) = pictures.panels(["Figure 4: speed (solid) and operations (dotted)"])
    for number, gamma in enumerate((1, 3, 5, 7, 10)):
        color = f"C{number}"
        speed = theory.walltime_factor(_ALPHAS, gamma, 0.0)
        axes.plot(_ALPHAS, speed, color=color, label=f"gamma = {gamma}")
        operations = theory.operations_factor(_ALPHAS, gamma, 0.0)
        axes.plot(_ALPHAS, operations, color=color, linestyle=":")
    axes.axhline(1, color="black", linewidth=1.2, label="plain decoding")
    axes.set(xlabel="alpha", ylabel="times plain decoding's", xlim=(0.5, 0.9), ylim=(0, 10))
    axes.legend(frameon=False, fontsize=9)
    _save(figure, output_dir, "figure_4")


def _save(figure, output_dir: str, name: str) -> None:
    path = pathlib.Path(output_dir) / name
    pictures.save(figure, path, _BOTH)
    logger.info("wrote %s.png and .svg", path)
