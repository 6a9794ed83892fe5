"""The claims' verdicts, from records made by hand."""

import pytest

from experiments import claims, records


def alpha(draft, temperature, value, **changes):
    row = dict(experiment="acceptance", task="EnDe", draft=draft, temperature=temperature)
    row |= dict(top_k=0, top_p=1.0, alpha=value, beta_autocorrelation=0.3)
    return {**row, **changes}


def speed(draft, temperature, **changes):
    row = dict(experiment="walltime", task="EnDe", draft=draft, temperature=temperature)
    row |= dict(choice="tuned", gamma=3, alpha=0.6, alpha_accepted=0.6, c=0.05, speedup=1.7)
    row |= dict(tokens_per_call=2.1, identical=None, ties=[], num_examples=10)
    return {**row, **changes}


ALPHAS = [
    alpha("small", 0.0, 0.62),
    alpha("small", 1.0, 0.59),
    alpha("medium", 0.0, 0.69),
    alpha("medium", 1.0, 0.70),
    alpha("medium", 1.0, 0.1, top_k=40),
    alpha("uniform", 1.0, 2e-4),
]
SPEEDS = [
    speed("small", 0.0, identical=9, ties=[{}]),
    speed("small", 1.0, speedup=1.5),
    speed("bigram", 0.0, gamma=0, speedup=1.0),
    speed("small", 1.0, choice="paper's", gamma=7, tokens_per_call=1.5),
]


@pytest.mark.parametrize(
    "claim, number, verdict",
    [
        ("alpha is higher", "small 0.62 / 0.59; EnDe medium 0.69 / 0.70", "doesn't here (1 of 2)"),
        ("drafts about 100", "EnDe T=0 0.62; EnDe T=1 0.59", "holds"),
        ("larger drafts", "EnDe T=0 0.62 < 0.69; EnDe T=1 0.59 < 0.70", "holds"),
        ("a bigram's alpha", "-", "can't be tested here"),
        ("uniformly random", "EnDe T=1 0.0002", "holds"),
        ("an improving gamma", "alpha 0.60, c 0.05, 1.70x", "holds"),
        # (1 + .6) / (1 + .05) = 1.52
        ("it is at least", "1.70 of 1.52; EnDe small T=1 1.50 of 1.52", "doesn't here (1 of 2)"),
        ("a bigram, at next", "EnDe T=0 1.00", "doesn't here (0 of 1)"),
        ("outputs are identical", "EnDe small T=0 9/10", "holds"),
        ("reads of weights", "T=1 1.50 of 2.46", "doesn't here (2 of 3)"),
        ("acceptances are independent", "0.30", "doesn't here (0 of 4)"),
    ],
)
def test_verdicts(tmp_path, claim, number, verdict):
    for name, rows in (("alphas", ALPHAS), ("speeds", SPEEDS)):
        (tmp_path / name).mkdir()
        for row in rows:
            records.append(str(tmp_path / name), row)
    claims.claims(str(tmp_path), alphas=str(tmp_path / "alphas"), speeds=str(tmp_path / "speeds"))
    lines = (tmp_path / "claims.md").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {claim}"))
    assert number in line and line.endswith(f"| {verdict} |")


def test_without_records_there_is_nothing_to_judge(tmp_path):
    with pytest.raises(ValueError, match="make Tables 2 and 3 first"):
        claims.claims(str(tmp_path), alphas=str(tmp_path), speeds=str(tmp_path))


def test_of_many_cases_those_that_fail_come_first():
    found = claims.Found([f"case {n}" for n in range(10)], [n != 9 for n in range(10)])
    assert found.number.startswith("case 9; case 0; ") and found.number.endswith("; and 2 more")
    assert found.verdict == "doesn't here (9 of 10)"
