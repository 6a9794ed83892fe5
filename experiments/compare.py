"""Plain against speculative decoding on the same sentences: the main experiment.

Sentence by sentence, batch 1, the two in turn, at every temperature asked for. c, r and alpha are
measured apart from the runs that they predict. One record a temperature.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich
import sacrebleu

from experiments import comparison_table, records, tables
from experiments.data import Task, first_pairs
from experiments.devices import Devices
from experiments.run import Failed
from specdec import compilation, identity, metrics, theory, timing
from specdec.autoregressive import prefill
from specdec.config import SpecConfig, buffer_length, check_count
from specdec.models.layers import checked_dtype
from specdec.sampling import Settings, settings
from specdec.text import TextPair, load_pair

logger = logging.getLogger(__name__)
# c is a small difference of noisy times.
COST_REPEATS = 11


class NotIdentical(Failed):
    """Greedy outputs differ by more than rounding: a bug."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What one temperature's sentences gave; lists have an entry a sentence.

    Attributes:
      requests: inputs, prompt and keys.
      plain, fast: Decoded, of plain and speculative decoding.
      seconds: by name: plain, fast, and the encoders' part of each.
      compiles: for warming up.
    """

    requests: list
    plain: list
    fast: list
    seconds: dict[str, np.ndarray]
    compiles: compilation.Compiles


def compare(
    output_dir: str,
    *,
    target: str,
    draft: str,
    vocabulary: str,
    task: Task,
    name: str = "compare",
    temperatures: Sequence[float] = (0.0, 1.0),
    top_k: int = 0,
    top_p: float = 1.0,
    gamma: int = 5,
    max_new_tokens: int = 128,
    num_sentences: int = 200,
    num_traced: int = 3,
    seed: int = 0,
    num_extra_ids: int = 0,
    max_source_tokens: int | None = None,
    dtype: str = "float32",
    devices: Devices | None = None,
    cost_repeats: int = COST_REPEATS,
) -> None:
    """Runs, prints a trace and a table, and writes records.jsonl and environment.json.

    Args:
      output_dir: of the results.
      target, draft, vocabulary: paths, see `specdec.text.load_pair`.
      task: sentences with references, and their prefix.
      name: of the experiment, in the records.
      temperatures: 0 is greedy.
      top_k, top_p: of target and draft, at temperatures above 0; 0 and 1 are off.
      gamma: drafts per round.
      max_new_tokens: most tokens of an output, EOS included.
      num_sentences: the task's first.
      num_traced: sentences whose rounds are shown, at the first temperature.
      seed: of the first sentence; the others' follow.
      num_extra_ids: of the vocabulary, see `Vocabulary`.
      max_source_tokens: longer sources are cut, see `TextPair`.
      dtype: of the arithmetic, float32 or bfloat16.
      devices: None = one.
      cost_repeats: of measuring c and r.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
      NotIdentical: if greedy outputs differ by more than rounding.
    """
    if not temperatures or not isinstance(temperatures, tuple | list):
        raise ValueError(f"temperatures={temperatures!r}: give a list of at least one, as (0, 1)")
    filters = dict(top_k=top_k or None, top_p=None if top_p == 1 else top_p)
    how = {temperature: settings(temperature, **filters) for temperature in temperatures}
    SpecConfig(gamma=gamma, max_new_tokens=max_new_tokens)  # refuses what makes no sense
    check_count("num_traced", num_traced, least=0)
    check_count("cost_repeats", cost_repeats, least=1)
    check_seeds(seed, num_sentences)
    sentences = first_pairs(task, num_sentences)
    layouts = (None, None) if devices is None else devices.layouts()
    pair = load_pair(
        target,
        draft,
        vocabulary,
        prefix=task.prefix,
        num_extra_ids=num_extra_ids,
        max_source_tokens=max_source_tokens,
        dtype=checked_dtype(dtype),
        layout=layouts[0],
        draft_layout=layouts[1],
    )
    pair.inputs([text for text, _ in sentences])  # refuses what doesn't fit the buckets
    records.claim(
        output_dir,
        experiment=name,
        target=target,
        draft=draft,
        vocabulary=vocabulary,
        task=dataclasses.asdict(task),
        temperatures=temperatures,
        **filters,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        num_sentences=num_sentences,
        seed=seed,
        num_extra_ids=num_extra_ids or None,
        max_source_tokens=max_source_tokens,
        dtype=None if dtype == "float32" else dtype,
        devices=None if devices is None else dataclasses.asdict(devices),
    )
    records.write_environment(output_dir)
    for text, _ in sentences[: 0 if pair.is_apart else num_traced]:
        rich.print(f"[bold]{text}[/bold]")
        shown = pair.trace(
            text,
            gamma=gamma,
            temperature=temperatures[0],
            max_new_tokens=max_new_tokens,
            **filters,
        )
        rich.print(shown)

    rows = []
    for temperature in temperatures:
        at = (how[temperature], temperature, gamma, max_new_tokens, seed, cost_repeats)
        row = measure(pair, sentences, *at)
        about = dict(experiment=name, task=task.path, target=target, draft=draft)
        rows.append({**about, **filters, **row})
        records.append(output_dir, rows[-1])
    tables.show(comparison_table.as_table(rows))
    bugs = sum(len(row["bugs"]) for row in rows)
    if bugs:
        raise NotIdentical(f"{bugs} outputs differ from plain decoding's by more than rounding")


def check_seeds(first: int, num: int) -> None:
    """Raises a ValueError unless `num` seeds from the first on are different keys to JAX."""
    check_count("seed", first, least=0)
    if first + num > 2**32:
        raise ValueError(f"seed={first}: with {num} sentences must be at most {2**32 - num}")


def measure(
    pair: TextPair,
    sentences: Sequence[tuple[str, str]],
    how: Settings,
    temperature: float,
    gamma: int,
    max_new_tokens: int,
    seed: int,
    cost_repeats: int = COST_REPEATS,
) -> dict[str, Any]:
    """One record: both ways of decoding the sentences in turn, and what predicts their times."""
    config = pair.config(gamma=gamma, max_new_tokens=max_new_tokens)
    run = decode_in_turn(pair, [text for text, _ in sentences], how, config, seed)
    counts = metrics.summarize(run.fast)
    predicted = (
        _unpredicted() if pair.is_apart else _predicted(pair, run, how, config, cost_repeats)
    )
    c, r = predicted["c"], predicted["verify_cost"]
    speedup, low, high = speedup_of(run)
    total, _, _ = metrics.ratio_interval(
        _per_token(run.plain, run.seconds["plain"]), _per_token(run.fast, run.seconds["fast"])
    )
    found = [] if temperature else _differences(pair, run, config)
    return {
        "temperature": temperature,
        "gamma": gamma,
        "batch_size": 1,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        **counts,
        **predicted,
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "speedup_total": total,
        "accounted_speedup": counts["tokens_per_call"] / (gamma * c + r),
        "identical": None if temperature else len(sentences) - len(found),
        "ties": [dataclasses.asdict(one) for one in found if one.is_tie],
        "bugs": [dataclasses.asdict(one) for one in found if not one.is_tie],
        **_scores(pair, run, [reference for _, reference in sentences]),
        "compiles": run.compiles.count,
        "compile_seconds": run.compiles.seconds,
        "dtype": pair.target.config.dtype.name,
        "device": jax.devices()[0].device_kind,
    }


def _predicted(
    pair: TextPair, run: Run, how: Settings, config: SpecConfig, cost_repeats: int
) -> dict[str, Any]:
    """alpha, c and r, measured apart from the runs, and what Theorem 3.8 makes of them."""
    alpha, alpha_error, num_alpha_tokens = target_alpha(pair, run, how, config)
    costs = timing.step_costs(
        pair.params,
        *run.requests[len(run.requests) // 2],  # a typical one
        target=pair.target,
        drafter=pair.drafter,
        settings=how,
        config=config,
        repeats=cost_repeats,
    )
    c, r = costs["c"], costs["r"]
    return {
        "alpha": alpha,
        "alpha_standard_error": alpha_error,
        "num_alpha_tokens": num_alpha_tokens,
        "c": c,
        "verify_cost": r,
        "target_seconds": costs["target_seconds"],
        "expected_speedup_c": float(theory.walltime_factor(alpha, config.gamma, c)),
        "expected_speedup": float(theory.walltime_factor(alpha, config.gamma, c, r)),
    }


def _unpredicted() -> dict[str, Any]:
    """The same entries of a draft on devices of its own: c and r are costs within one program."""
    names = "alpha alpha_standard_error c verify_cost target_seconds"
    names += " expected_speedup_c expected_speedup"
    return {"num_alpha_tokens": 0, **dict.fromkeys(names.split(), math.nan)}


def decode_in_turn(
    pair: TextPair, texts: Sequence[str], how, config, seed: int, verify_fn=None
) -> Run:
    """Both ways over all texts, one at a time, in turn; who goes first alternates.

    verify_fn is the speculative way's rule, by default the exact one.
    """
    requests = [pair.request([text], seed + number) for number, text in enumerate(texts)]
    size = buffer_length(config, prompt_length=1, slack=config.gamma + 1)
    run = {
        "plain": lambda request: pair.plain(request, how, config),
        "fast": lambda request: pair.speculate(request, how, config, verify_fn=verify_fn),
        "plain_encoder": lambda request: init_target(
            pair.params.target, *request[:2], model=pair.target, cache_length=size
        ),
        "fast_encoder": lambda request: init_both(
            pair.params, *request[:2], target=pair.target, drafter=pair.drafter, cache_length=size
        ),
    }
    if pair.is_apart:  # where no one program begins both; the draft's part counts as decoding
        run["fast_encoder"] = run["plain_encoder"]
    with compilation.counted() as compiles:
        shapes = {str(jax.tree.map(jnp.shape, request)): request for request in requests}
        for request in shapes.values():
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
        compiles,
    )


def _say_progress(done: int, total: int, elapsed: float) -> None:
    if done % 25 == 0 or done == total:
        left = elapsed / done * (total - done)
        logger.info("%d/%d sentences, %.0f s left", done, total, left)


init_target = partial(jax.jit, static_argnames=("model", "cache_length"))(prefill)


@partial(jax.jit, static_argnames=("target", "drafter", "cache_length"))
def init_both(params, inputs, prompt, *, target, drafter, cache_length):
    """What `speculate` does before its loop: the encoder, and the caches of both models."""
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
        betas.append(np.asarray(found))
    return metrics.mean_over_rows(betas)


def speedup_of(run: Run) -> tuple[float, float, float]:
    """Of decoding, encoders left out: plain over speculative time a token, 95 % interval."""
    seconds = run.seconds
    return metrics.ratio_interval(
        _per_token(run.plain, seconds["plain"] - seconds["plain_encoder"]),
        _per_token(run.fast, seconds["fast"] - seconds["fast_encoder"]),
    )


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


def _scores(pair: TextPair, run: Run, references: Sequence[str]) -> dict[str, float | None]:
    """BLEU and chrF of both ways; `bleu` and `chrf` are the speculative ones.

    None where the target has no source to be faithful to.
    """
    if not pair.target.has_encoder:
        return dict.fromkeys(("bleu", "chrf", "bleu_plain", "chrf_plain"))
    scores = {}
    for suffix, results in (("", run.fast), ("_plain", run.plain)):
        texts = [pair.vocabulary.decode(result.tokens[0]) for result in results]
        scores[f"bleu{suffix}"] = sacrebleu.corpus_bleu(texts, [references]).score
        scores[f"chrf{suffix}"] = sacrebleu.corpus_chrf(texts, [references]).score
    return scores
