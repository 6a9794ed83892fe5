"""The paper's claims in words (arXiv 2211.17192), each beside our number, with a verdict.

Read from the records of Tables 2 and 3, nothing is measured here. A verdict is computed from the
numbers that stand beside it; where the records that it needs are not there, it says so.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments import records, tables
from experiments.workloads import LADDER
from specdec import theory

SHOWN = 8  # cases of a claim; all of them stand in Tables 2 and 3
HOLDS, DOESNT, CANT = "holds", "doesn't here", "can't be tested here"
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Records to judge by.

    Attributes:
      alphas: of `acceptance`, without filters.
      speeds: of `walltime`.
      unused: of `walltime`, where plain decoding was the choice.
    """

    alphas: Sequence[Row]
    speeds: Sequence[Row]
    unused: Sequence[Row]


@dataclasses.dataclass(frozen=True)
class Found:
    """Attributes: cases: ours, in words; holds: whether each does."""

    cases: Sequence[str]
    holds: Sequence[bool]

    @property
    def number(self) -> str:
        """The cases, if there are many those that don't hold first, and how many more there are."""
        if len(self.cases) <= SHOWN:
            return "; ".join(self.cases)
        order = sorted(range(len(self.cases)), key=lambda case: self.holds[case])
        shown = "; ".join(self.cases[case] for case in order[:SHOWN])
        return f"{shown}; and {len(self.cases) - SHOWN} more"

    @property
    def verdict(self) -> str:
        return HOLDS if all(self.holds) else f"{DOESNT} ({sum(self.holds)} of {len(self.holds)})"


Check = Callable[[Measured], Found | None]


def claims(output_dir: str, *, alphas: str, speeds: str) -> None:
    """Writes claims.md and .tex.

    Args:
      output_dir: of the tables.
      alphas: folder of a Table 3 (gin_configs/paper/table3.gin).
      speeds: folder of a Table 2 (gin_configs/paper/table2.gin).

    Raises:
      ValueError: if neither has records.
    """
    found = judged(alphas, speeds)
    tables.show(tables.of("The paper's claims", COLUMNS, found))
    tables.write(pathlib.Path(output_dir) / "claims", COLUMNS, found)


def judged(alphas: str, speeds: str) -> list[dict[str, str]]:
    """Claim, number and verdict, a row a claim; see `claims`."""
    unfiltered = [
        row
        for row in records.read(alphas)
        if row["experiment"] == "acceptance" and not row["top_k"] and row["top_p"] == 1
    ]
    timed = [row for row in records.read(speeds) if row["experiment"] == "walltime"]
    if not (unfiltered or timed):
        raise ValueError(f"no records in {alphas!r} or {speeds!r}: make Tables 2 and 3 first")
    used, unused = ([row for row in timed if bool(row["gamma"]) == one] for one in (True, False))
    measured = Measured(unfiltered, used, unused)
    return [
        {"claim": claim, "number": "-", "verdict": CANT}
        if (result := check(measured)) is None
        else {"claim": claim, "number": result.number, "verdict": result.verdict}
        for claim, check in CLAIMS.items()
    ]


COLUMNS: tables.Columns = {
    "claim": lambda row: row["claim"],
    "here": lambda row: row["number"],
    "verdict": lambda row: row["verdict"],
}


def _by(rows: Iterable[Row], *names: str) -> dict[tuple, Row]:
    return {tuple(row[name] for name in names): row for row in rows}


def _all(parts: Iterable[tuple[str, bool]]) -> Found | None:
    parts = list(parts)
    if not parts:
        return None
    return Found(*map(list, zip(*parts, strict=True)))


def greedy_is_easier(measured: Measured) -> Found | None:
    """alpha at T = 0 against T = 1, model drafts."""
    rows = _by(measured.alphas, "task", "draft", "temperature")
    return _all(
        (f"{task} {draft} {cold['alpha']:.2f} / {rows[task, draft, 1.0]['alpha']:.2f}",
         cold["alpha"] > rows[task, draft, 1.0]["alpha"])
        for (task, draft, temperature), cold in rows.items()
        if temperature == 0 and draft in LADDER and (task, draft, 1.0) in rows
    )  # fmt: skip


def small_drafts_do(measured: Measured) -> Found | None:
    """alpha of the smallest model draft."""
    return _all(
        (f"{row['task']} T={row['temperature']:g} {row['alpha']:.2f}", 0.5 <= row["alpha"] <= 0.9)
        for row in measured.alphas
        if row["draft"] == "small"
    )


def alpha_of(draft: str, least: float) -> Check:
    """Whether a draft's alpha is at least so high."""

    def check(measured: Measured) -> Found | None:
        return _all(
            (f"{row['task']} T={row['temperature']:g} {row['alpha']:.4g}", row["alpha"] > least)
            for row in measured.alphas
            if row["draft"] == draft
        )

    return check


def speed_of(draft: str) -> Check:
    """Whether a draft makes decoding faster at the gamma that was chosen."""

    def check(measured: Measured) -> Found | None:
        return _all(
            (f"{row['task']} T={row['temperature']:g} {row['speedup']:.2f}", row["speedup"] > 1)
            for row in (*measured.speeds, *measured.unused)
            if row["draft"] == draft and row["choice"].startswith("tuned")
        )

    return check


