"""The tuner's choice is the fastest of what it measured, and its gin file runs."""

import numpy as np
import pytest
import toys

from experiments import compare, records, run, tune
from specdec import metrics, theory
from specdec.sampling import settings
from specdec.text import load_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toys.write_pair(tmp_path_factory.mktemp("pair"))


def run_tuner(folder, output, **macros):
    given = dict(
        TARGET=str(folder / "target"),
        DRAFTS={name: str(folder / name) for name in ("draft", "shared_draft")},
        VOCABULARY=str(folder / "spiece.model"),
        SENTENCES=str(folder / "sentences.tsv"),
        GAMMAS=(1, 2),
        NUM_SENTENCES=3,
        MAX_NEW_TOKENS=8,
        **macros,
    )
    bindings = [f"{name} = {value!r}" for name, value in given.items()]
    run.run(["gin_configs/tune.gin"], bindings, ["."], str(output))
    return records.read(str(output))


@pytest.mark.soak
@pytest.mark.parametrize("speedups, gamma", [((1.5, 2.0, 1.2), None), ((0.9, 0.7, 0.8), 0)])
def test_the_fastest_measured_is_chosen_or_plain_decoding(
    folder, tmp_path, monkeypatch, capsys, speedups, gamma
):
    results = iter([(speed, speed, speed) for speed in speedups])
    monkeypatch.setattr(compare, "speedup_of", lambda run: next(results))
    rows = run_tuner(folder, tmp_path)
    assert len(rows) == 4
    measured = [row for row in rows if "speedup" in row]
    predictions = [row["prediction"] for row in rows if "speedup" not in row]
    assert len(measured) == 3 and min(row["prediction"] for row in measured) >= max(predictions)
    best = max(measured, key=lambda row: row["speedup"])
    text = (tmp_path / "tuned.gin").read_text()
    assert f"GAMMA = {best['gamma'] if gamma is None else gamma}\n" in text
    assert f"DRAFT = {str(folder / best['draft'])!r}" in text
    said = capsys.readouterr().out
    assert ("gamma = 0, plain decoding" in said) == (gamma == 0)
    for row in rows:
        cost = row["gamma"] * row["c"] + row["r"]
        assert row["prediction"] == pytest.approx(row["tokens_per_call"] / cost)
    run.parse_config([str(tmp_path / "tuned.gin")], ["NUM_SENTENCES = 1"], ["."])


def test_predicted_tokens_per_call_are_those_of_the_loop_at_temperature_0(folder, tmp_path):
    """Then nothing is left to chance: the rounds of each output follow from its betas."""

    pair = load_pair(folder / "target", folder / "shared_draft", folder / "spiece.model")
    how, config = settings(0.0), pair.config(gamma=2, max_new_tokens=8)
    requests = [pair.request([text], 0) for text, _ in toys.sentences()[:6]]
    outputs = [pair.plain(request, how, config) for request in requests]
    betas = tune.betas_of(pair, requests, outputs, how, config)
    calls = [theory.expected_calls(row, 2) for row in betas]
    results = [pair.speculate(request, how, config) for request in requests]
    np.testing.assert_allclose(calls, [int(result.num_target_calls[0]) for result in results])
    assert metrics.summarize(results)["num_tokens"] == sum(row.size for row in betas)


def test_gamma_0_is_not_to_be_chosen_from(folder, tmp_path):
    with pytest.raises(ValueError, match="gammas from 1"):
        run_tuner(folder, tmp_path, **{"tune.tune.gammas": (0, 1)})
