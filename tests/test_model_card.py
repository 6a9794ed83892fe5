"""The model card: every number in it comes from a record, a curve, a config.gin or the weights."""

import json
import re
import shutil

import numpy as np
import pytest
import toys

from experiments import distill, model_card, records, run, run_state
from experiments.curves import read_runs, tokens_at
from experiments.data import FileTask

# The runs that the template of our pair's card asks for.
DRAFT_RUNS = ("control", "distillation")


def test_tokens_at_docstring_example():
    rows = [dict(step=20, tokens_per_step=100), dict(step=40, tokens_per_step=300)]
    assert tokens_at(rows, [20, 30, 40]).tolist() == [2000, 5000, 8000]


def test_steps_without_a_count_get_the_mean_and_a_curve_without_any_is_nan():
    rows = [dict(step=20, tokens_per_step=100), dict(step=40), dict(step=60, tokens_per_step=200)]
    assert tokens_at(rows, [40, 60]).tolist() == [5000, 9000]
    assert np.isnan(tokens_at([dict(step=20)], [20])).all()


def test_unknown_placeholders_are_refused():
    assert model_card.fill('{a}, {"b": 1}', {"a": "x"}) == 'x, {"b": 1}'
    with pytest.raises(ValueError, match="asks for b; there is a"):
        model_card.fill("{a} {b}", {"a": "x"})


@pytest.fixture(scope="module")
def toy_pair(tmp_path_factory):
    pair = tmp_path_factory.mktemp("pair")
    toys.write_model(pair / "target", toys.config(1), 0)
    shared = dict(num_encoder_layers=0, encoder_dim=32)
    toys.write_model(pair / "small", toys.config(1, d_model=16, **shared), 1)
    toys.write_model(pair / "big", toys.config(2, d_model=16, **shared), 2)
    return pair


@pytest.fixture
def left_behind(toy_pair, tmp_path):
    """A toy pair, two training folders and a folder of scores."""
    pair = shutil.copytree(toy_pair, tmp_path / "pair")
    toys.write_sentences(tmp_path / "sentences.tsv", 4)
    for name, students in (("target", ["target"]), ("distillation", ["small", "big"])):
        folder = tmp_path / name
        folder.mkdir()
        curve = run_state.Curve(str(folder), resumed_step=0)
        for step in (20, 40):
            losses = {student: {"cross_entropy": 80 / step} for student in students}
            curve.append(kind="train", step=step, tokens_per_step=50_000, **losses)
            if name == "distillation":
                losses = {student: {**parts, "tvd": 0.25} for student, parts in losses.items()}
            curve.append(kind="heldout", step=step, **losses)
        (folder / "config.gin").write_text(
            "optimizers.Schedule.peak = 0.01\nbatching.Buckets.lengths = \\\n    (16,\n     24)\n"
        )
    write_scores(tmp_path / "scores", pair)
    return tmp_path


def write_scores(folder, pair):
    folder.mkdir()
    records.write_environment(str(folder))

    def add(**row):
        records.append(str(folder), row)

    for name in ("target", "small", "big"):
        weights = distill.weights_digest(str(pair / name))
        for test_set, bleu in (("far", 3.25), ("heldout", 31.25)):
            about = dict(kind="translation", model=name, weights=weights, test_set=test_set)
            loss = float("nan") if test_set == "far" else 1.5
            about |= dict(num_examples=1234, bleu=bleu, chrf=50.0, length_ratio=0.98, loss=loss)
            add(**about, repetition_share=0.0125)
    stale = dict(kind="translation", model="small", weights="other", test_set="heldout", bleu=99.0)
    add(**stale)
    alphas = [
        ("small", "before", "old", 0.5),
        ("small", "final", distill.weights_digest(str(pair / "small")), 0.75),
        ("small", "final", "other", 0.99),
        ("bigram", "", "", 0.125),
    ]
    for name, stage, weights, alpha in alphas:
        about = dict(kind="alpha", draft=name, stage=stage, weights=weights, temperature=1.0)
        add(**about, alpha=alpha, alpha_standard_error=0.004, num_alpha_tokens=4321)


def write(folder, **changes):
    given = dict(
        pair=str(folder / "pair"),
        scores=str(folder / "scores"),
        runs={
            **{name: str(folder / "target") for name in ("shallow", "target")},
            **{name: str(folder / "distillation") for name in DRAFT_RUNS},
        },
        corpus={"toy": FileTask(str(folder / "sentences.tsv"), weight=0.5)},
        template="experiments/model_card_ende.md",
    )
    model_card.write_card(str(folder), **{**given, **changes})
    return (folder / "pair" / "README.md").read_text().splitlines()


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(model_card, "draw_curves", lambda finished, path: path.touch())


