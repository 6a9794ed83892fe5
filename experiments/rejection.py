"""One-shot rejection sampling against speculative sampling (A.2 of arXiv 2211.17192).

Rejection sampling accepts a draft with probability 1 / M, M = max_x p(x) / q(x); where q(x) = 0 <
p(x), M is infinite and nothing is ever accepted. Both are means over the same tokens.
"""

import logging
import pathlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from experiments import records, tables
from experiments.alphas import values_on
from experiments.drafts import Loaded
from experiments.translate import Decoding
from experiments.translators import Translator
from experiments.workloads import Sampling, Workload, each_missing
from specdec import metrics, theory

logger = logging.getLogger(__name__)
_REJECTION = jax.tree_util.Partial(theory.rejection_acceptance)


def measure(
    output_dir: str,
    *,
    workloads: Sequence[Workload],
    samplings: Sequence[Sampling],
    batch_size: int = 32,
    seed: int = 0,
) -> None:
    """Writes a record a workload, sampling and draft, and rejection.md and .tex made of them.

    A run that was killed goes on when called again. Arguments as for `acceptance.measure`.
    """
    targets = [one.load() for one in workloads]  # all are there, before anything runs
    records.claim(output_dir, experiment="rejection", batch_size=batch_size, seed=seed)
    records.write_environment(output_dir)
    for one, target in zip(workloads, targets, strict=True):
        decoding = Decoding(max_new_tokens=one.max_new_tokens, batch_size=batch_size, seed=seed)
        drafts = one.load_drafts(target)
        for sampling in samplings:
            _measure_one(output_dir, one, target, drafts, sampling, decoding)
    rows = records.read(output_dir)
    tables.show(tables.of("Acceptance (A.2)", COLUMNS, rows))
    tables.write(pathlib.Path(output_dir) / "rejection", COLUMNS, rows)


def _measure_one(
    output_dir: str,
    workload: Workload,
    target: Translator,
    drafts: Mapping[str, Loaded],
    sampling: Sampling,
    decoding: Decoding,
) -> None:
    about = (output_dir, "rejection", workload, target, drafts, sampling, decoding)
    for key, draft, outputs in each_missing(*about):
        how = dict(settings=sampling.settings, draft_settings=sampling.draft_settings)
        betas = values_on(outputs, target, *draft, **how)
        rejection = values_on(outputs, target, *draft, **how, statistic=_REJECTION)
        alpha, alpha_error, num_tokens = metrics.mean_over_rows(betas)
        mean, error, _ = metrics.mean_over_rows(rejection)
        known = np.concatenate(rejection)
        known = known[~np.isnan(known)]
        row = dict(target=workload.target, **key, num_tokens=num_tokens)
        row |= dict(alpha=alpha, alpha_standard_error=alpha_error)
        row |= dict(rejection=mean, rejection_standard_error=error)
        row |= dict(never=float((known == 0).mean()) if known.size else None)
        row["device"] = jax.devices()[0].device_kind
        records.append(output_dir, row)
        logger.info("%s, %s: %.3f instead of %.3f", workload.name, key["draft"], mean, alpha)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


COLUMNS: tables.Columns = {
    "task": lambda row: row["task"],
    "draft": lambda row: row["draft"],
    "T": lambda row: f"{row['temperature']:g}",
    "speculative\nsampling": lambda row: _number(row["alpha"]),
    "rejection\nsampling": lambda row: _number(row["rejection"]),
    "tokens where\nM is infinite": lambda row: _number(row["never"]),
    "tokens": lambda row: f"{row['num_tokens']:,}",
}
