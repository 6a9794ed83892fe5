"""How many programs a piece of work compiled, so that a run can say so."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax

# What JAX records each time a backend compiles a program (or takes it from the cache on disk).
_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(eq=False)  # a block is itself only: another may have counted as many
class Compiles:
    """Programs compiled inside a `counted` block, and seconds spent on it."""

    count: int = 0
    seconds: float = 0.0


_open: list[Compiles] = []


def _listen(event: str, seconds: float, **_) -> None:
    if event == _EVENT:
        for compiles in _open:
            compiles.count += 1
            compiles.seconds += seconds


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def counted() -> Iterator[Compiles]:
    """Counts the programs that are compiled while the block runs."""
    compiles = Compiles()
    _open.append(compiles)
    try:
        yield compiles
    finally:
        _open.remove(compiles)
