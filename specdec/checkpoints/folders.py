"""A checkpoint's folder, written whole or not at all, whatever form is written into it."""

import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Callable

from specdec.checkpoints.strict import CheckpointError

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def is_of_safetensors(name: str) -> bool:
    """Whether a file of this name belongs to a folder of config.json and safetensors files."""
    is_weights = re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", name)
    return name == CONFIG or is_weights is not None


def write(
    path: str | os.PathLike,
    write_fn: Callable[[pathlib.Path], None],
    is_ours_fn: Callable[[str], bool] = is_of_safetensors,
) -> None:
    """Writes a folder, or replaces the one at that path.

    A kill between the two renames of a replacement leaves the older folder, whole, as
    `.<name>.replaced` beside it: `check_exists` says so.

    Args:
      path: the folder. Its parents are made.
      write_fn: writes the checkpoint into an empty folder that it is given.
      is_ours_fn: of a name in the folder, whether a checkpoint of this form has it.

    Raises:
      CheckpointError: if `path` holds other things than a checkpoint, which replacing it would
        delete.
    """
    path = pathlib.Path(path).resolve()
    _refuse_foreign_folder(path, is_ours_fn)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:12]}")
    partial.mkdir()
    try:
        write_fn(partial)
        files = [file for file in partial.rglob("*") if file.is_file()]
        (partial / "mode").touch()
        for file in files:
            # safetensors makes files for their owner alone: give all the rights of new files.
            file.chmod((partial / "mode").stat().st_mode)
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
        (partial / "mode").unlink()
        _put_in_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_exists(path: str | os.PathLike) -> None:
    """Raises a CheckpointError that says what to do, if there is no checkpoint folder at `path`."""
    folder = pathlib.Path(path).resolve()
    replaced = _replaced(folder)
    if replaced.exists() and not folder.exists():
        raise CheckpointError(
            f"{folder}: missing, since a save was cut short. The one before it is whole: "
            f"{replaced} (rename it back, or load it)"
        )
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"no checkpoint at {str(path)!r}: it must be a folder with {CONFIG} and {WEIGHTS}; "
            "correct the path"
        )


def _put_in_place(partial: pathlib.Path, path: pathlib.Path) -> None:
    replaced = _replaced(path)
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    try:
        partial.rename(path)
    except BaseException:
        if replaced.exists():
            replaced.rename(path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f".{path.name}.replaced")


def _refuse_foreign_folder(path: pathlib.Path, is_ours_fn: Callable[[str], bool]) -> None:
    if not path.exists():
        return
    names = [p.name for p in path.iterdir()] if path.is_dir() else ["a file"]
    others = sorted(name for name in names if not is_ours_fn(name))
    if others:
        raise CheckpointError(
            f"{path}: holds {', '.join(others[:5])}, which replacing it would delete: choose a "
            "folder of its own"
        )
