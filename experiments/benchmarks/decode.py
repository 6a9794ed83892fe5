"""Decoding end to end: plain against speculative over gamma, batch, buffer and source length.

Whole batches, each way in turn, `repeats` times over; ratios are taken within a repeat. With every
ratio stands what it should cost: operations (Theorem 3.11) and memory, both by XLA's own account.
"""

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import compare, pictures, records, tables
from experiments.data import Task, first_pairs
from specdec import costs, metrics, theory, timing
from specdec.config import SpecConfig, buffer_length
from specdec.sampling import Settings, settings
from specdec.text import TextPair, load_pair
from specdec.types import EncoderInputs

logger = logging.getLogger(__name__)
PLAIN = 0  # among gammas


@dataclasses.dataclass(frozen=True)
class Shape:
    """One shape to decode in; None is what the sentences need.

    Attributes:
      batch_size: rows.
      cache_length: slots of buffers and caches.
      source_length: tokens of every source, made of as many sentences as that takes.
    """

    batch_size: int = 1
    cache_length: int | None = None
    source_length: int | None = None


def decode(
    output_dir: str,
    *,
    target: str,
    draft: str,
    vocabulary: str,
    task: Task,
    gammas: Sequence[int] = (2, 4, 6),
    batch_sizes: Sequence[int] = (1,),
    cache_lengths: Sequence[int | None] = (None,),
    source_lengths: Sequence[int | None] = (None,),
    temperature: float = 0.0,
    max_new_tokens: int = 96,
    num_sentences: int = 16,
    repeats: int = 5,
    seed: int = 0,
) -> None:
    """Times every shape with every gamma, and writes records.jsonl, a table and decode.png.

    Args:
      output_dir: of the results.
      target, draft, vocabulary: paths, see `specdec.text.load_pair`.
      task: where sentences come from, and their prefix.
      gammas: drafts a round, from 1.
      batch_sizes, cache_lengths, source_lengths: see `Shape`; all their combinations.
      temperature: 0 is greedy.
      max_new_tokens: most tokens of an output.
      num_sentences: the task's first; batches that are not full are left out.
      repeats: of the interleaved measurement.
      seed: of the first batch; the others' follow.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
    """
    if not gammas or min(gammas) < 1:
        raise ValueError(f"gammas={gammas}: give at least one, from 1; plain decoding is always in")
    shapes = [
        Shape(*sizes) for sizes in itertools.product(batch_sizes, cache_lengths, source_lengths)
    ]
    how = settings(temperature)
    texts = [text for text, _ in first_pairs(task, num_sentences)]
    pair = load_pair(target, draft, vocabulary, prefix=task.prefix)
    config = pair.config(gamma=max(gammas), max_new_tokens=max_new_tokens)
    for shape in shapes:
        if shape.batch_size > len(texts):
            raise ValueError(f"a batch of {shape.batch_size}: only {len(texts)} sentences")
        buffer_length(_with_room(config, shape), prompt_length=1, slack=config.gamma + 1)
    about = dict(target=target, draft=draft, task=task.path, temperature=temperature)
    about |= dict(max_new_tokens=max_new_tokens, num_sentences=num_sentences, seed=seed)
    records.claim(output_dir, experiment="decode", **about)
    records.write_environment(output_dir)
    rows = []
    for shape in shapes:
        requests = requests_of(pair, texts, shape, seed)
        for row in measure(pair, requests, how, _with_room(config, shape), gammas, repeats):
            row = {**dataclasses.asdict(shape), **row, **about}
            row |= {"experiment": "decode", "device": jax.devices()[0].device_kind}
            rows.append(row)
            records.append(output_dir, row)
            logger.info("%s, gamma %d: %.2f times", shape, row["gamma"], row["speedup"])
    tables.show(tables.of("Speculative over plain decoding", _COLUMNS, rows))
    plot(rows, pathlib.Path(output_dir) / "decode.png")


def _with_room(config: SpecConfig, shape: Shape) -> SpecConfig:
    return dataclasses.replace(config, cache_length=shape.cache_length)


