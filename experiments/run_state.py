"""What a training run keeps in its folder: checkpoints, the learning curve, its identity::

DIR/checkpoints/<step>/   orbax, the two newest
DIR/curve.jsonl           one object per report
DIR/run.json              what may not change between a run and its continuation
DIR/export/               the newest weights in the library's own format
"""

import json
import pathlib
from typing import Any

import orbax.checkpoint as ocp

_NUM_KEPT = 2


class Checkpoints:
    """Orbax checkpoints, written under a temporary name first, so a kill leaves none half."""

    def __init__(self, output_dir: str):
        folder = pathlib.Path(output_dir).resolve() / "checkpoints"
        self._manager = ocp.CheckpointManager(
            folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=_NUM_KEPT, enable_async_checkpointing=False
            ),
        )

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, state: Any) -> None:
        if step != self.latest_step:
            self._manager.save(step, args=ocp.args.StandardSave(state))

    def restore(self, abstract_state: Any) -> Any:
        """The newest state; `abstract_state` gives shapes and types (`jax.eval_shape`)."""
        return self._manager.restore(
            self.latest_step, args=ocp.args.StandardRestore(abstract_state)
        )

    def close(self) -> None:
        self._manager.close()


class Curve:
    """The learning curve: appended while training, cut back to the step a run resumes from."""

    def __init__(self, output_dir: str, *, resumed_step: int):
        self._path = pathlib.Path(output_dir) / "curve.jsonl"
        kept = [row for row in read_curve(output_dir) if row["step"] <= resumed_step]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.replace(self._path)

    def append(self, **row: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read_curve(output_dir: str) -> list[dict[str, Any]]:
    """Rows of a run's curve. A last line that a kill cut short is passed over."""
    path = pathlib.Path(output_dir) / "curve.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def check_identity(output_dir: str, identity: dict[str, Any]) -> None:
    """Notes what a run is, or compares it with what the folder was begun with.

    Raises:
      ValueError: naming the first difference.
    """
    path = pathlib.Path(output_dir) / "run.json"
    current = json.loads(json.dumps(identity))
    if not path.is_file():
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(current, indent=1) + "\n")
        temporary.replace(path)
        return
    begun = json.loads(path.read_text())
    for key in sorted({*begun, *current}):
        if begun.get(key) != current.get(key):
            raise ValueError(
                f"{output_dir!r} belongs to another run: {key} was {begun.get(key)}, now "
                f"{current.get(key)}; take another output_dir or go back to that configuration"
            )
