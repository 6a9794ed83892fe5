"""Plots in one style. matplotlib is the extra `plots`: it is imported when a picture is drawn."""

import pathlib
from collections.abc import Sequence
from typing import Any


class MissingPlots(ValueError):
    """matplotlib isn't there."""


def panels(
    titles: Sequence[str], *, size: tuple[float, float] = (5.2, 3.6), num_columns: int | None = None
) -> tuple[Any, list]:
    """A figure with a panel a title, each `size` inches, in rows of num_columns; and the panels.

    None = all side by side.

    Raises:
      MissingPlots: says what to install.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPlots("pictures need matplotlib: pip install -e '.[plots]'") from error
    width, height = size
    columns = min(num_columns or len(titles), len(titles))
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    found = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for unused in found[len(titles) :]:
        unused.remove()
    found = found[: len(titles)]
    for axes, title in zip(found, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def save(figure: Any, path: pathlib.Path, suffixes: Sequence[str] = (".png",)) -> None:
    """Writes the figure beside its name, once for each suffix."""
    for suffix in suffixes:
        # Without a date, the same picture is the same file.
        about = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(path.with_suffix(suffix), dpi=150, metadata=about)