def requests_of(pair: TextPair, texts: Sequence[str], shape: Shape, seed: int) -> list:
    """Batches of the texts, all of one shape, so of one program."""
    groups = [
        texts[at : at + shape.batch_size]
        for at in range(0, len(texts) - shape.batch_size + 1, shape.batch_size)
    ]
    whole = pair.inputs(texts)
    requests = []
    for number, group in enumerate(groups):
        _, prompt, keys = pair.request(group, seed + number)
        at = number * shape.batch_size
        inputs = jax.tree.map(lambda leaf, at=at: leaf[at : at + shape.batch_size], whole)
        if shape.source_length is not None:
            inputs = _of_length(whole, at, shape)
        requests.append((inputs, prompt, keys))
    return requests


def _of_length(whole: EncoderInputs, first: int, shape: Shape) -> EncoderInputs:
    """Sources of `source_length` tokens: each row's sentence, then those that follow it."""
    tokens, lengths = np.asarray(whole.tokens), np.asarray(whole.lengths)
    sentences = [row[: size - 1] for row, size in zip(tokens, lengths, strict=True)]
    rows = []
    for row in range(first, first + shape.batch_size):
        ordered = itertools.islice(itertools.cycle(sentences), row, row + shape.source_length)
        joined = np.concatenate(list(ordered))[: shape.source_length - 1]
        rows.append(np.append(joined, tokens[0, lengths[0] - 1]))  # and EOS
    return EncoderInputs(jnp.asarray(np.stack(rows)), jnp.full(len(rows), shape.source_length))


def measure(
    pair: TextPair,
    requests: Sequence,
    how: Settings,
    config: SpecConfig,
    gammas: Sequence[int],
    repeats: int,
) -> list[dict[str, Any]]:
    """A record a gamma: all requests in turn by plain decoding and by every gamma.

    Encoders are timed apart and left out of `speedup`; `speedup_total` has them in.
    """
    configs = {gamma: dataclasses.replace(config, gamma=gamma) for gamma in (PLAIN, *gammas)}
    programs = {gamma: compiled(pair, requests[0], how, configs[gamma]) for gamma in configs}
    size = buffer_length(config, prompt_length=1, slack=config.gamma + 1)
    starts = {
        "plain": lambda request: compare.init_target(
            pair.params.target, *request[:2], model=pair.target, cache_length=size
        ),
        "fast": lambda request: compare.init_both(
            pair.params, *request[:2], target=pair.target, drafter=pair.drafter, cache_length=size
        ),
    }
    runs = {
        gamma: lambda program=program: [program(pair.params, request) for request in requests]
        for gamma, program in programs.items()
    }
    for name, start in starts.items():
        runs[name] = lambda start=start: [start(request) for request in requests]
    results = {gamma: jax.device_get(runs[gamma]()) for gamma in configs}
    seconds = {key: np.array(times) for key, times in timing.interleaved(runs, repeats).items()}
    c_hat = operations_ratio(pair, requests[0], size)
    tokens = {
        gamma: sum(int(result.lengths.sum()) for result in found)
        for gamma, found in results.items()
    }
    per_token = {
        gamma: (seconds[gamma] - seconds["fast" if gamma else "plain"]) / tokens[gamma]
        for gamma in configs
    }
    rows = []
    for gamma in gammas:
        counts = metrics.summarize(results[gamma])
        ratios = per_token[PLAIN] / per_token[gamma]
        total = seconds[PLAIN] / tokens[PLAIN] / (seconds[gamma] / tokens[gamma])
        rows.append(
            {
                "gamma": gamma,
                "buffer": size,
                "num_tokens": tokens[gamma],
                "num_plain_tokens": tokens[PLAIN],
                "tokens_per_call": counts["tokens_per_call"],
                "alpha_loop": counts["alpha_loop"],
                "plain_seconds_per_token": float(np.median(per_token[PLAIN])),
                "seconds_per_token": float(np.median(per_token[gamma])),
                "speedup": float(np.median(ratios)),
                "speedups": ratios.tolist(),
                "speedup_total": float(np.median(total)),
                "c_hat": c_hat,
                "operations": float(theory.operations_factor(counts["alpha_loop"], gamma, c_hat)),
                "plain_memory": memory_factor(pair, programs[PLAIN], requests[0], configs[PLAIN]),
                "memory": memory_factor(pair, programs[gamma], requests[0], configs[gamma]),
                "identical": sum(
                    _num_identical(*found)
                    for found in zip(results[PLAIN], results[gamma], strict=True)
                ),
                "num_rows": sum(len(result.lengths) for result in results[gamma]),
            }
        )
    return rows


