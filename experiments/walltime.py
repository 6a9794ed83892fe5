"""Speed of every draft on every task: Tables 2 and 4 of the paper (arXiv 2211.17192).

Batch 1, in turn with plain decoding, as in `compare`. gamma is the one that is predicted to be the
fastest here, and beside it the paper's own.
"""

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiments import compare, paper, programs, records, tables, tune
from experiments.workloads import Sampling, Workload
from specdec import theory
from specdec.config import check_count
from specdec.text import TextPair

logger = logging.getLogger(__name__)

TUNED, PAPERS = "tuned", "paper's"


def measure(
    output_dir: str,
    *,
    workloads: Sequence[Workload],
    temperatures: Sequence[float] = (0.0, 1.0),
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 8),
    is_paper_measured: bool = True,
    num_sentences: int = 40,
    num_tuned: int = 12,
    seed: int = 0,
    cost_repeats: int = compare.COST_REPEATS,
) -> None:
    """Writes a record a workload, draft, temperature and gamma, and table_2.md and .tex of them.

    A run that was killed goes on when called again: records that are there are not made again.

    Args:
      output_dir: of the results.
      workloads: targets, tasks and drafts.
      temperatures: 0 is greedy.
      gammas: that the tuner chooses from.
      is_paper_measured: whether a row that has a counterpart in the paper is measured at that
        one's gamma, too.
      num_sentences: the task's first.
      num_tuned: of them, for tuning.
      seed: of the random numbers.
      cost_repeats: of measuring c and r.

    Raises:
      ValueError: for settings and files that make no sense.
    """
    check_count("num_tuned", num_tuned, least=1)
    check_count("cost_repeats", cost_repeats, least=1)
    compare.check_seeds(seed, num_sentences)
    targets = [one.load() for one in workloads]  # all are there, before anything runs
    tuner = Tuner(output_dir, tuple(gammas), num_tuned, seed)
    about = dict(num_sentences=num_sentences, num_tuned=num_tuned, gammas=list(gammas), seed=seed)
    records.claim(output_dir, experiment="walltime", **about)
    records.write_environment(output_dir)
    for one, target in zip(workloads, targets, strict=True):
        drafts = one.load_drafts(target)
        pairs = {name: one.pair_with(target, draft) for name, draft in drafts.items()}
        sentences = one.pairs()[:num_sentences]
        for temperature in temperatures:
            about = dict(task=one.name, temperature=float(temperature))
            tuned = tuner.gammas_of(about, pairs, sentences, one.max_new_tokens)
            for name, pair in pairs.items():
                theirs = paper.table_2(one.name, name, temperature) if is_paper_measured else None
                for choice, gamma in _wanted(tuned[name], theirs and theirs.gamma).items():
                    key = dict(experiment="walltime", **about, draft=name, choice=choice)
                    if records.is_there(output_dir, key):
                        continue
                    row = dict(target=one.target, **key, device=jax.devices()[0].device_kind)
                    at = (temperature, gamma, one.max_new_tokens, seed, cost_repeats)
                    row |= _measured(pair, sentences, *at)
                    records.append(output_dir, row)
                    logger.info("%s: gamma %d, %.2f times", key, gamma, row["speedup"])
            programs.forget()
    write_table(output_dir)


def _wanted(tuned: int, theirs: int | None) -> dict[str, int]:
    """gamma by who chose it; once, where both chose the same."""
    if theirs is None:
        return {TUNED: tuned}
    return {f"{TUNED}, {PAPERS}": tuned} if tuned == theirs else {TUNED: tuned, PAPERS: theirs}


def _measured(pair: TextPair, sentences, temperature: float, gamma: int, *settings) -> dict:
    if gamma == 0:  # plain decoding itself
        return dict(gamma=0, speedup=1.0)
    return compare.measure(
        pair, sentences, Sampling(temperature).settings, temperature, gamma, *settings
    )


@dataclasses.dataclass(frozen=True)
class Tuner:
    """Chooses gamma by prediction; what it found is recorded, and not measured again.

    Attributes:
      output_dir: of the records.
      candidates: gammas to choose from.
      num_sentences: to measure alpha on.
      seed: of the random numbers.
    """

    output_dir: str
    candidates: tuple[int, ...]
    num_sentences: int
    seed: int

    def gammas_of(
        self, about: Mapping[str, Any], pairs: Mapping[str, TextPair], sentences, max_new_tokens
    ) -> dict[str, int]:
        """By draft the gamma that is predicted to be the fastest, 0 if none beats plain decoding.

        Args:
          about: task and temperature, of the records.
          pairs: target and draft, by the draft's name.
          sentences: pairs of text; the first are tuned on.
          max_new_tokens: most tokens of an output.
        """
        key = dict(experiment="tune", **about)
        found = {name: records.find(self.output_dir, dict(key, draft=name)) for name in pairs}
        missing = {name: pair for name, pair in pairs.items() if found[name] is None}
        if missing:
            texts = [text for text, _ in sentences[: self.num_sentences]]
            how = Sampling(about["temperature"]).settings
            rows = tune.predict(missing, texts, how, self.candidates, max_new_tokens, self.seed)
            for name, of_draft in itertools.groupby(rows, key=lambda row: row["draft"]):
                best = max(of_draft, key=lambda row: row["prediction"])
                found[name] = {**best, **key, "draft": name}
                records.append(self.output_dir, found[name])
        return {name: row["gamma"] if row["prediction"] > 1 else 0 for name, row in found.items()}


def _paper(row: Mapping[str, Any]) -> str:
    names = row["task"], row["draft"]
    found = paper.table_2(*names, row["temperature"])
    if found is None:
        return "-"
    shown = f"{found.speed:g}, gamma {found.gamma}, {found.expected:g} expected"
    return paper.beside(shown, *names)


def _if_measured(show):
    return lambda row: show(row) if row["gamma"] else "-"


COLUMNS = {
    "task": lambda row: row["task"],
    "draft": lambda row: row["draft"],
    "T": lambda row: f"{row['temperature']:g}",
    "gamma": lambda row: f"{row['gamma']} ({row['choice']})",
    "alpha": _if_measured(lambda row: f"{row['alpha']:.3f}"),
    "c": _if_measured(lambda row: f"{row['c']:.3f}"),
    "r": _if_measured(lambda row: f"{row['verify_cost']:.2f}"),
    "tokens\nper call": _if_measured(lambda row: f"{row['tokens_per_call']:.2f}"),
    "eq. 1": _if_measured(lambda row: f"{theory.expected_tokens(row['alpha'], row['gamma']):.2f}"),
    "speed-up\n[95 % interval]": _if_measured(
        lambda row: f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    ),
    "Thm 3.8\nc alone": _if_measured(lambda row: f"{row['expected_speedup_c']:.2f}"),
    "Thm 3.8\nc and r": _if_measured(lambda row: f"{row['expected_speedup']:.2f}"),
    "accounted": _if_measured(lambda row: f"{row['accounted_speedup']:.2f}"),
    "in the paper": _paper,
}


def write_table(output_dir: str) -> None:
    """table_2.md and .tex, of the folder's records."""
    rows = [row for row in records.read(output_dir) if row["experiment"] == "walltime"]
    tables.show(tables.of("Speed (Tables 2 and 4)", COLUMNS, rows))
    tables.write(pathlib.Path(output_dir) / "table_2", COLUMNS, rows)
