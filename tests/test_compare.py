"""The comparison through its gin file, as a user runs it."""

import json

import pytest
import toys

from experiments import compare, records, run

KEYS = """experiment task target draft temperature top_k top_p gamma batch_size num_examples
num_tokens alpha alpha_loop alpha_accepted accept_counts tokens_per_call c verify_cost speedup
speedup_low speedup_high speedup_total expected_speedup_c expected_speedup accounted_speedup
identical ties bleu compiles dtype device""".split()


def bindings(folder, **more):
    given = dict(
        TARGET=folder / "target",
        DRAFT=folder / "draft",
        VOCABULARY=folder / "spiece.model",
        SENTENCES=folder / "sentences.tsv",
    )
    quoted = [f"{name} = {str(path)!r}" for name, path in given.items()]
    return quoted + [f"{name} = {value!r}" for name, value in more.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toys.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def output(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    small = bindings(folder, NUM_SENTENCES=4, MAX_NEW_TOKENS=10, GAMMA=2, TOP_K=20, TOP_P=0.9)
    run.run(["gin_configs/compare.gin"], small, ["."], str(output))
    return output


def test_records_hold_every_key(output):
    rows = records.read(str(output))
    assert [row["temperature"] for row in rows] == [0.0, 1.0]
    for row in rows:
        assert set(KEYS) <= set(row)
        assert row["num_examples"] == 4 and row["gamma"] == 2
        assert row["top_k"] == 20 and row["top_p"] == 0.9
    assert rows[0]["identical"] == 4 and rows[0]["ties"] == [] and rows[0]["bugs"] == []


def test_what_is_derived_follows_from_what_is_measured(output):
    for row in records.read(str(output)):
        round_cost = row["gamma"] * row["c"] + row["verify_cost"]
        assert row["accounted_speedup"] == pytest.approx(row["tokens_per_call"] / round_cost)
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert sum(row["accept_counts"]) == row["num_target_calls"]


def test_configuration_and_environment_lie_beside_the_records(output):
    assert "compare.compare.gamma = %GAMMA" in (output / "config.gin").read_text()
    environment = json.loads((output / "environment.json").read_text())
    assert environment["num_devices"] >= 1 and "jax" in environment["packages"]


def test_a_bug_ends_the_run_with_an_error(folder, tmp_path, monkeypatch):
    right = compare.TextPair.speculate

    def wrong(self, *args, **kwargs):
        result = right(self, *args, **kwargs)
        return result.replace(tokens=(result.tokens + 1) % 100)

    monkeypatch.setattr(compare.TextPair, "speculate", wrong)
    small = bindings(folder, NUM_SENTENCES=2, MAX_NEW_TOKENS=10, GAMMA=2, TEMPERATURES=(0.0,))
    with pytest.raises(compare.NotIdentical, match="2 outputs differ"):
        run.run(["gin_configs/compare.gin"], small, ["."], str(tmp_path))
    assert len(records.read(str(tmp_path))[0]["bugs"]) == 2


def test_greedy_identity_is_recorded_for_every_gamma(folder, tmp_path):
    small = bindings(folder, NUM_SENTENCES=6, MAX_NEW_TOKENS=10, GAMMAS=(1, 3), BATCH_SIZE=3)
    run.run(["gin_configs/identical.gin"], small, ["."], str(tmp_path))
    rows = records.read(str(tmp_path))
    assert [row["gamma"] for row in rows] == [1, 3]
    assert all(row["identical"] + len(row["ties"]) == 6 and not row["bugs"] for row in rows)


def test_batches_that_do_not_fill_are_refused(folder, tmp_path):
    small = bindings(folder, NUM_SENTENCES=5, BATCH_SIZE=3)
    with pytest.raises(ValueError, match="5 sentences don't fill batches of 3"):
        run.run(["gin_configs/identical.gin"], small, ["."], str(tmp_path))


@pytest.mark.parametrize(
    "fault, message",
    [
        (dict(GAMMAS=()), r"gammas=\(\): .* at least one"),
        (dict(GAMMAS=3), "gammas=3: .* at least one"),
        (dict(BATCH_SIZE=0), "batch_size=0: .* 1 or more"),
        (dict(NUM_SENTENCES=0), "num_sentences=0: .* 1 or more"),
    ],
)
def test_identity_refuses_settings_that_check_nothing(folder, tmp_path, fault, message):
    with pytest.raises(ValueError, match=message):
        run.run(["gin_configs/identical.gin"], bindings(folder, **fault), ["."], str(tmp_path))
