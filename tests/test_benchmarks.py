"""Benchmarks of a toy pair: what is recorded follows from what was timed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments import records, run
from experiments.benchmarks import decode, rounds, step
from specdec import costs, timing
from specdec.text import load_model, load_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toys.write_pair(tmp_path_factory.mktemp("pair"))


def run_gin(name, output_dir, **macros):
    bindings = [f"{macro} = {value!r}" for macro, value in macros.items()]
    run.run([f"gin_configs/benchmarks/{name}.gin"], bindings, ["."], str(output_dir))
    return records.read(str(output_dir))


def test_the_machine_reads_and_multiplies(tmp_path):
    sizes = {"machine.machine.num_bytes": 1 << 20, "machine.machine.size": 64}
    (row,) = run_gin("machine", tmp_path, **sizes)
    assert row["bytes_per_second"] > 0 and row["operations_per_second"] > 0


def test_a_step_is_held_against_its_bytes(folder, tmp_path, monkeypatch):
    """Links of 2 s, twice as long for a block of 2, while the memory gives 1 MiB a second."""

    def seconds_per_link(chains, num_steps, repeats):
        seconds = {1: 2.0, 2: 4.0, "read": step._READ_BYTES / 8 / (1 << 20)}
        return {name: np.full(3, seconds[name]) for name in chains}

    monkeypatch.setattr(timing, "seconds_per_link", seconds_per_link)
    models = {"target": str(folder / "target"), "draft": str(folder / "shared_draft")}
    one, two, draft, _ = run_gin("step", tmp_path, MODELS=models, BLOCK_SIZES=(1, 2))
    assert [row["r"] for row in (one, two)] == [1.0, 2.0]
    params, model = load_model(folder / "target")
    expected = costs.step_bytes(params, model.config, encoder_length=64, decoder_length=36 + 1)
    assert one["bytes"] == expected
    assert one["share"] == pytest.approx(expected / 2.0 / (1 << 20))
    assert draft["model"] == "draft" and draft["bytes"] < one["bytes"]


def test_a_chain_of_blocks_is_the_greedy_continuation(folder):
    """Blocks of one: what is timed is decoding."""
    params, model = load_model(folder / "target")
    settings = dict(encoder_length=6, cache_length=16)
    cache = step._random_cache(params, model, 2, settings)
    token, slots = jnp.zeros((2, 1), jnp.int32), cache
    for position in range(3):
        logits, slots = model.extend(params, slots, token, jnp.full(2, position))
        token = jnp.argmax(logits, -1).astype(jnp.int32)
    found = step.block_chain(params, cache, model=model, block_size=1, num_steps=3)
    np.testing.assert_array_equal(found, token)


def test_a_cache_too_short_for_the_chain_is_refused(folder, tmp_path):
    models = {"a": str(folder / "target")}
    with pytest.raises(ValueError, match="cache_length=64: must be 80 or more"):
        run_gin("step", tmp_path, MODELS=models, CACHE_LENGTH=64)
    with pytest.raises(ValueError, match="num_steps=32: must be a multiple of 64"):
        run_gin("step", tmp_path, MODELS=models, **{"step.step.num_steps": 32})


def test_as_record_docstring_example():
    seconds = {"target": [5.0], "drafts": [1.0], "verify": [6.0], "round": [8.0]}
    row = rounds.as_record({name: np.array(times) for name, times in seconds.items()})
    assert row["rest_seconds"] == 1.0 and row["overhead"] == pytest.approx(1 / 7)
    assert row["verify_seconds"] == 6.0


def test_rounds_of_a_pair_are_recorded(folder, tmp_path):
    rows = run_gin(
        "round",
        tmp_path,
        TARGET=str(folder / "target"),
        DRAFTS={"shared": str(folder / "shared_draft")},
        VOCABULARY=str(folder / "spiece.model"),
        SENTENCES=str(folder / "sentences.tsv"),
        GAMMAS=(2,),
        TEMPERATURES=(0.0,),
    )
    (row,) = rows
    assert row["round_seconds"] > 0 and row["device"] == jax.devices()[0].device_kind


def decode_toy(folder, output_dir, **macros):
    return run_gin(
        "decode",
        output_dir,
        TARGET=str(folder / "target"),
        DRAFT=str(folder / "shared_draft"),
        VOCABULARY=str(folder / "spiece.model"),
        SENTENCES=str(folder / "sentences.tsv"),
        MAX_NEW_TOKENS=8,
        **{"decode.decode.repeats": 2, **macros},
    )


@pytest.mark.soak
def test_decoding_is_timed_over_batches_gammas_and_lengths(folder, tmp_path):
    macros = dict(GAMMAS=(1, 2), BATCH_SIZES=(1, 2), NUM_SENTENCES=4)
    rows = decode_toy(folder, tmp_path, **macros)
    assert [(row["batch_size"], row["gamma"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in rows:
        assert row["identical"] == row["num_rows"] == 4
        assert row["num_tokens"] == row["num_plain_tokens"]
        assert len(row["speedups"]) == 2
        assert 0 < row["c_hat"] < 1 < row["operations"]
        assert row["memory"] > 1 and row["plain_memory"] > 1


@pytest.mark.soak
def test_longer_buffers_and_sources_change_shapes_alone(folder, tmp_path):
    rows = decode_toy(
        folder, tmp_path, GAMMAS=(1,), NUM_SENTENCES=2, CACHE_LENGTHS=(16, 32), SOURCE_LENGTHS=(40,)
    )
    assert [row["buffer"] for row in rows] == [16, 32]
    assert rows[0]["num_tokens"] == rows[1]["num_tokens"]


def test_sources_of_a_length_are_sentences_in_a_row(folder):
    pair = load_pair(folder / "target", folder / "shared_draft", folder / "spiece.model")
    texts = [text for text, _ in toys.sentences()[:3]]
    ids = pair.vocabulary.encode(texts)
    _, second = decode.requests_of(pair, texts, decode.Shape(1, None, 30), seed=0)[:2]
    tokens = [*ids[1], *ids[2], *ids[0], *ids[1], *ids[2], *ids[0]][:29]
    np.testing.assert_array_equal(second[0].tokens, [[*tokens, 1]])
    np.testing.assert_array_equal(second[0].lengths, [30])


def test_decode_refuses_what_makes_no_sense(folder, tmp_path):
    for macros, says in (
        (dict(GAMMAS=(0,)), "gammas=.*from 1"),
        (dict(BATCH_SIZES=(100,), NUM_SENTENCES=4), "a batch of 100: only 4 sentences"),
        (dict(CACHE_LENGTHS=(4,)), "cache_length=4 <"),
    ):
        with pytest.raises(ValueError, match=says):
            decode_toy(folder, tmp_path, **macros)
