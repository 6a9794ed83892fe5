"""English text: passages, the restoring task, and what is held out."""

import json

import pytest

from experiments.corpora import descriptions, english, news
from experiments.corpora.files import entries
from experiments.corpora.passages import passages
from experiments.corpora.program import CorpusError, run
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


def test_of_the_dialogue_a_tenth_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("One two three four five six.\n")
    scenes = [{"turns": [["Ann", "well " * 20 + "a" * n]]} for n in range(1, 100 * english.RUN)]
    english.build(tmp_path, tmp_path, [], None, scenes)
    held = len((tmp_path / "dialogue_heldout.tsv").read_text().splitlines())
    trained = len((tmp_path / "dialogue_train.tsv").read_text().splitlines())
    assert held + trained == len(scenes) and 0.05 < held / len(scenes) < 0.2


def described(text, summary):
    return dict(package="p", text=text, summary=summary)


def test_descriptions_are_new_that_no_known_one_and_none_before_says():
    def text(word):
        return " ".join(f"{word}{chr(97 + n)}" for n in range(24))

    known = [described(text("x"), "Tool of x")]
    first, second = described(text("y"), "Tool of y"), described(text("z"), "Tool of z")
    found = [
        described(text("x") + " and more", "another summary"),
        described(text("w"), "tool of X!"),
        first,
        described(text("y") + " again", "Second tool of y"),
        described("too short to tell anything", "Short tool"),
        second,
    ]
    assert list(descriptions.new(found, known)) == [first, second]


@pytest.mark.parametrize(
    "content, message",
    [
        ("{}", "holds no list"),
        ("no", "cannot read .*Expecting value"),
        ('[{"text": ""}, {"summary": ""}]', "entry 2: {'summary': ''}; give a list of objects"),
    ],
)
def test_a_file_without_such_entries_is_named(tmp_path, content, message):
    path = tmp_path / "descriptions.json"
    path.write_text(content)
    with pytest.raises(CorpusError, match=message):
        entries(path, "text")
    with pytest.raises(CorpusError, match=r"cannot read .*No such file"):
        entries(tmp_path / "none.json.gz", "text")


@pytest.mark.parametrize(
    "error, status, message",
    [
        (CorpusError("give more"), 1, "corpora: give more\n"),
        (OSError(28, "No space left on device", "out"), 1, "cannot use out (No space left"),
        (KeyboardInterrupt(), 130, "run again"),
    ],
)
def test_a_failure_of_a_program_is_one_line(capsys, error, status, message):
    def build():
        raise error

    assert run(build) == status
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert run(lambda: None) == 0


def test_texts_to_restore_are_cut_short_for_learning_to_copy():
    text = "One, two three four five six. " * 8
    rows = english.shortened([("", text)])
    assert {shown for _, shown in rows} == {
        " ".join(["One, two three four five six."] * 5),
        " ".join(["One, two three four five six."] * 3),
    }
    assert all(plain == stripped(shown) for plain, shown in rows)


def test_a_folder_without_text_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="give a folder of text"):
        english.build(tmp_path, tmp_path / "out", [], None, None)
    (tmp_path / "a.txt").write_text("One two three four five six.\n")
    with pytest.raises(CorpusError, match="no b; there are a"):
        english.build(tmp_path, tmp_path / "out", ["b"], None, None)
    english.build(tmp_path, tmp_path / "out", [], None, [{"turns": [["Ann", "Yes."]]}])
    assert (tmp_path / "out/lm_train.tsv").read_text() == "One two three four five six.\ta\n"
    assert (tmp_path / "out/dialogue_train.tsv").read_text() == "Ann: Yes.\n"


def test_text_and_scenes_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(CorpusError, match=r"cannot read .*a.txt .*give UTF-8"):
        list(english.paragraphs(tmp_path / "a.txt"))
    for turns in ([["Ann"]], [1], None):
        with pytest.raises(CorpusError, match=r"scene 2 of the dialogues: .*give turns as"):
            list(english.dialogues([{"turns": []}, {"turns": turns}]))


def question(**changes):
    text = "One two three four five six seven. " * 10
    fields = dict(category="summarization", turns=[f"Summarize: {text}"], reference=["In short."])
    return json.dumps({**fields, **changes}) + "\n"


def test_news_are_articles_with_summaries_and_passages_to_restore(tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text(question() + question(category="writing", turns=["a", "b"]))
    news.build(questions, tmp_path, num_words=25)
    sentence = "One two three four five six seven."
    summaries = (tmp_path / "summarize.tsv").read_text().splitlines()
    assert summaries == [" ".join([sentence] * 3) + "\tIn short."]
    (restored,) = (tmp_path / "restore.tsv").read_text().splitlines()
    plain, text = restored.split("\t")
    assert plain == stripped(text) and len(text.split()) == 70


@pytest.mark.parametrize("line", [question(turns=["a", "b"]), "{}\n", "no json\n"])
def test_what_is_no_question_is_named_by_its_line(tmp_path, line):
    questions = tmp_path / "questions.jsonl"
    questions.write_text(question() + line)
    with pytest.raises(CorpusError, match="line 2: no question of Spec-Bench"):
        list(news.articles(questions))
    questions.write_text(question(category="writing"))
    with pytest.raises(CorpusError, match="no question of category 'summarization'"):
        list(news.articles(questions))
