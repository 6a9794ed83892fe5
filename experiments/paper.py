"""The paper's own measurements (arXiv 2211.17192), to stand beside ours."""

from typing import NamedTuple


class Theoretical(NamedTuple):
    """A row of Table 1: factors of operations and speed, at c = 0 and c_hat = 0."""

    alpha: float
    gamma: int
    operations: float
    speed: float


TABLE_1 = (
    Theoretical(0.6, 2, 1.53, 1.96),
    Theoretical(0.7, 3, 1.58, 2.53),
    Theoretical(0.8, 2, 1.23, 2.44),
    Theoretical(0.8, 5, 1.63, 3.69),
    Theoretical(0.9, 2, 1.11, 2.71),
    Theoretical(0.9, 10, 1.60, 6.86),
)


class Measured(NamedTuple):
    """A row of Tables 2 and 4: T5-XXL, batch 1, one TPU-v4.

    Attributes:
      task, draft, temperature, gamma, alpha: what was run.
      speed: measured, times their T5X decoding.
      c: cost of a draft run in target runs.
      expected: by Theorem 3.8. Where `speed` exceeds it, and even the tokens per round, T5X's
        decoding was slower a step than their own loop's (the paper says so in A.3).
    """

    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: float
    speed: float
    c: float
    expected: float

    @property
    def name(self) -> str:
        """Of an experiment that measures the same."""
        return f"table 2, {self.task}, {self.draft}, T={self.temperature:g}"


TABLES_2_AND_4 = (
    Measured("EnDe", "small", 0.0, 7, 0.75, 3.4, 0.02, 3.2),
    Measured("EnDe", "base", 0.0, 7, 0.80, 2.8, 0.04, 3.3),
    Measured("EnDe", "large", 0.0, 7, 0.82, 1.7, 0.11, 2.5),
    Measured("EnDe", "small", 1.0, 7, 0.62, 2.6, 0.02, 2.3),
    Measured("EnDe", "base", 1.0, 5, 0.68, 2.4, 0.04, 2.4),
    Measured("EnDe", "large", 1.0, 3, 0.71, 1.4, 0.11, 2.0),
    Measured("CNNDM", "small", 0.0, 5, 0.65, 3.1, 0.02, 2.4),
    Measured("CNNDM", "base", 0.0, 5, 0.73, 3.0, 0.04, 2.6),
    Measured("CNNDM", "large", 0.0, 3, 0.74, 2.2, 0.11, 2.0),
    Measured("CNNDM", "small", 1.0, 5, 0.53, 2.3, 0.02, 1.9),
    Measured("CNNDM", "base", 1.0, 3, 0.55, 2.2, 0.04, 1.8),
    Measured("CNNDM", "large", 1.0, 3, 0.56, 1.7, 0.11, 1.6),
)


# Table 3: alpha by temperature, 10,000 tokens each, for a task and a draft. The tasks' targets: T5
# XXL (EnDe, CNNDM), a GPT-like model of 97M parameters on LM1B, LaMDA of 137B in dialogue, whose
# outputs at T=1 pass a top-40 filter. The text says that alpha is higher at T=0 for all models; the
# GPT-like pair's is not.
TABLE_3: dict[tuple[str, str], dict[float, float]] = {
    ("LM", "unigram"): {0.0: 0.03, 1.0: 0.03},
    ("LM", "bigram"): {0.0: 0.05, 1.0: 0.05},
    ("LM", "6M"): {0.0: 0.88, 1.0: 0.89},
    ("EnDe", "unigram"): {0.0: 0.08, 1.0: 0.07},
    ("EnDe", "bigram"): {0.0: 0.20, 1.0: 0.19},
    ("EnDe", "small"): {0.0: 0.75, 1.0: 0.62},
    ("EnDe", "base"): {0.0: 0.80, 1.0: 0.68},
    ("EnDe", "large"): {0.0: 0.82, 1.0: 0.71},
    ("CNNDM", "unigram"): {0.0: 0.13, 1.0: 0.08},
    ("CNNDM", "bigram"): {0.0: 0.23, 1.0: 0.16},
    ("CNNDM", "small"): {0.0: 0.65, 1.0: 0.53},
    ("CNNDM", "base"): {0.0: 0.73, 1.0: 0.55},
    ("CNNDM", "large"): {0.0: 0.74, 1.0: 0.56},
    ("dialogue", "100M"): {0.0: 0.61, 1.0: 0.57},
    ("dialogue", "2B"): {0.0: 0.71, 1.0: 0.71},
    ("dialogue", "8B"): {0.0: 0.75, 1.0: 0.74},
}


