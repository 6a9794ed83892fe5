"""seqio tasks on small TFDS sets made on the spot in the real builders' feature format.

The only file whose tests import TensorFlow, which a process should do once.
"""

import importlib.util
import subprocess
import sys

import pytest
import toys

from experiments import tasks
from experiments.data import FileTask
from experiments.tasks import SeqioTask

needs_seqio = pytest.mark.skipif(
    importlib.util.find_spec("seqio") is None, reason="needs seqio: pip install -e '.[tasks]'"
)
PAIRS = [("The dog sees.", "Der Hund sieht."), ("A cat.", "Eine Katze."), ("No.", "Nein.")]
ARTICLES = [
    ("It rained. All day long.", "Rain fell.\nAll day."),
    ("A goal. Then none.", "One goal."),
]


def make_set(folder, name, config, version, features, examples):
    """A TFDS set of the real one's name, version and features."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    data = tf.data.Dataset.from_tensor_slices(
        {key: [example[key] for example in examples] for key in examples[0]}
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        config=config,
        data_dir=folder,
        features=features,
        split_datasets={"test": data.take(len(examples)), "validation": data.take(1)},
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    import tensorflow_datasets as tfds

    folder = str(tmp_path_factory.mktemp("tfds"))
    both = tfds.features.Translation(languages=("de", "en"))
    rows = [{"en": en, "de": de} for en, de in PAIRS]
    make_set(folder, "wmt_t2t_translate", "de-en", "1.0.0", both, rows)
    names = ("article", "highlights", "publisher", "id")
    texts = tfds.features.FeaturesDict({name: tfds.features.Text() for name in names})
    rows = [dict(article=a, highlights=h, publisher="x", id="0") for a, h in ARTICLES]
    make_set(folder, "cnn_dailymail", None, "1.0.0", texts, rows)
    text = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    make_set(folder, "lm1b", None, "1.1.0", text, [{"text": en} for en, _ in PAIRS])
    return folder


@needs_seqio
def test_the_paper_s_sets_give_their_text(data_dir):
    assert SeqioTask("wmt_t2t_ende_v003", data_dir=data_dir).pairs() == PAIRS
    expected = [(article, summary) for article, summary in ARTICLES]
    assert SeqioTask("cnn_dailymail_v002", data_dir=data_dir).pairs() == expected
    assert SeqioTask("lm1b", data_dir=data_dir).pairs() == [("", en) for en, _ in PAIRS]
    assert SeqioTask("lm1b", "validation", data_dir=data_dir).pairs() == [("", PAIRS[0][0])]
    assert len(SeqioTask("lm1b", data_dir=data_dir, limit=2).pairs()) == 2


@needs_seqio
def test_a_registered_task_tokenises_with_t5_s_prefix(data_dir, tmp_path):
    path = str(toys.write_vocabulary(tmp_path / "spiece.model"))
    task = tasks.add("wmt_t2t_ende_v003", vocabulary=path, data_dir=data_dir)
    (first, *_) = task.get_dataset(None, "test", shuffle=False).as_numpy_iterator()
    assert first["inputs_pretokenized"] == b"translate English to German: The dog sees."
    assert first["targets"][-1] == 1
    words = task.output_features["targets"].vocabulary
    assert "Hund sieht" in words.decode(first["targets"].tolist())
    assert [fn.__name__ for fn in task.metric_fns] == ["bleu"]


@needs_seqio
def test_a_file_through_seqio_is_the_file(tmp_path):
    file = FileTask(str(toys.write_sentences(tmp_path / "pairs.tsv", 5)), prefix="to German: ")
    task = tasks.add_file("toy", file, metric="bleu")
    found = [
        (one["inputs_pretokenized"].decode(), one["targets_pretokenized"].decode())
        for one in task.get_dataset(None, "all", shuffle=False).as_numpy_iterator()
    ]
    assert found == [(f"to German: {source}", target) for source, target in file.pairs()]
    assert task.metric_fns[0]([target for _, target in found], [t for _, t in found]) == {
        "bleu": pytest.approx(100)
    }


@needs_seqio
def test_rouge_is_rouge_score_s(data_dir):
    targets = [summary for _, summary in ARTICLES]
    assert tasks.rouge(targets, targets) == dict.fromkeys(tasks.ROUGE, pytest.approx(100))
    # One of two unigrams, no bigram: F1 of 1/2, 0, 1/2.
    assert tasks.rouge(["one goal"], ["one cup"]) == {
        "rouge1": pytest.approx(50),
        "rouge2": 0,
        "rougeLsum": pytest.approx(50),
    }


def test_bleu_is_sacrebleu_s():
    targets = ["The cat sits on the mat today .", "It rains ."]
    assert tasks.bleu(targets, targets) == {"bleu": pytest.approx(100)}
    assert tasks.bleu(targets, ["Something else entirely different .", "x y"])["bleu"] < 10


def test_what_is_not_there_is_told_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="task 'wmt19' is none of wmt_t2t_ende_v003, cnn"):
        SeqioTask("wmt19")
    with pytest.raises(ValueError, match="weight=0"):
        SeqioTask("lm1b", weight=0)
    task = SeqioTask("cnn_dailymail_v002", data_dir=str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"needs seqio and TensorFlow: pip install"):
            task.pairs()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(
        ValueError, match=r"fetch it by .*tfds\.load\('cnn_dailymail:1\.0\.0', data_"
    ):
        task.pairs()


def test_naming_a_task_imports_no_tensorflow():
    program = (
        "import sys; from experiments import tasks; "
        "task = tasks.SeqioTask('lm1b'); task.path, task.prefix, task.digest(); "
        "print({'tensorflow', 'seqio'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "set()\n", found.stderr
