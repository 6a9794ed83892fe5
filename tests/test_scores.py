"""Scores of a toy pair: each record holds what an independent reading gives; none is made twice."""

import dataclasses
import functools
import shutil

import gin
import jax
import numpy as np
import pytest
import toys

from experiments import alphas, compare, records, run, scores
from experiments.data import FileTask
from experiments.quality import is_repetitive, quality
from experiments.scores import NamedTask
from experiments.translate import Decoding
from experiments.translators import load_translator
from specdec import sampling
from specdec.models.t5 import T5
from specdec.text import load_pair
from specdec.vocabulary import START_ID, Vocabulary

HOW = Decoding(max_new_tokens=8, batch_size=4, buckets=(32,))


def test_repetitive_docstring_example():
    assert is_repetitive("a b c d a b c d a b c d") and is_repetitive("a a a a a a")
    assert not is_repetitive("a b c d a b c d") and not is_repetitive("a a a a a")
    assert not is_repetitive("a a a") and not is_repetitive("")


def test_quality_by_hand():
    found = quality(["a b c d", "x x x x x x"], ["a b c d", "x x x x"])
    assert found["length_ratio"] == 10 / 8
    assert found["repetition_share"] == 1 / 2
    assert quality(["a b c d"], ["a b c d"])["bleu"] == pytest.approx(100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = toys.write_pair(tmp_path_factory.mktemp("pair"))
    lines = (folder / "sentences.tsv").read_text().splitlines()
    kinds = ["lohelp", "manpages", "ddtp"]
    labelled = "".join(f"{line}\t{kinds[index % 3]}\n" for index, line in enumerate(lines))
    (folder / "heldout.tsv").write_text(labelled)
    # The corpus has two more sources.
    (folder / "train.tsv").write_text(labelled + "a\tein\tgimphelp\nb\tder\tdebhandbook\n")
    return folder


def call(folder, output_dir, **changes):
    parts = [
        NamedTask(
            kind, FileTask(str(folder / "heldout.tsv"), filter_column=2, filter_value=kind, limit=n)
        )
        for kind, n in (("lohelp", 3), ("manpages", 2))
    ]
    given = dict(
        target=str(folder / "target"),
        vocabulary=str(folder / "spiece.model"),
        test_sets=[
            *(dataclasses.replace(part, is_heldout=True) for part in parts),
            NamedTask("far", FileTask(str(folder / "sentences.tsv"), limit=3)),
        ],
        drafts={"shared": str(folder / "shared_draft")},
        decoding=HOW,
        earlier={"before": {"shared": str(folder / "shared_draft")}},
        bigram_tasks=[FileTask(str(folder / "train.tsv"))],
    )
    scores.score(str(output_dir), **{**given, **changes})
    return records.read(str(output_dir))


@pytest.fixture(scope="module")
def output(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    call(folder, output)
    return output


def find(rows, **key):
    (row,) = [row for row in rows if all(row.get(name) == key[name] for name in key)]
    return row


def test_every_model_and_test_set_has_a_row_and_every_draft_and_temperature(output):
    rows = records.read(str(output))
    translations = [row for row in rows if row["kind"] == "translation"]
    assert {(row["model"], row["test_set"]) for row in translations} == {
        (model, name)
        for model in ("target", "shared")
        for name in ("lohelp", "manpages", "far", "heldout")
    }
    found = {
        (row["draft"], row["stage"], row["temperature"]) for row in rows if row["kind"] == "alpha"
    }
    drafts = [("shared", "final"), ("shared", "before"), ("bigram", "")]
    assert found == {(*draft, temperature) for draft in drafts for temperature in (0.0, 1.0)}


def test_the_pooled_row_is_of_all_held_out_sentences(output):
    rows = records.read(str(output))
    parts = [find(rows, model="target", test_set=name) for name in ("lohelp", "manpages")]
    pooled = find(rows, kind="translation", model="target", test_set="heldout")
    assert pooled["num_examples"] == 5
    sizes = [part["num_loss_tokens"] for part in parts]
    assert pooled["num_loss_tokens"] == sum(sizes)
    losses = [part["loss"] for part in parts]
    assert pooled["loss"] == pytest.approx(np.average(losses, weights=sizes))


@pytest.mark.parametrize("name", ["target", "shared"])
def test_loss_is_that_of_a_full_pass_over_the_real_ids(folder, output, name):
    vocabulary = Vocabulary(folder / "spiece.model")
    pair = load_pair(folder / "target", folder / "shared_draft", folder / "spiece.model")
    side = (pair.target, pair.drafter.model)[name == "shared"]
    encode, decode = (
        jax.jit(functools.partial(model._apply, method=method))
        for model, method in ((pair.target, T5.encode), (side, T5.decode))
    )
    total, size = 0.0, 0
    pairs = toys.sentences()
    for source, reference in [pairs[index] for index in np.linspace(0, 80, 3).astype(int)]:
        inputs = pair.inputs([source])
        (ids,) = vocabulary.encode([reference])
        tokens = np.array([[START_ID, *ids]])
        encoded = encode(pair.params.target, *inputs)
        params = pair.params[name == "shared"]
        logits = decode(params, encoded, inputs.lengths, tokens)
        log_q = jax.nn.log_softmax(logits[0, :, : vocabulary.num_ids])
        # What a short head doesn't know costs nothing.
        known = [(slot, one) for slot, one in enumerate([*ids, 1]) if one < log_q.shape[1]]
        total -= sum(float(log_q[place]) for place in known)
        size += len(ids) + 1
    row = find(records.read(str(output)), model=name, test_set="far")
    assert row["num_loss_tokens"] == size and row["num_loss_dropped"] == 0
    assert row["loss"] == pytest.approx(total / size, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_alpha_in_batches_is_that_of_compare_one_by_one(folder, output, temperature):
    """On the same outputs: compare's request of a sentence, with its key."""
    row = find(records.read(str(output)), draft="shared", stage="final", temperature=temperature)
    pair = load_pair(folder / "target", folder / "shared_draft", folder / "spiece.model")
    target = load_translator(str(folder / "target"), pair.vocabulary)
    lines = (folder / "heldout.tsv").read_text().splitlines()
    kinds = {
        kind: [line.split("\t")[0] for line in lines if line.endswith(kind)]
        for kind in ("lohelp", "manpages")
    }
    sources = [kinds["lohelp"][index] for index in (0, 13, 26)] + [
        kinds["manpages"][index] for index in (0, 26)
    ]
    how = dataclasses.replace(HOW, temperature=temperature)
    config = pair.config(gamma=1, max_new_tokens=8)
    requests, results = [], []
    for batch in alphas.target_outputs(target, sources, how):
        for index in range(len(batch.indices)):
            one = jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], batch[1:4])
            requests.append(one)
            results.append(
                jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], batch.decoded)
            )
    run_ = compare.Run(requests, results, [], {}, 0)
    expected = compare.target_alpha(pair, run_, sampling.settings(temperature), config)
    found = [row[key] for key in ("alpha", "alpha_standard_error", "num_alpha_tokens")]
    assert found == pytest.approx(expected, abs=1e-5)
    assert row["num_alpha_tokens"] == sum(int(result.lengths[0]) for result in results)


