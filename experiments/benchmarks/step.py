"""Steps of a model over blocks of tokens: seconds, bytes, and their share of the read bandwidth."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments import records, tables
from experiments.benchmarks.machine import reader
from specdec import costs, timing
from specdec.sampling import argmax
from specdec.text import load_model

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 27


def step(
    output_dir: str,
    *,
    models: Mapping[str, str],
    block_sizes: Sequence[int] = (1, 2, 4, 8, 16),
    batch_sizes: Sequence[int] = (1,),
    encoder_length: int = 64,
    cache_length: int = 192,
    num_steps: int = 64,
    repeats: int = 7,
    stays_narrow: bool = False,
) -> None:
    """Times every model over every block size, in a compiled loop and as calls of their own.

    Models read a random encoder output, whose values cost nothing.

    Args:
      output_dir: of the records, one a model, batch and block size.
      models: checkpoint folders by name.
      block_sizes: tokens of a row in one pass.
      batch_sizes: rows.
      encoder_length: tokens of each row's encoder output.
      cache_length: slots of the decoder's cache.
      num_steps: links of the longer chain, see `timing.seconds_per_link`; a multiple of 64.
      repeats: of the interleaved measurement.
      stays_narrow: keep weights that are stored in bfloat16 so, see `text.load_model`.

    Raises:
      ValueError: if the chain doesn't fit the cache, or has another number of links.
    """
    if num_steps % 64 or num_steps < 64:
        raise ValueError(f"num_steps={num_steps}: must be a multiple of 64")
    if num_steps + max(block_sizes) > cache_length:
        raise ValueError(
            f"cache_length={cache_length}: must be {num_steps + max(block_sizes)} or more, for "
            f"{num_steps} steps and a block of {max(block_sizes)}"
        )
    settings = dict(
        models=dict(models),
        encoder_length=encoder_length,
        cache_length=cache_length,
        num_steps=num_steps,
        stays_narrow=stays_narrow,
    )
    records.claim(output_dir, experiment="step", **settings)
    records.write_environment(output_dir)
    rows = []
    for name, path in models.items():
        params, model = load_model(path, stays_narrow=stays_narrow)
        for batch_size in batch_sizes:
            rows += _rows_of(
                name, params, model, batch_size, block_sizes, settings=settings, repeats=repeats
            )
            for row in rows[-len(block_sizes) :]:
                records.append(output_dir, row)
    tables.show(tables.of("Passes of a decoder", _COLUMNS, rows))


def _rows_of(name, params, model, batch_size, block_sizes, *, settings, repeats) -> list[dict]:
    cache = _random_cache(params, model, batch_size, settings)
    num_steps = settings["num_steps"]
    read = reader(_READ_BYTES)
    looped: dict[Any, Callable] = {
        size: partial(block_chain, params, cache, model=model, block_size=size)
        for size in block_sizes
    }
    # Beside them, so that a share is one of what the memory gave in those very seconds.
    looped["read"] = lambda num_steps: [read() for _ in range(num_steps // 8)]
    in_loop = timing.seconds_per_link(looped, num_steps, repeats)
    alone = {size: _call(params, cache, model, size) for size in block_sizes}
    outside = {size: np.median(times) for size, times in timing.interleaved(alone, repeats).items()}
    bandwidth = _READ_BYTES / 8 / in_loop["read"]
    rows = []
    for size in block_sizes:
        num_bytes = costs.step_bytes(
            params,
            model.config,
            num_rows=batch_size,
            encoder_length=settings["encoder_length"],
            # A chain from 0 to n less one from 0 to n / 8: its links are at 9n / 16 on average.
            decoder_length=9 * num_steps // 16 + size,
        )
        seconds = float(np.median(in_loop[size]))
        row = {
            "experiment": "step",
            "model": name,
            "batch_size": batch_size,
            "block_size": size,
            "seconds": seconds,
            "seconds_outside": float(outside[size]),
            "r": float(np.median(in_loop[size] / in_loop[block_sizes[0]])),
            "bytes": num_bytes,
            "bytes_per_second": num_bytes / seconds,
            "bandwidth": float(np.median(bandwidth)),
            "share": float(np.median(num_bytes / in_loop[size] / bandwidth)),
            **settings,
            "device": jax.devices()[0].device_kind,
        }
        logger.info("%s, %d rows, %d tokens: %.3f ms", name, batch_size, size, 1e3 * seconds)
        rows.append(row)
    return rows


def _random_cache(params, model, batch_size: int, settings):
    config = model.config
    shape = (batch_size, settings["encoder_length"], config.encoder_dim or config.d_model)
    encoded = jax.random.normal(jax.random.key(0), shape, config.dtype)
    lengths = jnp.full(batch_size, settings["encoder_length"])
    return model.init_cache_over(params, encoded, lengths, settings["cache_length"])


@partial(jax.jit, static_argnames=("model", "block_size"))
def block_chain(params, cache, *, model, block_size: int, num_steps):
    """num_steps passes over [B, block_size] tokens, one slot further each; each feeds the next."""
    num_rows = cache.encoder_lengths.shape[0]

    def link(step, carry):
        tokens, cache = carry
        logits, cache = model.extend(params, cache, tokens, jnp.full(num_rows, step))
        return argmax(logits), cache

    tokens = jnp.zeros((num_rows, block_size), jnp.int32)
    return lax.fori_loop(0, num_steps, link, (tokens, cache))[0]


def _call(params, cache, model, block_size: int) -> Callable[[], jax.Array]:
    """One pass as a program of its own; its cache is not given back, so none is copied."""
    extend = jax.jit(lambda params, cache, tokens, at: model.extend(params, cache, tokens, at)[0])
    num_rows = cache.encoder_lengths.shape[0]
    tokens = jnp.zeros((num_rows, block_size), jnp.int32)
    return partial(
        extend, params, cache, tokens, jnp.full(num_rows, cache.layers[0].keys.shape[2] // 2)
    )


_COLUMNS = {
    "model": lambda row: row["model"],
    "rows": lambda row: str(row["batch_size"]),
    "tokens": lambda row: str(row["block_size"]),
    "ms in a loop": lambda row: f"{1e3 * row['seconds']:.3f}",
    "ms alone": lambda row: f"{1e3 * row['seconds_outside']:.3f}",
    "over the first": lambda row: f"{row['r']:.2f}",
    "MB read": lambda row: f"{row['bytes'] / 1e6:.1f}",
    "GB/s": lambda row: f"{row['bytes_per_second'] / 1e9:.1f}",
    "of the bandwidth": lambda row: f"{100 * row['share']:.0f} %",
}
