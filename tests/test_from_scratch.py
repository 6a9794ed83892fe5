"""The toy corpus, and the whole way from it to the comparison."""

import random

import pytest

from experiments import records, run
from experiments.corpora import toy


def lines(path):
    return [line.split("\t") for line in path.read_text("utf-8").splitlines()]


def test_german_puts_the_verb_last_after_dass_and_declines_articles_and_adjectives():
    rng = random.Random(0)
    pairs = [toy.sentence(rng) for _ in range(500)]
    for english, german in pairs:
        assert (" that " in english) == (", dass " in german)
        if ", dass " in german:
            clause = german.split(", dass ")[1].split(", und ")[0].rstrip(".")
            assert clause.split()[-1] in {verb for _, verb in toy._VERBS}
    texts = " ".join(german for _, german in pairs)
    assert "den alten Hund" in texts and "der alte Hund" in texts
    assert "den alte " not in texts and "der alten " not in texts


def test_test_sentences_are_not_trained_on(tmp_path):
    toy.write(tmp_path / "test.tsv", 50, seed=1)
    toy.write(tmp_path / "train.tsv", 500, seed=0, without=tmp_path / "test.tsv")
    test, train = (lines(tmp_path / name) for name in ("test.tsv", "train.tsv"))
    assert (len(test), len(train)) == (50, 500)
    assert not {en for en, _ in test} & {en for en, _ in train}
    assert len({en for en, _ in train}) == 500


def test_the_corpus_is_the_same_every_time(tmp_path):
    for name in "ab":
        toy.write(tmp_path / name, 20, seed=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.soak
def test_it_goes_the_whole_way_and_goes_on_where_it_was(tmp_path):
    small = ["TARGET_STEPS = 8", "DRAFT_STEPS = 8", "NUM_SENTENCES = 4"]
    for num_records in (2, 4):
        run.run(["gin_configs/from_scratch.gin"], small, ["."], str(tmp_path))
        rows = records.read(str(tmp_path))
        assert len(rows) == num_records
        assert all(row["experiment"] == "from_scratch" and not row["bugs"] for row in rows)
