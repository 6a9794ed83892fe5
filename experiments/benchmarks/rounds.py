"""A round of the speculative loop, split into drafts, the target's run, and the loop's own work."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from experiments import records, tables
from experiments.data import Task, first_pairs
from specdec import timing
from specdec.sampling import settings
from specdec.text import load_pair


def rounds(
    output_dir: str,
    *,
    target: str,
    drafts: Mapping[str, str],
    vocabulary: str,
    task: Task,
    gammas: Sequence[int] = (4,),
    temperatures: Sequence[float] = (0.0, 1.0),
    repeats: int = 31,
) -> None:
    """Times rounds of every draft, gamma and temperature on the task's first sentence.

    Args:
      output_dir: of the records.
      target, vocabulary: paths, see `specdec.text.load_pair`; drafts: folders by name.
      task: where the sentence comes from, and its prefix.
      gammas, temperatures: to go through.
      repeats: of the interleaved measurement; many, for the rest is a small difference.
    """
    ((sentence, _),) = first_pairs(task, 1)
    about = dict(target=target, drafts=dict(drafts), task=task.path)
    records.claim(output_dir, experiment="round", **about)
    records.write_environment(output_dir)
    rows = []
    for name, path in drafts.items():
        pair = load_pair(target, path, vocabulary, prefix=task.prefix)
        for gamma in gammas:
            for temperature in temperatures:
                seconds = timing.round_costs(
                    pair.params,
                    *pair.request([sentence], 0),
                    target=pair.target,
                    drafter=pair.drafter,
                    settings=settings(temperature),
                    config=pair.config(gamma=gamma, max_new_tokens=128),
                    repeats=repeats,
                )
                key = dict(experiment="round", draft=name, gamma=gamma, temperature=temperature)
                rows.append({**key, **as_record(seconds), "target": target})
                rows[-1]["device"] = jax.devices()[0].device_kind
                records.append(output_dir, rows[-1])
    tables.show(tables.of("A round of the loop, in ms", _COLUMNS, rows))


def as_record(seconds: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Medians of seconds, and of shares within a repeat.

    Example: drafts 1 s, verify 6 s, round 8 s -> rest 1 s, overhead 1/7: what the round takes
    beyond drafts and verify, in units of these two.
    """
    parts = seconds["drafts"] + seconds["verify"]
    row = {f"{name}_seconds": float(np.median(times)) for name, times in seconds.items()}
    row["rest_seconds"] = float(np.median(seconds["round"] - parts))
    row["overhead"] = float(np.median(seconds["round"] / parts - 1))
    return row


_COLUMNS = {
    "draft": lambda row: row["draft"],
    "gamma": lambda row: str(row["gamma"]),
    "T": lambda row: f"{row['temperature']:g}",
    "plain step": lambda row: f"{1e3 * row['target_seconds']:.3f}",
    "drafts": lambda row: f"{1e3 * row['drafts_seconds']:.3f}",
    "verify": lambda row: f"{1e3 * row['verify_seconds']:.3f}",
    "round": lambda row: f"{1e3 * row['round_seconds']:.3f}",
    "rest": lambda row: f"{1e3 * row['rest_seconds']:.3f}",
    "rest / (drafts + verify)": lambda row: f"{100 * row['overhead']:.1f} %",
}
