"""Translating a file: every line in its order, whatever the batches, and on from where it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments import run, translate
from experiments.translate import Decoding, plan, translate_all, translate_to
from experiments.translators import load_translator
from specdec.text import load_pair
from specdec.vocabulary import Vocabulary

SMALL = Decoding(max_new_tokens=8, batch_size=4, buckets=(12, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toys.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def translator(folder):
    return load_translator(str(folder / "target"), Vocabulary(folder / "spiece.model"))


def sources(size=10):
    texts = [source for source, _ in toys.sentences()]
    # Of different lengths, neither rising nor falling.
    return [" ".join(text.split()[: 2 + 3 * index % 7]) for index, text in enumerate(texts[:size])]


def bindings(folder, **more):
    given = dict(
        MODEL=folder / "target",
        VOCABULARY=folder / "spiece.model",
        SENTENCES=folder / "sentences.tsv",
    )
    small = dict(LIMIT=7, MAX_NEW_TOKENS=8, BATCH_SIZE=4, BUCKETS=(32,))
    given = {name: str(path) for name, path in given.items()}
    return [f"{name} = {value!r}" for name, value in {**given, **small, **more}.items()]


def test_plan_docstring_example():
    planned = plan([3, 9, 2, 5, 4], buckets=(4, 8), batch_size=2)
    found = [(length, indices.tolist()) for length, indices in planned]
    assert found == [(4, [2, 0]), (4, [4]), (8, [3])]


def test_outputs_are_those_of_each_source_alone(folder, translator, tmp_path):
    outputs = translate_to(tmp_path / "out.tsv", translator, sources(), SMALL)
    pair = load_pair(folder / "target", folder / "draft", folder / "spiece.model")
    for source, output in zip(sources(), outputs, strict=True):
        (alone,) = pair.decode([source], max_new_tokens=8, is_plain=True)
        assert output == alone.text
    lines = (tmp_path / "out.tsv").read_text().splitlines()
    assert lines == [f"{s}\t{o}" for s, o in zip(sources(), outputs, strict=True)]


def test_batches_have_few_shapes_and_rows_that_fill_them_up_are_empty(translator):
    found = list(translate_all(translator, sources(), SMALL))
    assert {batch.inputs.tokens.shape for batch in found} == {(4, 12), (4, 32)}
    for batch in found:
        assert (batch.decoded.lengths[len(batch.indices) :] == 0).all()
    assert sorted(index for batch in found for index in batch.indices) == list(range(10))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_killed_run_goes_on_and_equals_an_uninterrupted_one(
    translator, tmp_path, monkeypatch, temperature
):
    how = Decoding(temperature, max_new_tokens=8, batch_size=4, buckets=(32,))
    whole = translate_to(tmp_path / "whole.tsv", translator, sources(), how)
    decode, calls = translate.autoregressive_decode, []

    def dying(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*args, **kwargs)

    monkeypatch.setattr(translate, "autoregressive_decode", dying)
    with pytest.raises(KeyboardInterrupt):
        translate_to(tmp_path / "killed.tsv", translator, sources(), how)
    with (tmp_path / "killed.tsv.part").open("a") as file:
        file.write("9\tcut sho")  # a line without its end
    assert translate_to(tmp_path / "killed.tsv", translator, sources(), how) == whole
    assert len(calls) == 2 + 2  # three batches, of which the first was there
    assert (tmp_path / "killed.tsv").read_text() == (tmp_path / "whole.tsv").read_text()
    assert not (tmp_path / "killed.tsv.part").exists()
    # A whole file is read.
    assert translate_to(tmp_path / "killed.tsv", translator, sources(), how) == whole
    assert len(calls) == 4


def test_sources_over_the_largest_bucket_get_an_empty_output(translator, tmp_path, caplog):
    texts = ["the dog", " ".join(["the dog sees"] * 9), "the cat"]
    outputs = translate_to(tmp_path / "out.tsv", translator, texts, SMALL)
    assert outputs[1] == "" and outputs[0] and outputs[2]
    assert "1 of 3 sources have more than 32 tokens" in caplog.text


def test_bytes_that_would_break_a_line_are_spaces():
    assert translate._in_one_line("a\tb\r\nc\n") == "a b c"


def test_a_draft_translates_by_the_targets_encoder(folder):
    vocabulary = Vocabulary(folder / "spiece.model")
    target = load_translator(str(folder / "target"), vocabulary)
    alone = load_translator(str(folder / "shared_draft"), vocabulary, target=target)
    (batch,) = translate_all(alone, ["the dog sees"], SMALL)
    draft, target = alone.model.drafter.model, alone.model.target

    @jax.jit
    def full_pass(params, inputs, tokens):
        cache = draft.share_encoder(params.draft, target.init_cache(params.target, inputs, 9), 9)
        return draft.extend(params.draft, cache, tokens, jnp.zeros(4, jnp.int32))[0]

    tokens = jnp.pad(jnp.asarray(batch.decoded.tokens[:, :-1]), [(0, 0), (1, 0)])
    logits = np.asarray(full_pass(alone.params, batch.inputs, tokens))
    best = logits[0, :, : vocabulary.num_ids].argmax(-1)
    size = int(batch.decoded.lengths[0])
    assert batch.decoded.tokens[0, :size].tolist() == best[:size].tolist()


def test_the_gin_file_writes_a_training_task(folder, tmp_path):
    run.run(["gin_configs/translate.gin"], bindings(folder), ["."], str(tmp_path))
    lines = (tmp_path / "translations.tsv").read_text().splitlines()
    texts = [source for source, _ in toys.sentences()]
    assert [line.split("\t")[0] for line in lines] == [
        texts[index] for index in np.linspace(0, 80, 7).astype(int)
    ]


@pytest.mark.parametrize(
    "fault, message",
    [
        (dict(MODEL="nowhere"), "no checkpoint at 'nowhere'"),
        (dict(SENTENCES="nowhere.tsv"), "no data file at 'nowhere.tsv'"),
        (dict(TEMPERATURE=-1.0), "temperature=-1.0"),
        (dict(BATCH_SIZE=0), "batch_size=0"),
        (dict(MAX_NEW_TOKENS=0), "max_new_tokens=0"),
        (dict(BUCKETS=(32, 16)), "buckets=.*ascend"),
        (dict(FILTER_COLUMN=0, FILTER_VALUE="none"), "no sentences in"),
    ],
)
def test_bad_settings_are_refused_by_name(folder, tmp_path, fault, message):
    with pytest.raises(ValueError, match=message):
        run.run(["gin_configs/translate.gin"], bindings(folder, **fault), ["."], str(tmp_path))


def test_a_draft_without_an_encoder_asks_for_its_target(folder, tmp_path):
    config = bindings(folder, MODEL=str(folder / "shared_draft"))
    with pytest.raises(ValueError, match="reads its target's encoder output: give that target"):
        run.run(["gin_configs/translate.gin"], config, ["."], str(tmp_path))


def test_another_configuration_is_refused(folder, tmp_path):
    run.run(["gin_configs/translate.gin"], bindings(folder), ["."], str(tmp_path))
    with pytest.raises(ValueError, match="another configuration"):
        run.run(["gin_configs/translate.gin"], bindings(folder, SEED=1), ["."], str(tmp_path))


def test_keys_are_the_sources_own(translator):
    how = Decoding(1.0, max_new_tokens=8, batch_size=4, buckets=(32,))
    first = {
        index: jax.random.key_data(key).tolist()
        for batch in translate_all(translator, sources(), how)
        for index, key in zip(batch.indices.tolist(), batch.keys, strict=False)
    }
    assert len(set(map(tuple, first.values()))) == 10