def test_what_is_recorded_is_not_made_again_and_what_is_missing_is(
    folder, output, tmp_path, monkeypatch
):
    copy = shutil.copytree(output, tmp_path / "copy")
    before = (copy / "records.jsonl").read_text()
    monkeypatch.setattr(scores, "alpha_on", lambda *args, **kwargs: {"alpha": -1.0})
    monkeypatch.setattr(scores.LossMeter, "measure", lambda *args: (0.0, 1, 0))
    call(folder, copy)
    assert (copy / "records.jsonl").read_text() == before
    kept = [line for line in before.splitlines() if '"manpages"' not in line]
    (copy / "records.jsonl").write_text("".join(f"{line}\n" for line in kept))
    more = call(folder, copy, drafts={"whole": str(folder / "draft")}, temperatures=(0.0,))
    new = more[len(kept) :]
    assert [(row["kind"], row.get("model", row.get("draft"))) for row in new] == [
        *[("translation", "target")],
        *[("translation", "whole")] * 4,
        *[("alpha", "whole")],
    ]


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(decoding=Decoding(1.0)), "temperature=1.0: scores are of greedy"),
        (dict(temperatures=(-1.0,)), "temperature=-1.0"),
        (dict(drafts={"a": "nowhere"}), "no checkpoint at 'nowhere'"),
        (dict(test_sets=[]), "hold one out"),
    ],
)
def test_bad_settings_are_refused_by_name(folder, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        call(folder, tmp_path, **changes)


def test_another_configuration_is_refused(folder, output):
    with pytest.raises(ValueError, match="another configuration"):
        call(folder, output, decoding=dataclasses.replace(HOW, max_new_tokens=9))


def test_the_gin_file_names_the_right_files_for_every_test_set(folder, tmp_path, monkeypatch):
    called = {}
    monkeypatch.setattr(records, "claim", lambda *args, **given: called.update(given))
    monkeypatch.setattr(scores, "score_translations", lambda *args: None)
    monkeypatch.setattr(scores, "measure_alphas", lambda *args: called.update(sources=args[2]))
    given = dict(
        TRAIN_FILE=folder / "train.tsv",
        HELDOUT_FILE=folder / "heldout.tsv",
        NEWSTEST=folder / "sentences.tsv",
        TATOEBA=folder / "sentences.tsv",
        VOCABULARY=folder / "spiece.model",
        TARGET=folder / "target",
    )
    bindings = [f"{name} = {str(path)!r}" for name, path in given.items()]
    bindings.append(f"DRAFTS = {{'small': {str(folder / 'shared_draft')!r}}}")
    run.run(["gin_configs/scores.gin"], bindings, ["."], str(tmp_path))
    gin.clear_config()
    found = {
        one["name"]: (
            one["task"]["path"].split("/")[-1],
            one["task"]["filter_value"],
            one["is_heldout"],
        )
        for one in called["test_sets"]
    }
    assert found == {
        "lohelp": ("heldout.tsv", "lohelp", True),
        "manpages": ("heldout.tsv", "manpages", True),
        "ddtp": ("heldout.tsv", "ddtp", True),
        "newstest2014": ("sentences.tsv", None, False),
        "tatoeba2021": ("sentences.tsv", None, False),
    }
    assert [task["filter_value"] for task in called["bigram_tasks"]] == [
        *("lohelp", "gimphelp", "debhandbook", "manpages", "ddtp")
    ]
    assert len(called["sources"]) == 81
    assert called["sources"][0].startswith("translate English to German: ")
