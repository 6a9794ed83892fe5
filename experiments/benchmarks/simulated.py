"""T5 shapes with random weights and simulated acceptance: what an accelerator would gain.

Every record says that it is simulated: alpha is given, by the paper's tables, and the tokens mean
nothing. The time is that of the real models, loop and rule (see `specdec.simulation`).
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import paper, records, tables
from experiments.benchmarks.machine import reader
from specdec import costs, metrics, simulation, theory, timing
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.drafters import ModelDrafter
from specdec.models.t5 import CONFIGS, T5Config, T5LanguageModel
from specdec.sampling import settings
from specdec.speculative import PairParams, default_rule, speculative_decode
from specdec.types import EncoderInputs

logger = logging.getLogger(__name__)
_WEIGHT_SCALE = 0.02  # small enough that no activation overflows in bfloat16
# The paper's measured column is over T5X's decoding, which was slower a step than their own.
_COLUMNS = {
    "task": lambda row: row["task"],
    "draft": lambda row: row["draft"],
    "T": lambda row: f"{row['temperature']:g}",
    "gamma": lambda row: str(row["gamma"]),
    "alpha\ngiven": lambda row: f"{row['alpha']:.2f}",
    "tokens\nper call": lambda row: f"{row['tokens_per_call']:.2f}",
    "plain\nms / token": lambda row: f"{1e3 * row['plain_seconds_per_token']:.3f}",
    "of the\nbandwidth": lambda row: f"{100 * row['share']:.0f} %",
    "c": lambda row: f"{row['c']:.3f}",
    "c in\nthe paper": lambda row: f"{row['paper']['c']:.2f}",
    "r": lambda row: f"{row['verify_cost']:.2f}",
    "speed-up": lambda row: f"{row['speedup']:.2f}",
    "Thm 3.8\nc and r": lambda row: f"{row['expected_speedup']:.2f}",
    "Thm 3.8\nin the paper": lambda row: f"{row['paper']['expected']:.1f}",
    "measured in\nthe paper": lambda row: f"{row['paper']['speed']:.1f}",
}


def simulate(
    output_dir: str,
    *,
    target: str | T5Config = "t5_1_1_xxl",
    drafts: Mapping[str, str | T5Config],
    rows: Sequence[paper.Measured] = paper.TABLES_2_AND_4,
    dtype: Any = "bfloat16",
    batch_size: int = 1,
    source_length: int = 64,
    max_new_tokens: int = 128,
    repeats: int = 5,
    read_bytes: int = 1 << 30,
) -> None:
    """Times plain against speculative decoding in the set-up of every row; a record each.

    Args:
      output_dir: of the records; rows that are there already are not run again.
      target, drafts: shapes, by a name in `t5.CONFIGS` or as a T5Config; drafts by the rows' names.
      rows: draft, temperature, gamma and alpha to run.
      dtype: of weights, caches and arithmetic.
      batch_size: rows of a batch.
      source_length: tokens of every source.
      max_new_tokens: tokens of every output: none ends earlier.
      repeats: of the interleaved measurement.
      read_bytes: to measure the memory's bandwidth with.

    Raises:
      ValueError: for a shape or a draft that isn't known, before anything is computed.
    """
    missing = sorted({row.draft for row in rows} - set(drafts))
    if missing:
        raise ValueError(f"drafts={sorted(drafts)}: the rows ask for {', '.join(missing)}, too")
    target_model = T5LanguageModel(shape_of(target, dtype))
    models = {name: T5LanguageModel(shape_of(draft, dtype)) for name, draft in drafts.items()}
    about = dict(
        target=str(target),
        drafts={name: str(draft) for name, draft in drafts.items()},
        dtype=str(jnp.dtype(dtype)),
        batch_size=batch_size,
        source_length=source_length,
        max_new_tokens=max_new_tokens,
    )
    records.claim(output_dir, experiment="simulated", **about)
    records.write_environment(output_dir)
    found = records.read(output_dir)
    done = {(row["task"], row["draft"], row["temperature"]) for row in found}
    todo = [row for row in rows if (row.task, row.draft, row.temperature) not in done]
    seconds = np.median(timing.interleaved({"read": reader(read_bytes)}, repeats)["read"])
    target_params = random_params(target_model, 0) if todo else None
    for draft in dict.fromkeys(row.draft for row in todo):
        params = PairParams(target_params, random_params(models[draft], 1))
        for row in [row for row in todo if row.draft == draft]:
            logger.info("%s, %s, T %g", row.task, draft, row.temperature)
            measured = measure(
                params,
                row,
                target=target_model,
                draft=models[draft],
                batch_size=batch_size,
                source_length=source_length,
                max_new_tokens=max_new_tokens,
                repeats=repeats,
            )
            measured["share"] = measured["bytes_per_second"] * seconds / read_bytes
            record = {"experiment": "simulated", "is_simulated": True, **measured, **about}
            record |= {"draft": draft, "bandwidth": read_bytes / seconds}
            record["device"] = jax.devices()[0].device_kind
            records.append(output_dir, record)
            found.append(record)
    tables.show(tables.of("Simulated acceptance, random weights", _COLUMNS, found))


def shape_of(shape: str | T5Config, dtype: Any) -> T5Config:
    """A shape by its name.

    Raises:
      ValueError: for a name that isn't known.
    """
    if isinstance(shape, str) and shape not in CONFIGS:
        raise ValueError(f"no shape {shape!r}: there are {', '.join(CONFIGS)}")
    config = CONFIGS[shape] if isinstance(shape, str) else shape
    return dataclasses.replace(config, dtype=dtype)


def random_params(model: T5LanguageModel, seed: int) -> Any:
    """Random weights in the model's own type, made where they will lie, leaf by leaf."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(shapes)
    make = partial(jax.jit, static_argnums=1)(
        lambda key, shape: _WEIGHT_SCALE * jax.random.normal(key, shape, model.config.dtype)
    )
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    made = [make(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, made)


def measure(
    params: PairParams,
    row: paper.Measured,
    *,
    target: T5LanguageModel,
    draft: T5LanguageModel,
    batch_size: int,
    source_length: int,
    max_new_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Times, costs and the prediction of one row. Encoders, a few per cent, are in the times."""
    how = settings(row.temperature, min_new_tokens=max_new_tokens)
    config = SpecConfig(gamma=row.gamma, max_new_tokens=max_new_tokens)
    tokens = jax.random.randint(jax.random.key(2), (batch_size, source_length), 3, 32_000)
    tokens %= target.vocab_size
    inputs = EncoderInputs(tokens, jnp.full(batch_size, source_length))
    prompt = jnp.zeros((batch_size, 1), jnp.int32)
    request = (inputs, prompt, jax.random.split(jax.random.key(3), batch_size))
    drafter = ModelDrafter(draft)
    rule = simulation.simulated(default_rule(how), row.alpha)
    shared = dict(settings=how, config=config)
    pair = dict(target=target, drafter=drafter, **shared)
    runs = {
        "plain": lambda: autoregressive_decode(params.target, *request, model=target, **shared),
        "fast": lambda: speculative_decode(params, *request, verify_fn=rule, **pair),
    }
    counts = metrics.summarize([runs["fast"]()])
    seconds = {name: np.array(times) for name, times in timing.interleaved(runs, repeats).items()}
    found = timing.step_costs(params, *request, **pair, repeats=repeats)
    num_tokens = batch_size * max_new_tokens
    step_bytes = costs.step_bytes(
        params.target,
        target.config,
        num_rows=batch_size,
        encoder_length=source_length,
        decoder_length=max_new_tokens // 2,
    )
    return {
        "task": row.task,
        "temperature": row.temperature,
        "gamma": row.gamma,
        "alpha": row.alpha,
        "alpha_accepted": counts["alpha_accepted"],
        "tokens_per_call": counts["tokens_per_call"],
        "num_tokens": num_tokens,
        "plain_seconds_per_token": float(np.median(seconds["plain"])) / num_tokens,
        "seconds_per_token": float(np.median(seconds["fast"])) / num_tokens,
        "speedup": float(np.median(seconds["plain"] / seconds["fast"])),
        "speedups": (seconds["plain"] / seconds["fast"]).tolist(),
        "c": found["c"],
        "verify_cost": found["r"],
        "target_seconds": found["target_seconds"],
        "bytes": step_bytes,
        "bytes_per_second": step_bytes / found["target_seconds"],
        "expected_speedup": float(
            theory.walltime_factor(row.alpha, row.gamma, found["c"], found["r"])
        ),
        "paper": row._asdict(),
    }