def compiled(pair: TextPair, request, how: Settings, config: SpecConfig) -> jax.stages.Compiled:
    """Decoding as one program of (params, request); gamma 0 is plain decoding."""

    def run(params, request):
        here = dataclasses.replace(pair, params=params)
        return (here.speculate if config.gamma else here.plain)(request, how, config)

    return jax.jit(run).lower(pair.params, request).compile()


def operations_ratio(pair: TextPair, request, cache_length: int) -> float:
    """c-hat of Theorem 3.11: the draft's operations a token, in the target's."""
    inputs, prompt, _ = request
    cache, draft_state = jax.eval_shape(
        lambda *args: compare.init_both(
            *args, target=pair.target, drafter=pair.drafter, cache_length=cache_length
        ),
        pair.params,
        inputs,
        prompt,
    )
    target = costs.step_operations(pair.params.target, cache, model=pair.target)
    model = pair.drafter.model
    return costs.step_operations(pair.params.draft, draft_state, model=model) / target


def memory_factor(pair: TextPair, program, request, config: SpecConfig) -> float:
    """Memory of a program over that of weights and caches, which it can't do without."""
    inputs, prompt, _ = request
    size = buffer_length(config, prompt_length=1, slack=config.gamma + 1)
    if config.gamma:
        params = pair.params
        caches = jax.eval_shape(
            lambda *args: compare.init_both(
                *args, target=pair.target, drafter=pair.drafter, cache_length=size
            ),
            *(params, inputs, prompt),
        )
    else:
        params = pair.params.target
        caches = jax.eval_shape(
            lambda *args: compare.init_target(*args, model=pair.target, cache_length=size),
            *(params, inputs, prompt),
        )
    return costs.program_bytes(program) / (costs.tree_bytes(params) + costs.tree_bytes(caches))


def _num_identical(plain, fast) -> int:
    same = (plain.tokens == fast.tokens).all(axis=1) & (plain.lengths == fast.lengths)
    return int(same.sum())


_COLUMNS = {
    "rows": lambda row: str(row["batch_size"]),
    "buffer": lambda row: str(row["buffer"]),
    "source": lambda row: str(row["source_length"] or ""),
    "gamma": lambda row: str(row["gamma"]),
    "tokens per call": lambda row: f"{row['tokens_per_call']:.2f}",
    "plain ms / token": lambda row: f"{1e3 * row['plain_seconds_per_token']:.3f}",
    "ms / token": lambda row: f"{1e3 * row['seconds_per_token']:.3f}",
    "speed-up": lambda row: f"{row['speedup']:.2f}",
    "with encoders": lambda row: f"{row['speedup_total']:.2f}",
    "operations": lambda row: f"{row['operations']:.2f}",
    "memory, plain": lambda row: f"{row['plain_memory']:.2f}",
    "memory": lambda row: f"{row['memory']:.2f}",
    "identical": lambda row: f"{row['identical']}/{row['num_rows']}",
}


def plot(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Speed-up and operations over the batch, a line a gamma; without matplotlib, nothing."""
    batch_sizes = sorted({row["batch_size"] for row in rows})
    if len(batch_sizes) < 2:
        return
    try:
        figure, panels = pictures.panels(
            ["Speed-up over plain decoding", "Operations over its own"]
        )
    except pictures.MissingPlots as error:
        logger.warning("no plot: %s", error)
        return
    for gamma in sorted({row["gamma"] for row in rows}):
        mine = [row for row in rows if row["gamma"] == gamma]
        for panel, name in zip(panels, ("speedup", "operations"), strict=True):
            points = [
                np.median([row[name] for row in mine if row["batch_size"] == size])
                for size in batch_sizes
            ]
            panel.plot(batch_sizes, points, marker="o", label=f"gamma {gamma}")
    for panel in panels:
        panel.set(xlabel="rows of a batch", xscale="log")
        panel.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
        panel.minorticks_off()
        panel.axhline(1, color="gray", linewidth=1, linestyle="--")
    panels[0].legend(frameon=False)
    pictures.save(figure, path)
