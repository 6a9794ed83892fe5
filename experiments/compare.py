"""Plain against speculative decoding on the same sentences: the main experiment.

Sentence by sentence, batch 1, the two in turn, at every temperature asked for. c, r and alpha are
measured apart from the runs that they predict. One record a temperature.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich
import sacrebleu
from rich import box
from rich.console import Console
from rich.table import Table

from experiments import records
from experiments.data import Task, read_pairs
from experiments.run import Failed
from specdec import compilation, identity, metrics, theory, timing
from specdec.autoregressive import prefill
from specdec.config import buffer_length
from specdec.sampling import Settings, settings
from specdec.text import TextPair, load_pair

logger = logging.getLogger(__name__)
_TABLE_WIDTH = 140


class NotIdentical(Failed):
    """Greedy outputs differ by more than rounding: a bug."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What one temperature's sentences gave; lists have an entry a sentence.

    Attributes:
      requests: inputs, prompt and keys.
      plain, fast: Decoded, of plain and speculative decoding.
      seconds: by name: plain, fast, and the encoders' part of each.
      num_compiles: programs compiled for warming up.
    """

    requests: list
    plain: list
    fast: list
    seconds: dict[str, np.ndarray]
    num_compiles: int


def compare(
    output_dir: str,
    *,
    target: str,
    draft: str,
    vocabulary: str,
    task: Task,
    name: str = "compare",
    temperatures: Sequence[float] = (0.0, 1.0),
    gamma: int = 5,
    max_new_tokens: int = 128,
    num_sentences: int = 200,
    num_traced: int = 3,
    seed: int = 0,
) -> None:
    """Runs, prints a trace and a table, and writes records.jsonl and environment.json.

    Args:
      output_dir: of the results.
      target, draft, vocabulary: paths, see `specdec.text.load_pair`.
      task: sentences with references, and their prefix.
      name: of the experiment, in the records.
      temperatures: 0 is greedy.
      num_traced: sentences whose rounds are shown, at the first temperature.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
      NotIdentical: if greedy outputs differ by more than rounding.
    """
    if not temperatures:
        raise ValueError("temperatures=[]: give at least one")
    how = {temperature: settings(temperature) for temperature in temperatures}
    pair = load_pair(target, draft, vocabulary, prefix=task.prefix)
    pair.config(gamma=gamma, max_new_tokens=max_new_tokens)
    sentences = list(read_pairs(task))[:num_sentences]
    if not sentences:
        raise ValueError(f"no sentences in {task.path!r}")
    pair.inputs([text for text, _ in sentences])  # refuses what doesn't fit the buckets
    records.claim(
        output_dir,
        experiment=name,
        target=target,
        draft=draft,
        vocabulary=vocabulary,
        task=dataclasses.asdict(task),
        temperatures=temperatures,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        num_sentences=num_sentences,
        seed=seed,
    )
    records.write_environment(output_dir)
    for text, _ in sentences[:num_traced]:
        rich.print(f"[bold]{text}[/bold]")
        shown = pair.trace(
            text, gamma=gamma, temperature=temperatures[0], max_new_tokens=max_new_tokens
        )
        rich.print(shown)

    rows = []
    for temperature in temperatures:
        row = _measure(pair, sentences, how[temperature], temperature, gamma, max_new_tokens, seed)
        rows.append(
            {"experiment": name, "task": task.path, "target": target, "draft": draft, **row}
        )
        records.append(output_dir, rows[-1])
    # Narrower, it would lose digits; a terminal wraps what it cannot hold.
    Console(width=max(rich.get_console().width, _TABLE_WIDTH)).print(as_table(rows))
    bugs = sum(len(row["bugs"]) for row in rows)
    if bugs:
        raise NotIdentical(f"{bugs} outputs differ from plain decoding's by more than rounding")


def _measure(
    pair: TextPair, sentences, how: Settings, temperature, gamma, max_new_tokens, seed
) -> dict[str, Any]:
    """One record."""
    config = pair.config(gamma=gamma, max_new_tokens=max_new_tokens)
    run = decode_in_turn(pair, [text for text, _ in sentences], how, config, seed)
    counts = metrics.summarize(run.fast)
    alpha, alpha_error, num_alpha_tokens = target_alpha(pair, run, how, config)
    typical = run.requests[len(run.requests) // 2]
    costs = timing.step_costs(
        pair.params, *typical, target=pair.target, drafter=pair.drafter, settings=how, config=config
    )
    c, r = costs["c"], costs["r"]
    seconds = run.seconds
    speedup, low, high = metrics.ratio_interval(
        _per_token(run.plain, seconds["plain"] - seconds["plain_encoder"]),
        _per_token(run.fast, seconds["fast"] - seconds["fast_encoder"]),
    )
    total, _, _ = metrics.ratio_interval(
        _per_token(run.plain, seconds["plain"]), _per_token(run.fast, seconds["fast"])
    )
    found = [] if temperature else _differences(pair, run, config)
    return {
        "temperature": temperature,
        "gamma": gamma,
        "batch_size": 1,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        **counts,
        "alpha": alpha,
        "alpha_standard_error": alpha_error,
        "num_alpha_tokens": num_alpha_tokens,
        "c": c,
        "verify_cost": r,
        "target_seconds": costs["target_seconds"],
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "speedup_total": total,
        "expected_speedup_c": float(theory.walltime_factor(alpha, gamma, c)),
        "expected_speedup": float(theory.walltime_factor(alpha, gamma, c, r)),
        "accounted_speedup": counts["tokens_per_call"] / (gamma * c + r),
        "identical": None if temperature else len(sentences) - len(found),
        "ties": [dataclasses.asdict(one) for one in found if one.is_tie],
        "bugs": [dataclasses.asdict(one) for one in found if not one.is_tie],
        **_scores(pair, run, [reference for _, reference in sentences]),
        "compiles": run.num_compiles,
        "dtype": "float32",
        "device": jax.devices()[0].device_kind,
    }


def decode_in_turn(pair: TextPair, texts: Sequence[str], how, config, seed: int) -> Run:
    """Both ways over all texts, one at a time, in turn; who goes first alternates."""
    requests = [pair.request([text], seed + number) for number, text in enumerate(texts)]
    size = buffer_length(config, prompt_length=1, slack=config.gamma + 1)
    run = {
        "plain": lambda request: pair.plain(request, how, config),
        "fast": lambda request: pair.speculate(request, how, config),
        "plain_encoder": lambda request: _init_target(
            pair.params.target, *request[:2], model=pair.target, cache_length=size
        ),
        "fast_encoder": lambda request: _init_both(
            pair.params, *request[:2], target=pair.target, drafter=pair.drafter, cache_length=size
        ),
    }
    with compilation.counted() as compiles:
        for request in {request[0].tokens.shape: request for request in requests}.values():
            for function in run.values():
                jax.block_until_ready(function(request))
    seconds: dict[str, list[float]] = {key: [] for key in run}
    results: dict[str, list] = {key: [] for key in run}
    began = time.monotonic()
    for number, request in enumerate(requests):
        for key in list(run)[:: 1 if number % 2 else -1]:
            elapsed, result = timing.timed(lambda key=key, request=request: run[key](request))
            seconds[key].append(elapsed)
            results[key].append(jax.device_get(result) if key in ("plain", "fast") else None)
        _say_progress(number + 1, len(requests), time.monotonic() - began)
    return Run(
        requests,
        results["plain"],
        results["fast"],
        {key: np.array(values) for key, values in seconds.items()},
        compiles.count,
    )


def _say_progress(done: int, total: int, elapsed: float) -> None:
    if done % 25 == 0 or done == total:
        left = elapsed / done * (total - done)
        logger.info("%d/%d sentences, %.0f s left", done, total, left)


_init_target = partial(jax.jit, static_argnames=("model", "cache_length"))(prefill)


@partial(jax.jit, static_argnames=("target", "drafter", "cache_length"))
def _init_both(params, inputs, prompt, *, target, drafter, cache_length):
    cache = prefill(params.target, inputs, prompt, model=target, cache_length=cache_length)
    return cache, drafter.init(params.draft, inputs, prompt, cache, cache_length=cache_length)


def target_alpha(pair: TextPair, run: Run, how: Settings, config) -> tuple[float, float, int]:
    """alpha over the target's own outputs (Corollary 3.6), its standard error, tokens used."""
    betas = []
    for request, result in zip(run.requests, run.plain, strict=True):
        inputs, prompt, keys = request
        found = metrics.overlaps_on_tokens(
            pair.params,
            inputs,
            prompt,
            jnp.asarray(result.tokens),
            jnp.asarray(result.lengths),
            keys,
            target=pair.target,
            drafter=pair.drafter,
            settings=how,
            config=config,
        )
        betas.append(np.asarray(found)[~np.isnan(found)])
    flat = np.concatenate(betas)
    # Betas of one sentence are correlated, so the error is that of a ratio of sentence sums.
    mean = flat.mean()
    residuals = np.array([one.sum() - mean * one.size for one in betas])
    return float(mean), float(np.sqrt((residuals**2).sum()) / flat.size), int(flat.size)