@pytest.mark.usefixtures("undrawn")
def test_the_tables_hold_what_was_recorded(left_behind):
    lines = write(left_behind)
    expected = [
        # Of the models: the target, then the drafts from the smallest up.
        *["| heldout | target | 1,234 | 31.2 | 50.0 | 0.98 | 1.2 % | 1.500 |"],
        *["| heldout | small | 1,234 | 31.2 | 50.0 | 0.98 | 1.2 % | 1.500 |"],
        *["| heldout | big | 1,234 | 31.2 | 50.0 | 0.98 | 1.2 % | 1.500 |"],
        *["| far | target | 1,234 | 3.2 | 50.0 | 0.98 | 1.2 % | - |"],
    ]
    start = lines.index(expected[0])
    assert lines[start : start + 4] == expected
    assert "| draft | T = 1, before | T = 1, final |" in lines
    assert "| small | 0.500 ± 0.004 | 0.750 ± 0.004 |" in lines
    assert "| big | - | - |" in lines
    assert "| bigram | 0.125 ± 0.004 | 0.125 ± 0.004 |" in lines
    assert "Tokens per entry: 4,321." in lines
    assert "| target | 40 | 2.0M | 2.000 | - |" in lines
    assert "| big, distillation | 40 | 2.0M | 2.000 | 0.250 |" in lines
    assert "| target | 0.01 | - | - | - | - | 24 |" in lines
    words = [sum(len(pair[side].split()) for pair in toys.sentences()[:4]) for side in (0, 1)]
    assert f"| toy | 4 | {words[0]} | {words[1]} | 0.5 |" in lines


def test_parameters_are_counted_in_the_weights(left_behind):
    folders = model_card.find_models(str(left_behind / "pair"))
    assert list(folders) == ["target", "small", "big"]
    config = json.loads((folders["small"] / "config.json").read_text())
    # Embeddings (tied or not), attention twice, feed-forward, norms and position biases.
    width, inner = config["d_model"], config["num_heads"] * config["head_dim"]
    cross = 2 * width * inner + 2 * config["encoder_dim"] * inner
    blocks = 4 * width * inner + cross + 2 * width * config["d_ff"]
    heads = 1 if config["tied"] else 2
    rest = 4 * width + config["num_heads"] * 32
    total = heads * config["vocab_size"] * width + blocks + rest
    assert model_card.num_parameters(folders["small"]) == total
    is_decoder = lambda name: not name.startswith("encoder/")
    target = folders["target"]
    assert 0 < model_card.num_parameters(target, is_decoder) < model_card.num_parameters(target)


@pytest.mark.usefixtures("undrawn")
def test_weights_without_scores_of_their_own_are_refused(left_behind):
    shutil.copytree(left_behind / "pair" / "small", left_behind / "pair" / "new")
    with pytest.raises(ValueError, match=r"no scores of the weights in '.*pair/new'"):
        write(left_behind)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(pair="nowhere"), "no checkpoint at 'nowhere/target'"),
        (
            dict(runs={"target": "nowhere"}),
            "no learning curve .* in 'nowhere' for the run 'target'",
        ),
        (dict(template="nowhere.md"), "no template at 'nowhere.md'"),
        (dict(scores="nowhere"), "no scores of the weights"),
    ],
)
def test_bad_settings_are_refused_by_name(left_behind, changes, message):
    with pytest.raises(ValueError, match=message):
        write(left_behind, **changes)


def test_the_picture_is_drawn_with_and_without_token_counts(left_behind):
    pytest.importorskip("matplotlib")
    finished = read_runs({"distillation": left_behind / "distillation"})
    assert [one.label for one in finished] == ["small, distillation", "big, distillation"]
    uncounted = read_runs({"target": left_behind / "target"})
    for name, students in (("counted", finished), ("both", [*uncounted, *finished])):
        path = left_behind / f"{name}.png"
        model_card.draw_curves(students, path)
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("experiments/model_card_lm.md", ("target", "drafts", "heads")),
        ("experiments/model_card_multi.md", ("mixed", "copying", "target", "first", "drafts")),
    ],
)
def test_a_card_without_scores_has_shapes_curves_and_counted_losses(left_behind, template, names):
    runs = {name: str(left_behind / "distillation") for name in names}
    (left_behind / "counts").mkdir()
    losses = dict(bigram=5.25, unigram=6.5, num_tokens=9)
    records.append(str(left_behind / "counts"), {"experiment": "counts", **losses})
    about = dict(runs=runs, template=template, scores=None)
    lines = write(left_behind, **about, counts=str(left_behind / "counts"))
    assert f"| big, {names[-1]} | 40 | 2.0M | 2.000 | 0.250 |" in lines
    assert ("has 5.250 nats" in "\n".join(lines)) == ("lm" in template)
    if "lm" in template:
        with pytest.raises(ValueError, match="no held-out loss in"):
            write(left_behind, **about, counts=str(left_behind / "none"))


@pytest.mark.usefixtures("undrawn")
def test_the_gin_file_writes_the_card(left_behind):
    sentences = left_behind / "sentences.tsv"
    lines = [f"{en}\t{de}\tlohelp\n" for en, de in toys.sentences()[:4]]
    sentences.write_text("".join(lines))
    given = dict(
        SCORES=str(left_behind / "scores"),
        RUNS={name: str(left_behind / "target") for name in ("target", *DRAFT_RUNS)},
        PAIR=str(left_behind / "pair"),
        TRAIN_FILE=str(sentences),
        HELDOUT_FILE=str(sentences),
    )
    bindings = [f"{name} = {value!r}" for name, value in given.items()]
    output = left_behind / "output"
    run.run(["gin_configs/model_card.gin"], bindings, ["."], str(output))
    card = (left_behind / "pair" / "README.md").read_text()
    assert "| lohelp | 4 |" in card and not re.search(r"\{\w+\}", card)
    assert (output / "config.gin").is_file()
