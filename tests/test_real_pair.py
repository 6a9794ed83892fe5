"""The shipped pair on its own sentences: greedy identity, and the law at temperature 1."""

import collections
import dataclasses
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import chi_square_p_value

from experiments import records, run
from specdec import metrics
from specdec.identity import full_pass
from specdec.models import T5LanguageModel
from specdec.models.t5 import T5
from specdec.sampling import settings
from specdec.speculative import speculative_decode
from specdec.text import load_pair
from specdec.types import EncoderInputs

FOLDER = pathlib.Path(__file__).parent.parent / "checkpoints" / "ende"
PREFIX = "translate English to German: "
NUM_PROMPTS, NUM_SAMPLES, NUM_TOP, ROWS = 20, 20_000, 50, 2_000

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def pair():
    return load_pair(FOLDER / "target", FOLDER / "medium", FOLDER / "spiece.model", prefix=PREFIX)


@pytest.fixture(scope="module")
def texts():
    lines = (FOLDER / "sentences.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines]


def test_greedy_outputs_are_plain_decodings_for_every_gamma(tmp_path):
    files = dict(
        TARGET=FOLDER / "target",
        DRAFT=FOLDER / "medium",
        VOCABULARY=FOLDER / "spiece.model",
        SENTENCES=FOLDER / "sentences.tsv",
    )
    bindings = [f"{name} = {str(path)!r}" for name, path in files.items()]
    run.run(["gin_configs/identical.gin"], bindings, ["."], str(tmp_path))
    rows = records.read(str(tmp_path))
    assert [row["gamma"] for row in rows] == list(range(1, 9))
    for row in rows:
        assert row["identical"] + len(row["ties"]) == row["num_examples"] == 200
        assert len(row["ties"]) <= 4 and not row["bugs"]


class Encoded(NamedTuple):
    """One encoder output [1, E, D] for all rows of a batch: [B] copies of its lengths."""

    encoded: jax.Array
    lengths: jax.Array


@dataclasses.dataclass(frozen=True)
class OneEncoding(T5LanguageModel):
    """The target with its encoder run once instead of once a sample."""

    def init_cache(self, params, inputs: Encoded, cache_length: int):
        num_rows = inputs.lengths.shape[0]
        encoded = jnp.broadcast_to(inputs.encoded, (num_rows, *inputs.encoded.shape[1:]))
        return self.init_cache_over(params, encoded, inputs.lengths, cache_length)


def test_first_two_tokens_follow_the_targets_law_at_temperature_1(pair, texts):
    """Chi-square against the enumerated law over the likeliest of each slot, and the rest."""
    p_values = []
    for number, text in enumerate(texts[:NUM_PROMPTS]):
        law = _law_of_two(pair, pair.inputs([text]))
        counts = collections.Counter()
        for batch in range(NUM_SAMPLES // ROWS):
            key = jax.random.fold_in(jax.random.key(number), batch)
            counts.update(_cell(outcome, law) for outcome in _two_tokens(pair, text, key))
        assert sum(counts.values()) == NUM_SAMPLES
        p_values.append(_p_value(counts, law))
        print(f"prompt {number}: p-value {p_values[-1]:.4f} over {len(law)} outcomes", flush=True)
    assert min(p_values) > 1e-4


def _two_tokens(pair, text, key):
    """ROWS samples of the first two tokens, as tuples (shorter where a row ended)."""
    inputs = pair.inputs([text])
    encoded = T5(pair.target.config).apply(
        {"params": pair.params.target}, *inputs, method=T5.encode
    )
    result = speculative_decode(
        pair.params,
        Encoded(encoded, jnp.repeat(inputs.lengths, ROWS)),
        jnp.zeros((ROWS, 1), jnp.int32),
        jax.random.split(key, ROWS),
        target=OneEncoding(pair.target.config),
        drafter=pair.drafter,
        settings=settings(1.0),
        config=pair.config(gamma=2, max_new_tokens=2),
    )
    rows = zip(np.asarray(result.tokens), np.asarray(result.lengths), strict=True)
    return [tuple(map(int, row[:length])) for row, length in rows]


def _law_of_two(pair, inputs: EncoderInputs):
    """{(a, b): p} over likely first and second tokens; ("rest",) has what is left."""
    num_ids = pair.vocabulary.num_ids
    start = jnp.zeros((1, 1), jnp.int32)
    model, params = pair.target, pair.params.target
    first = jax.nn.softmax(full_pass(params, inputs, start, model=model)[0, 0, :num_ids])
    law = {}
    for a in np.argsort(-np.asarray(first))[:NUM_TOP].tolist():
        if a == pair.vocabulary.eos_id:
            law[(a,)] = float(first[a])
            continue
        prefix = jnp.array([[0, a]])
        second = jax.nn.softmax(full_pass(params, inputs, prefix, model=model)[0, 1, :num_ids])
        for b in np.argsort(-np.asarray(second))[:NUM_TOP].tolist():
            law[(a, b)] = float(first[a] * second[b])
    law[("rest",)] = max(0.0, 1 - sum(law.values()))
    return law


def _cell(outcome, law):
    return outcome if outcome in law else ("rest",)


def _p_value(counts, law):
    return chi_square_p_value(counts, {cell: mass for cell, mass in law.items() if mass > 0})


def test_readings_of_alpha_agree(pair, texts):
    how, config = settings(1.0), pair.config(gamma=4, max_new_tokens=64)
    batches = [sorted(texts, key=len)[20 * i : 20 * i + 20] for i in range(4)]
    results = [
        pair.speculate(pair.request(batch, i), how, config) for i, batch in enumerate(batches)
    ]
    summary = metrics.summarize(results)
    error = np.sqrt(0.25 / summary["num_tested"])
    assert abs(summary["alpha_loop"] - summary["alpha_accepted"]) < 4 * error