def improves_iff_alpha_exceeds_c(measured: Measured) -> Found | None:
    """Corollary 3.9, in the measured speeds of the tuned gamma."""
    return _all(
        (f"{_name(row)}: alpha {row['alpha']:.2f}, c {row['c']:.2f}, {row['speedup']:.2f}x",
         (row["alpha"] > row["c"]) == (row["speedup"] > 1))
        for row in measured.speeds
        if row["choice"].startswith("tuned")
    )  # fmt: skip


def improves_at_least(measured: Measured) -> Found | None:
    """Corollary 3.9's bound, (1 + alpha) / (1 + c); it takes verification for free (r = 1)."""
    rows = [
        row
        for row in measured.speeds
        if row["choice"].startswith("tuned") and row["alpha"] > row["c"]
    ]
    bounds = [float(theory.least_improvement(row["alpha"], row["c"])) for row in rows]
    return _all(
        (f"{_name(row)} {row['speedup']:.2f} of {bound:.2f}", row["speedup"] >= bound)
        for row, bound in zip(rows, bounds, strict=True)
    )


def oracle_gains(measured: Measured) -> Found | None:
    """How much an oracle that knows where the draft fails would add to the best fixed gamma."""
    parts = []
    for row in measured.speeds:
        if (
            not row["choice"].startswith("tuned")
            or row["draft"] not in LADDER
            or row["alpha"] <= row["c"]
        ):
            continue
        alpha, c = row["alpha"], max(row["c"], 0.0)
        best = max(float(theory.walltime_factor(alpha, gamma, c)) for gamma in range(1, 30))
        gain = float(theory.oracle_factor(alpha, c)) / best - 1
        parts.append((f"{_name(row)} {100 * gain:.0f} %", gain <= 0.6))
    return _all(parts)


def outputs_are_identical(measured: Measured) -> Found | None:
    """Greedy outputs of both ways."""
    return _all(
        (f"{_name(row)} {row['identical']}/{row['num_examples']}",
         row["identical"] + len(row["ties"]) == row["num_examples"])
        for row in measured.speeds
        if row["identical"] is not None
    )  # fmt: skip


def reads_fall(measured: Measured) -> Found | None:
    """Target runs a token, measured, against equation 1 at the alpha that the loop had.

    Copying is left out: it drafts in some rounds only, so equation 1 is not about it.
    """
    parts = []
    for row in measured.speeds:
        if row["draft"] == "copy":
            continue
        expected = float(theory.memory_factor(row["alpha_accepted"], row["gamma"]))
        ratio = row["tokens_per_call"] / expected
        parts.append((f"{_name(row)} {row['tokens_per_call']:.2f} of {expected:.2f}", ratio > 0.9))
    return _all(parts)


def independent(measured: Measured) -> Found | None:
    """Whether neighbouring betas are independent, as equation 1 takes them."""
    rows = [row for row in measured.alphas if row.get("beta_autocorrelation") is not None]
    return _all(
        (f"{row['task']} {row['draft']} T={row['temperature']:g} {row['beta_autocorrelation']:.2f}",
         abs(row["beta_autocorrelation"]) < 0.1)
        for row in rows
        if row["draft"] in LADDER
    )  # fmt: skip


def larger_drafts_agree_more(measured: Measured) -> Found | None:
    """alpha over the ladder of a task."""
    parts = []
    groups = itertools.groupby(
        sorted(
            (row for row in measured.alphas if row["draft"] in LADDER),
            key=lambda row: (row["task"], row["temperature"], LADDER.index(row["draft"])),
        ),
        key=lambda row: (row["task"], row["temperature"]),
    )
    for (task, temperature), rows in groups:
        values = [row["alpha"] for row in rows]
        text = " < ".join(f"{value:.2f}" for value in values)
        if len(values) > 1:
            parts.append((f"{task} T={temperature:g} {text}", bool((np.diff(values) > 0).all())))
    return _all(parts)


def _name(row: Row) -> str:
    return f"{row['task']} {row['draft']} T={row['temperature']:g}"


CLAIMS: dict[str, Check] = {
    "alpha is higher at T=0 than at T=1, for sharper laws agree more (Table 3)": greedy_is_easier,
    "drafts about 100 times smaller have alpha .5 to .9 (section 4)": small_drafts_do,
    "larger drafts have higher alpha (Table 3)": larger_drafts_agree_more,
    "a bigram's alpha is well above 0 (.05 and more, Table 3)": alpha_of("bigram", 0.05),
    "a bigram, at next to no cost, makes decoding faster (section 4.2)": speed_of("bigram"),
    "uniformly random tokens have alpha above 0 (section 3.6)": alpha_of("uniform", 0.0),
    "random tokens, too, make decoding a little faster (section 3.6)": speed_of("uniform"),
    "an improving gamma exists iff alpha > c (Corollary 3.9)": improves_iff_alpha_exceeds_c,
    "it is at least (1 + alpha) / (1 + c) (Corollary 3.9)": improves_at_least,
    "an oracle's gamma would add up to 60 % (section 3.5)": oracle_gains,
    "outputs are identical (section 2)": outputs_are_identical,
    "reads of weights fall by E(tokens), where every round drafts (section 3.4)": reads_fall,
    "acceptances are independent (the simplification of section 3.1)": independent,
}
