"""Which draft and which gamma are fastest here: measured, predicted, confirmed, written down.

alpha of every draft on the target's own outputs, c of every draft and r of every gamma give a
prediction for each pair of them (by `theory.expected_calls`, which knows how long outputs are and
how acceptances cluster). The best predictions are then measured. gamma = 0, plain decoding, is a
legal answer.
"""

import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments import compare, records, tables
from experiments.data import Task, first_pairs
from specdec import metrics, theory, timing
from specdec.sampling import Settings, settings
from specdec.text import TextPair, load_pair

logger = logging.getLogger(__name__)


def tune(
    output_dir: str,
    *,
    target: str,
    drafts: Mapping[str, str],
    vocabulary: str,
    task: Task,
    temperature: float = 0.0,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 8),
    max_new_tokens: int = 128,
    num_sentences: int = 24,
    num_confirmed: int = 3,
    seed: int = 0,
) -> None:
    """Prints what it finds, and writes records.jsonl and tuned.gin, which compares the choice.

    Args:
      output_dir: of the results.
      target, vocabulary: paths, see `specdec.text.load_pair`; drafts: folders by name.
      task: sentences, and their prefix.
      temperature: 0 is greedy.
      gammas: to choose from.
      max_new_tokens: most tokens of an output.
      num_sentences: of the task, its first.
      num_confirmed: best predictions that are measured.
      seed: of the first sentence; the others' follow.

    Raises:
      ValueError: for settings and files that make no sense, before anything compiles.
    """
    if not drafts or not gammas or min(gammas) < 1:
        raise ValueError(
            f"drafts={drafts}, gammas={gammas}: give at least one draft, gammas from 1"
        )
    how = settings(temperature)
    texts = [text for text, _ in first_pairs(task, num_sentences)]
    pairs = {
        name: load_pair(target, path, vocabulary, prefix=task.prefix)
        for name, path in drafts.items()
    }
    about = dict(target=target, drafts=dict(drafts), task=task.path, temperature=temperature)
    records.claim(output_dir, experiment="tune", **about, num_sentences=num_sentences, seed=seed)
    records.write_environment(output_dir)
    rows = [
        {"experiment": "tune", **row, **about, "device": jax.devices()[0].device_kind}
        for row in predict(pairs, texts, how, gammas, max_new_tokens, seed)
    ]
    best = sorted(rows, key=lambda row: -row["prediction"])[:num_confirmed]
    for row in best:
        pair = pairs[row["draft"]]
        config = pair.config(gamma=row["gamma"], max_new_tokens=max_new_tokens)
        logger.info("measuring %s, gamma %d", row["draft"], row["gamma"])
        run = compare.decode_in_turn(pair, texts, how, config, seed)
        row["speedup"], row["speedup_low"], row["speedup_high"] = compare.speedup_of(run)
    for row in rows:
        records.append(output_dir, row)
    choice = max(best, key=lambda row: row["speedup"])
    tables.show(tables.of("Draft and gamma", _COLUMNS, rows))
    print(verdict(choice))
    write_gin(
        pathlib.Path(output_dir) / "tuned.gin",
        TARGET=target,
        DRAFT=drafts[choice["draft"]],
        VOCABULARY=vocabulary,
        SENTENCES=task.path,
        PREFIX=task.prefix,
        GAMMA=choice["gamma"] if choice["speedup"] > 1 else 0,
        TEMPERATURES=(temperature,),
    )


