"""What lenience gains and what it costs: Table 5 of the paper (arXiv 2211.17192, A.5).

A draft x stands if p(x) / (l q(x)) passes; at temperature 0 if p(x) >= l max p, where the paper
prints <=, a slip. The law is no longer the target's: no token gets more than p(x) / l. How far it
moves is told in total variation, and what becomes of the translations in BLEU.
"""

import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu

from experiments import paper, records, tables
from experiments.acceptance import loop_readings
from experiments.alphas import speculate_on, target_outputs, values_on
from experiments.compare import decode_in_turn, speedup_of
from experiments.drafts import Loaded
from experiments.translate import Decoding
from experiments.translators import Translator
from experiments.workloads import Sampling, Workload
from specdec import metrics, theory
from specdec.config import SpecConfig, check_count
from specdec.verification import lenient_greedy, lenient_sampling

logger = logging.getLogger(__name__)


def measure(
    output_dir: str,
    *,
    workload: Workload,
    temperatures: Sequence[float] = (0.0, 1.0),
    leniences: Sequence[float] = (1.0, 0.5, 0.3, 0.1),
    gamma: int = 4,
    num_timed: int = 40,
    batch_size: int = 32,
    seed: int = 0,
) -> None:
    """Writes a record a draft, temperature and lenience, and table_5.md and .tex made of them.

    A run that was killed goes on when called again.

    Args:
      output_dir: of the results.
      workload: target, task with references, drafts.
      temperatures: 0 is greedy.
      leniences: l, in (0, 1]; 1 is lossless.
      gamma: drafts a round.
      num_timed: sentences, the task's first, that speed is measured on, batch 1.
      batch_size: rows of a batch, for everything else.
      seed: of the random numbers.

    Raises:
      ValueError: for settings and files that make no sense.
    """
    SpecConfig(gamma=gamma)
    check_count("num_timed", num_timed, least=1)
    for lenience in leniences:
        lenient_sampling(lenience)  # refuses what makes no sense
    target = workload.load()
    about = dict(gamma=gamma, num_timed=num_timed, batch_size=batch_size, seed=seed)
    records.claim(output_dir, experiment="lenience", target=workload.target, **about)
    records.write_environment(output_dir)
    decoding = Decoding(max_new_tokens=workload.max_new_tokens, batch_size=batch_size, seed=seed)
    drafts = workload.load_drafts(target)
    for temperature in temperatures:
        sampling = Sampling(temperature)
        outputs: list = []
        for name, draft in drafts.items():
            for lenience in leniences:
                key = dict(experiment="lenience", draft=name, temperature=float(temperature))
                key["lenience"] = float(lenience)
                if records.is_there(output_dir, key):
                    continue
                sources = [source for source, _ in workload.pairs()]
                outputs = outputs or target_outputs(target, sources, sampling.of(decoding))
                row = dict(task=workload.name, target=workload.target, gamma=gamma, **key)
                row |= _measured(workload, target, draft, outputs, sampling, lenience, gamma)
                row |= _timed(workload, target, draft, sampling, lenience, gamma, num_timed, seed)
                row["device"] = jax.devices()[0].device_kind
                records.append(output_dir, row)
                logger.info("%s: alpha %.3f, %.2f times", key, row["alpha"], row["speedup"])
    rows = records.read(output_dir)
    tables.show(tables.of("Lenience (Table 5)", COLUMNS, rows))
    tables.write(pathlib.Path(output_dir) / "table_5", COLUMNS, rows)


def rule_of(temperature: float, lenience: float) -> jax.tree_util.Partial:
    """The lenient rule for a temperature."""
    return (lenient_sampling if temperature else lenient_greedy)(lenience)


def _measured(
    workload: Workload,
    target: Translator,
    draft: Loaded,
    outputs: list,
    sampling: Sampling,
    lenience: float,
    gamma: int,
) -> dict[str, Any]:
    """alpha, the law's shift and the quality of lenient outputs.

    At temperature 0 alpha is what the loop accepts: on one-hot laws min(p / l, q) is no reading.
    """
    how = dict(settings=sampling.settings)
    rule = rule_of(sampling.temperature, lenience)
    results = speculate_on(outputs, target, *draft, gamma=gamma, verify_fn=rule, **how)
    row = loop_readings(outputs, results)
    row |= _quality(workload, target, outputs, results)
    if not sampling.temperature:
        return {**row, "alpha": row["alpha_accepted"], "shift": None}
    value = jnp.float32(lenience)
    reading = lambda function: metrics.mean_over_rows(
        values_on(
            outputs,
            target,
            *draft,
            **how,
            statistic=jax.tree_util.Partial(function, lenience=value),
        )
    )
    alpha, error, num_tokens = reading(theory.overlap)
    shift, _, _ = reading(theory.lenience_shift)
    row |= dict(alpha=alpha, alpha_standard_error=error, num_alpha_tokens=num_tokens)
    return {**row, "shift": shift}


def _quality(workload: Workload, target: Translator, outputs, results) -> dict[str, float]:
    """BLEU and chrF of the lenient outputs."""
    references = [reference for _, reference in workload.pairs()]
    indices = np.concatenate([batch.indices for batch in outputs])
    texts = [
        target.vocabulary.decode(result.tokens[row])
        for batch, result in zip(outputs, results, strict=True)
        for row in range(len(batch.indices))
    ]
    expected = [references[index] for index in indices]
    return {
        "bleu": sacrebleu.corpus_bleu(texts, [expected]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [expected]).score,
    }


def _timed(
    workload: Workload,
    target: Translator,
    draft: Loaded,
    sampling: Sampling,
    lenience: float,
    gamma: int,
    num_timed: int,
    seed: int,
) -> dict[str, float]:
    """Speed-up over plain decoding, batch 1, in turn."""
    pair = workload.pair_with(target, draft)
    texts = [text for text, _ in workload.pairs()[:num_timed]]
    config = pair.config(gamma=gamma, max_new_tokens=workload.max_new_tokens)
    rule = rule_of(sampling.temperature, lenience)
    run = decode_in_turn(pair, texts, sampling.settings, config, seed, verify_fn=rule)
    speedup, low, high = speedup_of(run)
    return dict(speedup=speedup, speedup_low=low, speedup_high=high, num_timed=len(texts))


def _paper(row: Mapping[str, Any]) -> str:
    found = paper.table_5(row["draft"], row["temperature"], row["lenience"])
    return "-" if found is None else paper.beside(f"{found:.2f}", "EnDe", row["draft"])


COLUMNS: tables.Columns = {
    "draft": lambda row: row["draft"],
    "T": lambda row: f"{row['temperature']:g}",
    "l": lambda row: f"{row['lenience']:g}",
    "alpha": lambda row: f"{row['alpha']:.3f}",
    "in the paper": _paper,
    "tokens\nper call": lambda row: f"{row['tokens_per_call']:.2f}",
    "speed-up\n[95 % interval]": lambda row: (
        f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    ),
    "BLEU": lambda row: f"{row['bleu']:.1f}",
    "chrF": lambda row: f"{row['chrf']:.1f}",
    "shift of the law\n(total variation)": lambda row: (
        "-" if row["shift"] is None else f"{row['shift']:.3f}"
    ),
}
