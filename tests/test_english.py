"""English text: passages, the restoring task, and what is held out."""

import pytest

from experiments.corpora import english
from experiments.corpora.packages import CorpusError
from experiments.corpora.passages import passages
from experiments.corpora.restore import stripped


def test_passages_docstring_example():
    text = "One two three. Four five. Six seven eight nine."
    assert list(passages(text, shortest=2, longest=5)) == [
        "One two three. Four five.",
        "Six seven eight nine.",
    ]
    assert list(passages(text, shortest=5, longest=5)) == ["One two three. Four five."]
    assert list(passages(text, shortest=1, longest=3)) == ["One two three.", "Four five."]


def test_stripped_docstring_example():
    assert stripped('Yes," said Mr. Well-Born; "it\'s 3.5."') == "yes said mr well-born it's 3 5"


def test_runs_are_held_out_together_and_nothing_of_them_is_trained_on():
    rows = [(f"text {number}", "file") for number in range(40 * english.RUN)]
    rows.append(("Text 7!", "other file"))
    train, heldout = english.split([(f"part {n}", rows) for n in range(9)], column=0)
    assert heldout and len(heldout) % english.RUN == 0
    seen = {text for text, _ in heldout}
    assert not seen & {text for text, _ in train}
    assert english.split([(f"part {n}", rows) for n in range(9)], column=0) == (train, heldout)


def test_a_folder_without_text_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="give a folder of text"):
        english.build(tmp_path, tmp_path / "out", [], None, None)
    (tmp_path / "a.txt").write_text("One two three four five six.\n")
    with pytest.raises(CorpusError, match="no b; there are a"):
        english.build(tmp_path, tmp_path / "out", ["b"], None, None)
    english.build(tmp_path, tmp_path / "out", [], None, [{"turns": [["Ann", "Yes."]]}])
    assert (tmp_path / "out/lm_train.tsv").read_text() == "One two three four five six.\ta\n"
    assert (tmp_path / "out/dialogue_train.tsv").read_text() == "Ann: Yes.\n"