def predict(
    pairs: Mapping[str, TextPair],
    texts: Sequence[str],
    how: Settings,
    gammas: Sequence[int],
    max_new_tokens: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Yields alpha, c, r, tokens per call and the predicted speed-up of every draft and gamma.

    What is the target's own, its outputs and r, is measured once, before the first draft. A draft
    is taken to be accepted alike at every place of a round, which flatters one that guesses all
    places at once; gammas that it can't draft are left out.

    Raises:
      ValueError: if a draft can draft none of the gammas.
    """
    of_draft = {name: _possible(name, pair, gammas) for name, pair in pairs.items()}
    one = next(iter(pairs.values()))
    config = one.config(gamma=4, max_new_tokens=max_new_tokens)
    requests = [one.request([text], seed + number) for number, text in enumerate(texts)]
    outputs = [jax.device_get(one.plain(request, how, config)) for request in requests]
    num_tokens = sum(int(output.lengths[0]) for output in outputs)
    typical = requests[len(requests) // 2]
    r = timing.verify_costs(
        one.params, *typical, gammas=gammas, target=one.target, settings=how, config=config
    )
    for name, pair in pairs.items():
        betas = betas_of(pair, requests, outputs, how, config)
        alpha, _, _ = metrics.mean_over_rows(betas)
        costs = _draft_costs(pair, typical, how, of_draft[name], max_new_tokens)
        logger.info("%s: alpha %.3f, drafts of a round %s", name, alpha, costs)
        for gamma, cost in costs.items():
            calls = sum(theory.expected_calls(row, gamma) for row in betas)
            row = dict(draft=name, gamma=gamma, alpha=alpha, c=cost / gamma, r=r[gamma])
            row["tokens_per_call"] = num_tokens / calls
            row["prediction"] = row["tokens_per_call"] / (cost + r[gamma])
            yield row


def _possible(name: str, pair: TextPair, gammas: Sequence[int]) -> list[int]:
    most = getattr(pair.drafter, "max_gamma", max(gammas))
    found = [gamma for gamma in gammas if gamma <= most]
    if not found:
        raise ValueError(
            f"gammas={tuple(gammas)}: {name} drafts at most {most} tokens; add a gamma up to that"
        )
    return found


def _draft_costs(
    pair: TextPair, request, how: Settings, gammas: Sequence[int], max_new_tokens: int
) -> dict[int, float]:
    """gamma c for every gamma, of its least and greatest: by the line through them.

    Drafting one by one costs in proportion to gamma, copying or drafting at once the same.
    """
    ends = sorted({min(gammas), max(gammas)})
    costs = timing.draft_costs(
        pair.params,
        *request,
        gammas=ends,
        target=pair.target,
        drafter=pair.drafter,
        settings=how,
        config=pair.config(gamma=max(ends), max_new_tokens=max_new_tokens),
    )
    # Nothing costs less than nothing; measured, next to nothing can.
    return {
        gamma: max(0.0, float(np.interp(gamma, ends, list(costs.values())))) for gamma in gammas
    }


def betas_of(pair: TextPair, requests, outputs, how: Settings, config) -> list[np.ndarray]:
    """The acceptance probability of every token of the target's outputs: [N] each."""
    found = []
    for request, output in zip(requests, outputs, strict=True):
        inputs, prompt, keys = request
        betas = metrics.overlaps_on_tokens(
            pair.params,
            inputs,
            prompt,
            output.tokens,
            output.lengths,
            keys,
            target=pair.target,
            drafter=pair.drafter,
            settings=how,
            config=config,
        )
        found.append(np.asarray(betas)[0, : int(output.lengths[0])])
    return found


def verdict(choice: Mapping[str, Any]) -> str:
    """What to use, and why, in a sentence or two."""
    cost = choice["gamma"] * choice["c"] + choice["r"]
    about = (
        f"{choice['tokens_per_call']:.2f} tokens a round, which costs {cost:.2f} plain steps "
        f"(gamma c = {choice['gamma'] * choice['c']:.2f}, r = {choice['r']:.2f})"
    )
    if choice["speedup"] <= 1:
        return (
            f"gamma = 0, plain decoding: the best of the others, {choice['draft']} with gamma = "
            f"{choice['gamma']}, is {choice['speedup']:.2f} times as fast; it should give {about}."
        )
    return (
        f"{choice['draft']} with gamma = {choice['gamma']}, {choice['speedup']:.2f} times as fast "
        f"as plain decoding: {about}."
    )


def write_gin(path: pathlib.Path, **macros: Any) -> None:
    """A gin file that compares the choice with plain decoding."""
    lines = [f"{name} = {value!r}" for name, value in macros.items()]
    head = [
        "# Made by gin_configs/tune.gin.",
        "#   python -m experiments.run --gin_file=THIS_FILE --output_dir=DIR",
        'include "gin_configs/compare.gin"',
    ]
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text("\n".join([*head, *lines]) + "\n")
    partial.replace(path)


_COLUMNS = {
    "draft": lambda row: row["draft"],
    "gamma": lambda row: str(row["gamma"]),
    "alpha": lambda row: f"{row['alpha']:.3f}",
    "c": lambda row: f"{row['c']:.3f}",
    "r": lambda row: f"{row['r']:.2f}",
    "tokens per call": lambda row: f"{row['tokens_per_call']:.2f}",
    "predicted": lambda row: f"{row['prediction']:.2f}",
    "measured": lambda row: f"{row['speedup']:.2f}" if "speedup" in row else "",
}
