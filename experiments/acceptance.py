"""alpha of every draft on every task: Table 3 of the paper (arXiv 2211.17192).

alpha is the mean of sum_x min(p, q) over tokens that the target generated (Corollary 3.6). Beside
it stand the two readings that the speculative loop gives, alpha_loop and alpha_accepted.
"""

import dataclasses
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiments import accept_counts, paper, pictures, records, tables
from experiments.alphas import alpha_on, speculate_on
from experiments.drafts import Loaded
from experiments.translate import Decoding, Translated
from experiments.translators import Translator
from experiments.workloads import LADDER, Sampling, Workload, each_missing
from specdec import metrics
from specdec.config import SpecConfig
from specdec.generation import Decoded

logger = logging.getLogger(__name__)


def measure(
    output_dir: str,
    *,
    workloads: Sequence[Workload],
    samplings: Mapping[str, Sequence[Sampling]],
    gamma: int = 4,
    batch_size: int = 32,
    seed: int = 0,
) -> None:
    """Writes a record a workload, sampling and draft, and what `write_table` makes of them.

    A run that was killed goes on when called again: records that are there are not made again.

    Args:
      output_dir: of the results.
      workloads: targets, tasks and drafts.
      samplings: temperatures and filters by a workload's name; "" = for those that have no own.
      gamma: drafts a round, for alpha_loop and alpha_accepted.
      batch_size: rows of a batch.
      seed: of the random numbers.

    Raises:
      ValueError: for settings and files that make no sense.
    """
    names = [one.name for one in workloads]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"workloads {names}: give at least one, each a name of its own")
    SpecConfig(gamma=gamma)
    targets = [one.load() for one in workloads]  # all are there, before anything runs
    about = dict(gamma=gamma, batch_size=batch_size, seed=seed)
    records.claim(output_dir, experiment="acceptance", **about)
    records.write_environment(output_dir)
    for one, target in zip(workloads, targets, strict=True):
        drafts = one.load_drafts(target)
        decoding = Decoding(max_new_tokens=one.max_new_tokens, batch_size=batch_size, seed=seed)
        for sampling in samplings.get(one.name, samplings.get("", ())):
            _measure_one(output_dir, one, target, drafts, sampling, decoding, gamma)
    write_table(output_dir)


def _measure_one(
    output_dir: str,
    workload: Workload,
    target: Translator,
    drafts: Mapping[str, Loaded],
    sampling: Sampling,
    decoding: Decoding,
    gamma: int,
) -> None:
    """The records of a workload and sampling that are not there yet."""
    about = (output_dir, "acceptance", workload, target, drafts, sampling, decoding)
    for key, (drafter, params), outputs in each_missing(*about):
        how = dict(settings=sampling.settings, draft_settings=sampling.draft_settings)
        row = dict(target=workload.target, gamma=gamma, **key)
        row |= alpha_on(outputs, target, drafter, params, **how)
        row |= loop_readings(
            outputs, speculate_on(outputs, target, drafter, params, gamma=gamma, **how)
        )
        row["device"] = jax.devices()[0].device_kind
        records.append(output_dir, row)
        logger.info("%s, %s, %s: alpha %.3f", workload.name, sampling, key["draft"], row["alpha"])


def loop_readings(outputs: Sequence[Translated], results: Sequence[Decoded]) -> dict[str, Any]:
    """What the speculative loop itself says of the same requests, as entries of a record."""
    counts = metrics.summarize(results)
    counts["num_examples"] = sum(len(batch.indices) for batch in outputs)
    return {**counts, "alpha_by_position": metrics.alpha_by_position(counts["accept_counts"])}


COLUMNS = {
    "task": lambda row: row["task"],
    "draft": lambda row: row["draft"],
    "sampling": lambda row: str(_sampling(row)),
    "alpha": lambda row: f"{row['alpha']:.3f} ± {row['alpha_standard_error']:.3f}",
    "in the paper": lambda row: _paper(row),
    "alpha\nloop": lambda row: f"{row['alpha_loop']:.3f}",
    "alpha\naccepted": lambda row: f"{row['alpha_accepted']:.3f}",
    "by position": lambda row: " ".join(f"{one:.2f}" for one in row["alpha_by_position"][:4]),
    "beta's auto-\ncorrelation": lambda row: _number(row["beta_autocorrelation"]),
    "tokens": lambda row: f"{row['num_alpha_tokens']:,}",
}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _sampling(row: Mapping[str, Any]) -> Sampling:
    return Sampling(**{field.name: row[field.name] for field in dataclasses.fields(Sampling)})


def _paper(row: Mapping[str, Any]) -> str:
    names = row["task"], row["draft"]
    found = paper.table_3(*names, row["temperature"], row["top_k"], row["top_p"])
    return "-" if found is None else paper.beside(f"{found:.2f}", *names)


def write_table(output_dir: str) -> None:
    """table_3.md and .tex, and accept_counts.png and .svg, of the folder's records."""
    rows = records.read(output_dir)
    tables.show(tables.of("alpha (Table 3)", COLUMNS, rows))
    tables.write(pathlib.Path(output_dir) / "table_3", COLUMNS, rows)
    models = [row for row in rows if row["draft"] in LADDER and _sampling(row) in _UNFILTERED]
    if models:
        try:
            accept_counts.draw(models, output_dir)
        except pictures.MissingPlots as error:
            logger.warning("no picture drawn: %s", error)


_UNFILTERED = (Sampling(0.0), Sampling(1.0))