def _per_token(results: Sequence[Any], seconds: np.ndarray) -> np.ndarray:
    """Seconds of each sentence over the mean tokens a sentence, so that sums compare per token.

    At temperature 1 the two ways draw different outputs, of different lengths.
    """
    return seconds / np.mean([int(result.lengths[0]) for result in results])


def _differences(pair: TextPair, run: Run, config) -> list[identity.Difference]:
    return [
        dataclasses.replace(one, row=number)
        for number, results in enumerate(zip(run.requests, run.plain, run.fast, strict=True))
        for one in pair.differences(*results, config)
    ]


def _scores(pair: TextPair, run: Run, references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of both ways; `bleu` and `chrf` are the speculative ones."""
    scores = {}
    for suffix, results in (("", run.fast), ("_plain", run.plain)):
        texts = [pair.vocabulary.decode(result.tokens[0]) for result in results]
        scores[f"bleu{suffix}"] = sacrebleu.corpus_bleu(texts, [references]).score
        scores[f"chrf{suffix}"] = sacrebleu.corpus_chrf(texts, [references]).score
    return scores


def as_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The records as a table to look at, one row a temperature."""
    columns = {
        "T": lambda row: f"{row['temperature']:g}",
        "gamma": lambda row: str(row["gamma"]),
        "alpha\n ": lambda row: f"{row['alpha']:.3f}",
        "alpha\nloop": lambda row: f"{row['alpha_loop']:.3f}",
        "alpha\naccepted": lambda row: f"{row['alpha_accepted']:.3f}",
        "tokens\nper call": lambda row: f"{row['tokens_per_call']:.2f}",
        "c": lambda row: f"{row['c']:.3f}",
        "r": lambda row: f"{row['verify_cost']:.2f}",
        "speed-up\n[95 % interval]": lambda row: (
            f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
        ),
        "with\nencoders": lambda row: f"{row['speedup_total']:.2f}",
        "Thm 3.8\nc alone": lambda row: f"{row['expected_speedup_c']:.2f}",
        "Thm 3.8\nc and r": lambda row: f"{row['expected_speedup']:.2f}",
        "ac-\ncounted": lambda row: f"{row['accounted_speedup']:.2f}",
        "BLEU\nplain": lambda row: f"{row['bleu']:.1f}\n{row['bleu_plain']:.1f}",
        "chrF\nplain": lambda row: f"{row['chrf']:.1f}\n{row['chrf_plain']:.1f}",
        "identical\nties": _identity_cell,
    }
    table = Table(
        title="Speculative over plain decoding, batch 1", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(show(row) for show in columns.values()))
    return table


def _identity_cell(row: dict[str, Any]) -> str:
    if row["identical"] is None:
        return "-"
    return f"{row['identical']}/{row['num_examples']}\n{len(row['ties'])}"
