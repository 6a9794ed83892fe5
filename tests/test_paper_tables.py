"""The experiments behind Tables 2 and 3 on toy models: every kind of draft, every reading, once."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import toys

from experiments import (
    accept_counts,
    acceptance,
    counts,
    drafts,
    lenience,
    paper,
    records,
    rejection,
    samples,
    walltime,
)
from experiments.data import FileTask
from experiments.translate import Decoding, translate_all
from experiments.translators import load_translator
from experiments.workloads import Sampling, Workload
from specdec import metrics
from specdec.drafters.ngram import bigram_logits, count_bigrams
from specdec.vocabulary import Vocabulary

NUM = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = toys.write_pair(tmp_path_factory.mktemp("toys"))
    toys.write_language_models(folder)
    text = [FileTask(str(folder / "sentences.tsv"))]
    counts.count(str(folder), tasks=text, vocabulary=str(folder / "spiece.model"))
    return folder


def workload(folder, name="EnDe", **kinds):
    is_lm = name == "LM"
    columns = dict(source_column=None, target_column=0) if is_lm else {}
    return Workload(
        name=name,
        target=str(folder / ("lm" if is_lm else "target")),
        vocabulary=str(folder / "spiece.model"),
        task=FileTask(str(folder / "sentences.tsv"), limit=NUM, **columns),
        drafts=kinds,
        prompt_tokens=2 if is_lm else None,
        max_new_tokens=8,
    )


def all_kinds(folder):
    path = str(folder / "bigrams.npz")
    return dict(
        uniform=drafts.Uniform(),
        unigram=drafts.Unigram(path),
        bigram=drafts.Bigram(path),
        copy=drafts.Copy(),
        small=drafts.Model(str(folder / "shared_draft")),
        both=drafts.CopyOrModel(str(folder / "shared_draft")),
    )


def test_counts_are_those_of_the_text_and_of_its_vocabulary_only(folder):
    words = Vocabulary(str(folder / "spiece.model"))
    rows = [[*ids, 1] for ids in words.encode([target for _, target in toys.sentences()])]
    table = counts.read(str(folder / "bigrams.npz"), words)
    np.testing.assert_array_equal(table, count_bigrams(rows, words.num_ids))
    other = Vocabulary("checkpoints/ende/spiece.model")
    with pytest.raises(ValueError, match="another vocabulary"):
        counts.read(str(folder / "bigrams.npz"), other)
    with pytest.raises(ValueError, match="holds no bigram counts"):
        counts.read(str(folder / "spiece.model"), words)


def test_the_counted_laws_losses_are_means_over_held_out_tokens(folder, tmp_path):
    words = Vocabulary(str(folder / "spiece.model"))
    text = FileTask(str(folder / "sentences.tsv"))
    few = dataclasses.replace(text, limit=2)
    how = dict(tasks=[text], vocabulary=str(folder / "spiece.model"), least=2, heldout=[few])
    counts.count(str(tmp_path), **how)
    (row,) = records.read(str(tmp_path))
    table = counts.count_tasks([text], words)
    total, size = 0.0, 0
    for ids in words.encode([target for _, target in few.pairs()]):
        for before, after in itertools.pairwise([0, *ids, 1]):
            total -= float(bigram_logits(table)[before, after])
            size += 1
    assert row["num_tokens"] == size and row["bigram"] == pytest.approx(total / size, rel=1e-5)
    assert row["bigram"] < row["unigram"]


def test_the_papers_numbers_stand_beside_the_drafts_of_the_same_place():
    assert paper.counterpart("restore", "medium") == ("CNNDM", "base")
    assert paper.table_3("translate", "medium", 1.0, 0, 1.0) == 0.68
    assert paper.table_3("EnDe", "small", 1.0, 40, 1.0) is None
    # LaMDA's rows at T=1 are filtered, and only those.
    assert paper.table_3("dialogue", "medium", 1.0, 40, 1.0) == 0.71
    assert paper.table_3("dialogue", "medium", 1.0, 0, 1.0) is None
    assert paper.table_2("EnDe", "medium", 1.0).gamma == 5
    assert paper.table_2("summarize", "medium", 1.0) is None
    assert paper.table_5("medium", 1.0, 0.5) == 0.80
    assert paper.beside("0.73", "restore", "medium") == "0.73 (CNNDM, base)"
    assert paper.beside("0.75", "EnDe", "small") == "0.75"


def test_shares_of_accepted_drafts_are_drawn_over_the_geometric_law():
    pytest.importorskip("matplotlib")
    row = dict(task="toy", draft="small", temperature=0.0, gamma=3)
    row |= dict(accept_counts=[2, 1, 1], alpha_accepted=0.5)
    (axes,) = accept_counts.figure([row]).axes
    points, law = axes.lines
    assert points.get_ydata().tolist() == [0.5, 0.25, 0.25, 0]
    assert law.get_ydata().tolist() == [0.5, 0.25, 0.125, 0.125]
    six = [dict(row, task=f"toy {number}") for number in range(6)]
    assert len(accept_counts.figure(six).axes) == 6
    with pytest.raises(ValueError, match="no records"):
        accept_counts.figure([])


@pytest.mark.parametrize("names", [("bigram", "small"), pytest.param(None, marks=pytest.mark.soak)])
def test_every_draft_on_every_task_has_a_row_and_none_is_made_twice(folder, tmp_path, names):
    kinds = all_kinds(folder)
    kinds = {name: kinds[name] for name in names or kinds}
    translation = workload(folder, **kinds)
    language = workload(folder, "LM", lm=drafts.Model(str(folder / "lm_draft")))
    loose = Sampling(1.0, top_k=5, is_draft_filtered=False)
    samplings = {"": [Sampling(0.0)], "EnDe": [Sampling(0.0), loose]}

    def call(workloads):
        acceptance.measure(str(tmp_path), workloads=workloads, samplings=samplings, batch_size=4)
        return records.read(str(tmp_path))

    first = call([translation])
    rows = call([translation, language])
    assert rows[: len(first)] == first and len(rows) == 2 * len(kinds) + 1
    for row in rows:
        assert row["num_examples"] == NUM and row["num_alpha_tokens"] <= NUM * 8
        assert 0 <= row["alpha"] <= 1 or row["draft"] == "copy"
        assert row["alpha_by_position"] == metrics.alpha_by_position(row["accept_counts"])
    table = (tmp_path / "table_3.md").read_text()
    assert "T=1, top-k 5, draft unfiltered" in table and table.count("\n") == len(rows) + 2
    # The paper's number stands beside a draft of the same name, unfiltered only.
    assert table.count("| 0.75 |") == 1


def test_a_filter_on_the_target_alone_changes_alpha_and_not_the_outputs(folder, tmp_path):
    one = workload(folder, small=drafts.Model(str(folder / "shared_draft")))
    both = [Sampling(1.0, top_k=3), Sampling(1.0, top_k=3, is_draft_filtered=False)]
    acceptance.measure(str(tmp_path), workloads=[one], samplings={"": both}, batch_size=4)
    filtered, unfiltered = records.read(str(tmp_path))
    assert filtered["num_alpha_tokens"] == unfiltered["num_alpha_tokens"]
    assert filtered["alpha"] != unfiltered["alpha"]


@pytest.fixture
def speeds(folder, tmp_path, monkeypatch):
    """Measures Table 2 with one draft and the predictions given; gives its records."""
    one = workload(folder, small=drafts.Model(str(folder / "shared_draft")))

    def call(*predictions):
        given = iter(predictions)
        rows_of = lambda *args: [dict(draft="small", gamma=2, prediction=next(given))]
        monkeypatch.setattr(walltime.tune, "predict", rows_of)
        walltime.measure(
            str(tmp_path),
            workloads=[one],
            gammas=(2,),
            num_sentences=3,
            num_tuned=1,
        )
        return records.read(str(tmp_path))

    return call


EXPECTED = [
    *[("tune", 0.0, 2), ("walltime", 0.0, 2), ("walltime", 0.0, 7)],
    *[("tune", 1.0, 2), ("walltime", 1.0, 0), ("walltime", 1.0, 7)],
]


def keys_of(rows):
    return [(row["experiment"], row["temperature"], row["gamma"]) for row in rows]


def test_both_gammas_are_measured_plain_decoding_is_an_answer_and_none_is_made_twice(
    speeds, tmp_path, monkeypatch
):
    columns = "alpha c verify_cost tokens_per_call speedup speedup_low speedup_high"
    columns += " expected_speedup expected_speedup_c accounted_speedup"
    fake = lambda pair, sentences, how, temperature, gamma, *_: {
        "gamma": gamma,
        **dict.fromkeys(columns.split(), 1.5),
    }
    monkeypatch.setattr(walltime.compare, "measure", fake)
    rows = speeds(1.5, 0.9)
    assert keys_of(rows) == EXPECTED and speeds() == rows
    table = (tmp_path / "table_2.md").read_text()
    assert "3.4, gamma 7, 3.2 expected" in table and "0 (tuned)" in table


@pytest.mark.soak
def test_speeds_of_a_toy_pair(speeds):
    rows = speeds(1.5, 0.9)
    assert keys_of(rows) == EXPECTED
    assert rows[1]["identical"] == 3 and math.isfinite(rows[1]["accounted_speedup"])


def test_rejection_sampling_accepts_less(folder, tmp_path):
    one = workload(folder, **{name: all_kinds(folder)[name] for name in ("bigram", "small")})
    samplings = [Sampling(1.0)]
    rejection.measure(str(tmp_path), workloads=[one], samplings=samplings, batch_size=4)
    bigram, small = records.read(str(tmp_path))
    assert 0 < bigram["rejection"] < bigram["alpha"] and bigram["never"] == 0
    # This draft gives no logit to most ids: M is infinite wherever the target knows them.
    assert small["rejection"] == 0 and small["never"] == 1 and small["alpha"] > 0


@pytest.fixture
def lenient(folder, tmp_path, monkeypatch):
    """Measures Table 5 with one draft; gives its records."""

    def call(temperatures, loosest=0.1):
        lenience.measure(
            str(tmp_path),
            workload=workload(folder, small=drafts.Model(str(folder / "draft"))),
            temperatures=temperatures,
            leniences=(1.0, loosest),
            gamma=2,
            num_timed=2,
            batch_size=4,
        )
        return records.read(str(tmp_path))

    return call


def test_lenience_raises_alpha_and_moves_the_law(lenient, tmp_path, monkeypatch):
    speeds = dict(speedup=1.5, speedup_low=1.4, speedup_high=1.6)
    monkeypatch.setattr(lenience, "_timed", lambda *args: speeds)
    exact, loose = lenient((1.0,))
    assert exact["alpha"] < loose["alpha"] <= 1
    assert exact["shift"] == pytest.approx(0, abs=1e-6) and loose["shift"] > 0.05
    assert "| 0.62 |" in (tmp_path / "table_5.md").read_text()
    assert lenient((1.0,)) == [exact, loose]


@pytest.mark.soak
def test_lenience_of_a_toy_pair_at_temperature_0(lenient):
    exact, loose = lenient((0.0,), loosest=1e-6)
    assert exact["alpha"] < loose["alpha"] == 1 and exact["shift"] is None
    assert exact["num_timed"] == 2 and math.isfinite(exact["speedup"])


def test_samples_are_the_models_own_and_the_same_every_time(folder, tmp_path):
    def call(name):
        samples.sample(
            str(tmp_path / name),
            model=str(folder / "lm"),
            vocabulary=str(folder / "spiece.model"),
            num_samples=5,
            batch_size=4,
            max_new_tokens=8,
            least_words=2,
        )
        return (tmp_path / name / "samples.tsv").read_text()

    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    texts = call("a")
    assert texts == call("b") and len(set(texts.splitlines())) == 5
    with pytest.raises(ValueError, match="give a decoder-only model"):
        samples.sample(
            str(tmp_path), model=str(folder / "target"), vocabulary=str(folder / "spiece.model")
        )


def test_prompts_of_a_decoder_only_target(folder):
    model = load_translator(str(folder / "lm"), Vocabulary(str(folder / "spiece.model")))
    language = workload(folder, "LM")
    pair = language.pair_with(model, drafts.Model(str(folder / "lm_draft")).load(model))
    with pytest.raises(ValueError, match=r"prompts of \[5, 12\] tokens in one batch"):
        pair.request(["the dog", "the dog sees a tree"], 0)
    several = ["the dog", "the dog sees a tree", "the cat"]
    decoding = Decoding(max_new_tokens=6, batch_size=2)
    batches = list(translate_all(model, several, decoding))
    assert sorted(index for batch in batches for index in batch.indices) == [0, 1, 2]
    for batch in batches:
        for row, index in enumerate(batch.indices):
            (same,) = pair.decode([several[index]], gamma=2, max_new_tokens=6, is_plain=True)
            assert batch.decoded.tokens[row, : len(same.tokens)].tolist() == list(same.tokens)
    (alone,) = pair.decode([""], gamma=2, max_new_tokens=6)
    (plain,) = pair.decode([""], gamma=2, max_new_tokens=6, is_plain=True)
    assert alone.tokens == plain.tokens
    assert Decoding().settings == Sampling().settings
