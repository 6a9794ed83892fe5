"""What an experiment leaves behind: one JSON object a row, and the machine it ran on."""

import json
import math
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

from experiments import hosts

_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "optax", "specdec")


def claim(output_dir: str, **configuration: Any) -> None:
    """Makes sure that a folder's records are all of one configuration, kept as its run.json.

    A setting that is None means the same as one that isn't there, so that new settings which are
    off leave older folders open.

    Raises:
      ValueError: naming the settings that differ from those of the records that lie there, or a
        run.json that can't be read.
    """
    if not hosts.is_first():
        return
    path = pathlib.Path(output_dir) / "run.json"
    wanted = json.loads(json.dumps(configuration, default=str))
    if path.exists():
        there = _read_configuration(path)
        names = sorted(
            name for name in there.keys() | wanted if there.get(name) != wanted.get(name)
        )
        if names:
            differing = ", ".join(
                f"{name} {there.get(name)!r} there, {wanted.get(name)!r} here" for name in names
            )
            raise ValueError(
                f"output_dir={output_dir!r} holds records of another configuration ({differing}): "
                "choose another folder"
            )
        return
    # By a rename, so that a kill leaves no half file behind.
    partial = path.with_name(f"run.json.{os.getpid()}")
    partial.write_text(json.dumps(wanted, indent=2) + "\n")
    partial.replace(path)


def _read_configuration(path: pathlib.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(
            f"{str(path)!r} doesn't say which configuration its folder's records are of: choose "
            "another folder"
        )
    return content


def append(output_dir: str, record: dict[str, Any]) -> None:
    """Adds a line to records.jsonl; on disk when this returns. NaN is written as null.

    Of several processes that measure the same, the first one writes.
    """
    if not hosts.is_first():
        return
    line = json.dumps(_plain(record), allow_nan=False)
    with open(pathlib.Path(output_dir) / "records.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(output_dir: str) -> list[dict[str, Any]]:
    """All records of a folder, [] if there are none."""
    path = pathlib.Path(output_dir) / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def merge(output_dir: str, folders: Sequence[str]) -> int:
    """Adds to a folder's records those of other folders that it lacks; returns how many.

    For runs of one configuration on several hosts. Merged again, nothing is added.

    Raises:
      ValueError: for a folder of another configuration.
    """
    num_added = 0
    for folder in folders:
        path = pathlib.Path(folder) / "run.json"
        if path.exists():
            claim(output_dir, **_read_configuration(path))
        there = read(output_dir)
        for record in read(folder):
            if record not in there:
                append(output_dir, record)
                there.append(record)
                num_added += 1
    return num_added


def find(output_dir: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """A folder's first record with these settings, None if there is none.

    Of several processes all go by what the first one finds: they must take the same way.
    """
    matches = lambda row: all(row.get(name) == value for name, value in key.items())
    return hosts.from_first(next(filter(matches, read(output_dir)), None))


def is_there(output_dir: str, key: Mapping[str, Any]) -> bool:
    """Whether a folder has a record with these settings."""
    return find(output_dir, key) is not None


def write_environment(output_dir: str) -> None:
    """environment.json: versions and the device. No host names or paths."""
    if not hosts.is_first():
        return
    device = jax.devices()[0]
    environment = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "num_cpus": os.cpu_count(),
        "device": device.device_kind,
        "num_devices": jax.device_count(),
        "num_processes": jax.process_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "packages": {name: _version(name) for name in _PACKAGES},
    }
    path = pathlib.Path(output_dir) / "environment.json"
    path.write_text(json.dumps(environment, indent=2) + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
