"""A trained pair on real sentences. Needs ../shared, which a plain clone doesn't have."""

import collections
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import chi_square_p_value

from experiments import records, run
from specdec import metrics
from specdec.identity import full_pass
from specdec.sampling import settings
from specdec.text import load_pair

FOLDER = pathlib.Path(__file__).parent.parent / ".." / "shared" / "fixtures" / "pair_ende"
PREFIX = "translate English to German: "

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/fixtures/pair_ende"),
]


@pytest.fixture(scope="module")
def pair():
    return load_pair(
        FOLDER / "target", FOLDER / "draft_distilled", FOLDER / "spiece.model", prefix=PREFIX
    )


@pytest.fixture(scope="module")
def texts():
    lines = (FOLDER / "dev.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines]


def test_greedy_outputs_are_plain_decodings_for_every_gamma(tmp_path):
    files = dict(
        TARGET=FOLDER / "target",
        DRAFT=FOLDER / "draft_distilled",
        VOCABULARY=FOLDER / "spiece.model",
        SENTENCES=FOLDER / "dev.tsv",
    )
    bindings = [f"{name} = {str(path)!r}" for name, path in files.items()]
    run.run(["gin_configs/identical.gin"], bindings, ["."], str(tmp_path))
    rows = records.read(str(tmp_path))
    assert [row["gamma"] for row in rows] == list(range(1, 9))
    assert all(row["identical"] >= 490 and not row["bugs"] for row in rows)


def test_first_two_tokens_follow_the_targets_law_at_temperature_1(pair, texts, num_samples=4000):
    """Chi-square against the enumerated law over the 20 likeliest of each slot, and the rest."""
    how, config = settings(1.0), pair.config(gamma=3, max_new_tokens=2)
    p_values = []
    for number, text in enumerate(texts[:5]):
        request = pair.request([text] * num_samples, seed=number)
        result = pair.speculate(request, how, config)
        one = jax.tree.map(lambda leaf: leaf[:1], request[0])
        law = _law_of_two(pair, one, num_top=20)
        rows = zip(np.asarray(result.tokens), np.asarray(result.lengths), strict=True)
        counts = collections.Counter(_cell(tuple(map(int, row[:n])), law) for row, n in rows)
        p_values.append(_p_value(counts, law, num_samples))
    print("p-values of the law:", [round(value, 4) for value in p_values])
    assert min(p_values) > 1e-4


def _law_of_two(pair, inputs, num_top):
    """{(a, b): p} over likely first and second tokens; ("rest",) has what is left."""
    num_ids = pair.vocabulary.num_ids
    start = jnp.zeros((1, 1), jnp.int32)
    model, params = pair.target, pair.params.target
    first = jax.nn.softmax(full_pass(params, inputs, start, model=model)[0, 0, :num_ids])
    law = {}
    for a in np.argsort(-np.asarray(first))[:num_top].tolist():
        if a == pair.vocabulary.eos_id:
            law[(a,)] = float(first[a])
            continue
        prefix = jnp.array([[0, a]])
        second = jax.nn.softmax(full_pass(params, inputs, prefix, model=model)[0, 1, :num_ids])
        for b in np.argsort(-np.asarray(second))[:num_top].tolist():
            law[(a, b)] = float(first[a] * second[b])
    law[("rest",)] = max(0.0, 1 - sum(law.values()))
    return law


def _cell(outcome, law):
    return outcome if outcome in law else ("rest",)


def _p_value(counts, law, total):
    return chi_square_p_value(
        counts, {cell: mass for cell, mass in law.items() if total * mass > 0}
    )


def test_readings_of_alpha_agree(pair, texts):
    how, config = settings(1.0), pair.config(gamma=4, max_new_tokens=64)
    results = [
        pair.speculate(
            pair.request(sorted(texts, key=len)[200 + 20 * i : 220 + 20 * i], i), how, config
        )
        for i in range(4)
    ]
    summary = metrics.summarize(results)
    error = np.sqrt(0.25 / summary["num_tested"])
    assert abs(summary["alpha_loop"] - summary["alpha_accepted"]) < 4 * error