# Table 5: alpha under lenience l for drafts of T5-XXL on EnDe, standard sampling; and the argmax
# case, which the text gives for T5-small. The text's speeds for sampling (2.5, 3.1, 3.6 and 5 at
# c = .015) don't follow from Theorem 3.8, whose best over gamma are 2.33, 2.94, 3.45 and 4.79.
TABLE_5: dict[tuple[str, float], dict[float, float]] = {
    ("unigram", 1.0): {1.0: 0.07, 0.5: 0.10, 0.3: 0.11, 0.1: 0.16},
    ("bigram", 1.0): {1.0: 0.19, 0.5: 0.23, 0.3: 0.25, 0.1: 0.32},
    ("small", 1.0): {1.0: 0.62, 0.5: 0.71, 0.3: 0.76, 0.1: 0.84},
    ("base", 1.0): {1.0: 0.68, 0.5: 0.80, 0.3: 0.83, 0.1: 0.90},
    ("small", 0.0): {1.0: 0.75, 0.5: 0.75, 0.3: 0.80, 0.1: 0.87},
}


# Which of the paper's tasks and drafts one of ours stands beside: by place in the ladder, not by
# size. Ours are some hundred times smaller, and restoring stands in for CNN/DM's copying alone.
_TASKS = {"translate": "EnDe", "restore": "CNNDM"}
_DRAFTS: dict[str, dict[str, str]] = {
    "EnDe": {"medium": "base"},
    "CNNDM": {"medium": "base"},
    "LM": {"medium": "6M"},
    "dialogue": {"small": "100M", "medium": "2B"},
}


def counterpart(task: str, draft: str) -> tuple[str, str]:
    """The paper's task and draft for ours; the same names where nothing else is said."""
    task = _TASKS.get(task, task)
    return task, _DRAFTS.get(task, {}).get(draft, draft)


def table_3(task: str, draft: str, temperature: float, top_k: int, top_p: float) -> float | None:
    """The paper's alpha for one of our rows, None if it has none."""
    key = counterpart(task, draft)
    # LaMDA's filter.
    expected = 40 if key[0] == "dialogue" and temperature else 0
    if (top_k, top_p) != (expected, 1.0):
        return None
    return TABLE_3.get(key, {}).get(temperature)


def table_2(task: str, draft: str, temperature: float) -> Measured | None:
    """The paper's row of Tables 2 and 4 for one of ours, None if it has none."""
    key = (*counterpart(task, draft), temperature)
    rows = {(row.task, row.draft, row.temperature): row for row in TABLES_2_AND_4}
    return rows.get(key)


def table_5(draft: str, temperature: float, lenience: float) -> float | None:
    """The paper's alpha under lenience for a draft of ours on EnDe, None if it has none."""
    _, draft = counterpart("EnDe", draft)
    return TABLE_5.get((draft, temperature), {}).get(lenience)


def beside(shown: str, task: str, draft: str) -> str:
    """A number of the paper's, and whose it is where that has another name than ours."""
    found = counterpart(task, draft)
    names = [theirs for theirs, ours in zip(found, (task, draft), strict=True) if theirs != ours]
    return f"{shown} ({', '.join(names)})" if names else shown
