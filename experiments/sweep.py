"""Runs an experiment at every point of a grid that its gin file gives.

    python -m experiments.sweep --gin_file=gin_configs/sweep.gin --output_dir=DIR [--gin.X=Y ...]

The grid, `sweep.Grid.axes`, maps macros to the values that they take. A point is a run of its own
in DIR/points/<its values>; DIR/records.jsonl gathers the records of those that are done, each with
its values, after every point. Called again it does only what is missing: a kill loses at most the
point under way.
"""

import dataclasses
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin

from experiments import programs, records, run

logger = logging.getLogger(__name__)
Point = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Grid:
    """What to go through.

    Attributes:
      axes: the values of every macro, by its name; the last one varies fastest.
      draw: draws all records into the output folder in the end; None = nothing is drawn.
    """

    axes: Mapping[str, Sequence[Any]]
    draw: Callable[[Sequence[Mapping[str, Any]], str], None] | None = None

    def __post_init__(self):
        for name, values in self.axes.items():
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"axis {name}={values!r}: give it a list of values")
        if not self.axes:
            raise ValueError("no axes: give macros and their values as sweep.Grid.axes")

    def points(self) -> list[Point]:
        """Example: {"A": (1, 2), "B": (3, 4)} -> A=1 B=3, A=1 B=4, A=2 B=3, A=2 B=4."""
        return [
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]


def sweep(
    files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    output_dir: str,
    profile_dir: str | None = None,
) -> None:
    """Does what is missing of a grid. The arguments are those of `run.run`.

    Raises:
      BadInput, ValueError, OSError, Failed: of the first point that can't be run.
    """
    if not files:
        raise run.BadInput("no gin file: give one with --gin_file=FILE")
    grid = read_grid(files, bindings, search_paths)
    points = grid.points()
    folder = run.prepare_output_dir(output_dir)
    configuration = dict(files=list(files), bindings=list(bindings))
    records.claim(output_dir, experiment="sweep", **configuration)
    missing = [point for point in points if not is_done(folder, point)]
    logger.info("%d points, %d of them done", len(points), len(points) - len(missing))
    gather(folder, points)
    began = time.monotonic()
    for number, point in enumerate(missing):
        place = place_of(folder, point)
        shutil.rmtree(place, ignore_errors=True)  # what a kill has left
        own = [*bindings, *(f"{name} = {value!r}" for name, value in point.items())]
        run.run(files, own, search_paths, str(place), profile_dir)
        programs.forget()
        gather(folder, points)
        left = (time.monotonic() - began) / (number + 1) * (len(missing) - number - 1)
        logger.info("%d/%d points, %.1f min left", number + 1, len(missing), left / 60)
    if grid.draw is not None:
        grid.draw(records.read(output_dir), output_dir)


def read_grid(files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]) -> Grid:
    """The grid of gin files, whose axes are known macros.

    Macros on an axis need no value of their own.
    """
    run.parse_config(files, bindings, search_paths, is_whole=False)
    try:
        grid = gin.get_configurable(Grid)()
    except (TypeError, RuntimeError) as error:
        raise run.BadInput(
            f"no grid in {', '.join(files)}: give sweep.Grid.axes, as gin_configs/sweep.gin does"
        ) from error
    known = run.macros()
    for name in grid.axes:
        if name not in known:
            raise run.BadInput(
                f"no macro {name} in {', '.join(files)}; it knows {', '.join(sorted(known))}"
            )
    return grid


def place_of(folder: pathlib.Path, point: Point) -> pathlib.Path:
    """A point's own folder, named after its values: DRAFT=checkpoints-ende-small,GAMMA=4."""
    parts = (f"{name}={re.sub('[^A-Za-z0-9.]+', '-', str(value))}" for name, value in point.items())
    return folder / "points" / ",".join(parts)


def is_done(folder: pathlib.Path, point: Point) -> bool:
    """A run keeps its configuration when it has ended well."""
    return (place_of(folder, point) / "config.gin").is_file()


def gather(folder: pathlib.Path, points: Sequence[Point]) -> None:
    """DIR/records.jsonl anew, of all points that are done, in the grid's order."""
    lines = [
        json.dumps({"point": point, **row})
        for point in points
        if is_done(folder, point)
        for row in records.read(str(place_of(folder, point)))
    ]
    partial = folder / f"records.jsonl.{os.getpid()}"
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(folder / "records.jsonl")


if __name__ == "__main__":
    # gin files import this module by its name; as __main__ it would exist twice.
    from experiments import sweep as by_name

    run.start(by_name.sweep)
