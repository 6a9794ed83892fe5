"""What the machine can do at best: the ceilings that a step's time is held against."""

import concurrent.futures
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import records
from specdec import timing


def reader(num_bytes: int) -> Callable[[], Any]:
    """A function that reads `num_bytes` of memory once, as fast as the machine lets it.

    On a CPU one thread a core, by numpy's dot product of an array with itself, which is none of
    ours; elsewhere by XLA's largest entry.
    """
    if jax.default_backend() != "cpu":
        values = jnp.ones(num_bytes // 4, jnp.float32)
        return functools.partial(jax.jit(jnp.max), values)
    num_threads = os.cpu_count() or 1
    parts = [np.ones(num_bytes // 4 // num_threads, np.float32) for _ in range(num_threads)]
    pool = concurrent.futures.ThreadPoolExecutor(num_threads)
    return lambda: list(pool.map(lambda part: part @ part, parts))


def multiplier(size: int) -> Callable[[], Any]:
    """A function that multiplies two square float32 matrices: 2 size^3 operations."""
    product = jax.jit(functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST))
    matrix = jnp.ones((size, size), jnp.float32)
    return functools.partial(product, matrix, matrix)


def machine(
    output_dir: str, *, num_bytes: int = 1 << 28, size: int = 2048, repeats: int = 9
) -> None:
    """Measures read bandwidth and matrix rate, and records them.

    Args:
      output_dir: of the record.
      num_bytes: to read, far more than any cache holds.
      size: of the matrices.
      repeats: of the interleaved measurement.
    """
    records.claim(output_dir, experiment="machine", num_bytes=num_bytes, size=size)
    records.write_environment(output_dir)
    functions = {"read": reader(num_bytes), "multiply": multiplier(size)}
    seconds = {
        name: np.array(times) for name, times in timing.interleaved(functions, repeats).items()
    }
    row = {
        "experiment": "machine",
        "num_bytes": num_bytes,
        "size": size,
        "bytes_per_second": float(np.median(num_bytes / seconds["read"])),
        "operations_per_second": float(np.median(2 * size**3 / seconds["multiply"])),
        "device": jax.devices()[0].device_kind,
        "num_cpus": os.cpu_count(),
    }
    records.append(output_dir, row)
    print(
        f"reads {row['bytes_per_second'] / 1e9:.1f} GB/s, multiplies "
        f"{row['operations_per_second'] / 1e9:.0f} GFLOP/s in float32"
    )
