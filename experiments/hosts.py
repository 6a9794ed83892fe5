"""Several processes, one a host, that run the same program on the devices of all of them."""

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Makes this process one of several, by `jax.distributed`.

    On a TPU slice, under SLURM or Open MPI all three are found out if they are None.

    Raises:
      ValueError: where they are not, or don't go together.
    """
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"can't join the other processes ({str(error).splitlines()[0]}): give --coordinator="
            "HOST:PORT, --num_processes and --process_id, the same coordinator on every host"
        ) from error


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def from_first(value: Any) -> Any:
    """The first process's value, something that JSON can hold, in every process."""
    if jax.process_count() == 1:
        return value
    content = json.dumps(value).encode() if is_first() else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    padded = np.zeros(size, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded))))


@contextlib.contextmanager
def quiet_unless_first() -> Iterator[None]:
    """Of several processes one prints; errors of all are told."""
    if is_first():
        yield
        return
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(open(os.devnull, "wb"))):
            yield
    finally:
        logging.disable(level)
