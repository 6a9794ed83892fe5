"""The card of trained models, out of records and curves alone: no number is typed by hand.

The prose is a Markdown file with placeholders, `{scores}` and the like; see `write_card`.
"""

import json
import logging
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments import distill, pictures, records, tables
from experiments.curves import Finished, read_runs
from experiments.data import Task
from experiments.scores import BIGRAM, FINAL, NO_STAGE, POOLED, TARGET
from specdec.checkpoints import folders, native

logger = logging.getLogger(__name__)


def write_card(
    output_dir: str,
    *,
    pair: str,
    runs: Mapping[str, str],
    corpus: Mapping[str, Task],
    template: str,
    scores: str | None = None,
    counts: str | None = None,
) -> None:
    """Writes README.md and curve.png into the pair's folder.

    Placeholders: {shapes} the models, {data} the training text, {training} and {recipe} the runs,
    {curve} their picture, {scores} and {alphas} what `scores.score` recorded, {environment} where,
    {<run>_steps} how many steps a run took.

    Args:
      output_dir: of the run; nothing but its configuration goes there.
      pair: folder of target and drafts.
      runs: training folders by name, in the order of the table.
      corpus: training tasks by name.
      template: path of the prose.
      scores: folder of records that were made of these very weights; None = a template without
        {scores}, {alphas} and {environment}.
      counts: folder of `counts.count` with its record, for {bigram_loss} and {unigram_loss}.

    Raises:
      ValueError: if weights have no scores, or a placeholder no content.
    """
    del output_dir
    prose = pathlib.Path(template)
    if not prose.is_file():
        raise ValueError(f"no template at {template!r}: correct the path")
    finished, folders = read_runs(runs), find_models(pair)
    text = fill(
        prose.read_text(encoding="utf-8"),
        {
            "shapes": shape_table(folders),
            "data": data_table(corpus),
            "training": training_table(finished),
            "recipe": recipe_table(runs),
            "curve": "![Held-out losses over target tokens trained on](curve.png)",
            **({} if scores is None else scored(folders, scores)),
            **({} if counts is None else counted(counts)),
            **{f"{one.run}_steps": str(one.num_steps) for one in finished},
        },
    )
    draw_curves(finished, pathlib.Path(pair) / "curve.png")
    path = pathlib.Path(pair) / "README.md"
    temporary = path.with_name(".README.md.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    logger.info("wrote %s", path)


def scored(folders: Mapping[str, pathlib.Path], scores: str) -> dict[str, str]:
    """What the placeholders for a folder of scores stand for."""
    rows = records.read(scores)
    check_scored(folders, rows, scores)
    environment = pathlib.Path(scores) / "environment.json"
    return {
        "scores": score_table(folders, rows),
        "alphas": alpha_table(folders, rows),
        "environment": environment_line(json.loads(environment.read_text())),
    }


def counted(folder: str) -> dict[str, str]:
    """Held-out losses of the counted laws, in nats a token."""
    row = records.find(folder, {"experiment": "counts"})
    if row is None:
        raise ValueError(f"no held-out loss in {folder!r}: run gin_configs/count.gin with HELDOUT")
    return {f"{name}_loss": f"{row[name]:.3f}" for name in ("bigram", "unigram")}


def fill(template: str, values: Mapping[str, str]) -> str:
    """Puts values in place of {name}.

    Raises:
      ValueError: for a name that has no value.
    """
    names = set(re.findall(r"\{(\w+)\}", template))
    if unknown := sorted(names - values.keys()):
        raise ValueError(
            f"the template asks for {', '.join(unknown)}; there is {', '.join(sorted(values))}"
        )
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)


def find_models(pair: str) -> dict[str, pathlib.Path]:
    """Checkpoint folders by name: the target, then the drafts from the smallest up.

    Raises:
      ValueError: if there is no target.
    """
    folders.check_exists(pathlib.Path(pair) / TARGET)
    found = [path.parent for path in pathlib.Path(pair).glob("*/config.json")]
    found.sort(key=lambda path: (path.name != TARGET, num_parameters(path), path.name))
    return {path.name: path for path in found}


def check_scored(folders: Mapping[str, pathlib.Path], rows, scores: str) -> None:
    """Raises ValueError unless every model has scores of the weights that lie there."""
    for name, path in folders.items():
        if not _latest(rows, kind="translation", model=name, weights=_digest(path)):
            raise ValueError(
                f"no scores of the weights in {str(path)!r} in {scores!r}: run "
                "gin_configs/scores.gin on this pair"
            )


def _digest(path: pathlib.Path) -> str:
    return distill.weights_digest(str(path))


def _latest(rows: Iterable[dict], **key: Any) -> dict[str, Any] | None:
    """The last record that has these entries."""
    found = [row for row in rows if all(row.get(name) == key[name] for name in key)]
    return found[-1] if found else None


def num_parameters(path: pathlib.Path, counts: Callable[[str], bool] = bool) -> int:
    """Numbers in a checkpoint's tensors, of those whose names count; nothing is loaded.

    Those of its base (`specdec.checkpoints.bases`) are among them.
    """
    with native.opened(path) as (leaves, _):
        return sum(math.prod(leaf.shape) for name, leaf in leaves.items() if counts(name))


# Tables


def shape_table(folders: Mapping[str, pathlib.Path]) -> str:
    """Shapes from config.json, numbers of parameters and sizes from the weights."""
    configs = {
        name: json.loads((path / "config.json").read_text()) for name, path in folders.items()
    }
    shown = {
        heading: key
        for heading, key in _SHAPE.items()
        if any(key in config for config in configs.values())
    }
    header = ["model", *shown, "parameters", "of them in decoder and head", "file"]
    rows = []
    for name, path in folders.items():
        decoder = num_parameters(path, lambda tensor: not tensor.startswith("encoder/"))
        counts = [f"{count / 1e6:.1f}M" for count in (num_parameters(path), decoder)]
        size = (path / "model.safetensors").stat().st_size
        cells = [str(configs[name].get(key, "-")) for key in shown.values()]
        rows.append([name, *cells, *counts, f"{size / 1e6:.0f} MB"])
    return tables.markdown_of(header, rows)


_SHAPE = {
    "width": "d_model",
    "feed-forward": "d_ff",
    "heads": "num_heads",
    "encoder layers": "num_encoder_layers",
    "decoder layers": "num_decoder_layers",
    "layers": "num_layers",
    "tokens a run": "num_ahead",
}


def data_table(corpus: Mapping[str, Task]) -> str:
    """Pairs and words of the training text, and how often an epoch takes each pair."""
    rows = []
    for name, task in corpus.items():
        pairs = task.pairs()
        num_words = [sum(len(pair[side].split()) for pair in pairs) for side in (0, 1)]
        rows.append([name, *(f"{count:,}" for count in (len(pairs), *num_words))])
        rows[-1].append(f"{task.weight:g}")
    return tables.markdown_of(["source", "pairs", "input words", "output words", "passes"], rows)


def training_table(finished: Sequence[Finished]) -> str:
    """Steps, tokens and last held-out losses of every run."""
    header = ["model, run", "steps", "target tokens", "held-out loss, nats per token", "1 - alpha"]
    rows = []
    for one in finished:
        losses = one.points[-1].losses
        tokens = "-" if math.isnan(one.num_tokens) else f"{one.num_tokens / 1e6:.1f}M"
        numbers = [_number(losses.get(part), 3) for part in ("cross_entropy", "tvd")]
        rows.append([one.label, f"{one.num_steps:,}", tokens, *numbers])
    return tables.markdown_of(header, rows)


_RECIPE = {
    "peak rate": "optimizers.Schedule.peak",
    "warm-up steps": "optimizers.Schedule.warmup",
    "inverse square root from step": "optimizers.Schedule.timescale",
    "share cooled down to zero": "optimizers.Schedule.cooldown",
    "target slots of a batch": "batching.Buckets.slots_per_batch",
    "longest side, tokens": "batching.Buckets.lengths",
}


def recipe_table(runs: Mapping[str, str]) -> str:
    """Settings of every run out of its config.gin, which a run leaves when it is done."""
    rows = []
    for name, folder in runs.items():
        path = pathlib.Path(folder) / "config.gin"
        # Values that gin breaks over lines, joined.
        text = re.sub(r"\s*\\\n\s*|(?<=[,(])\n\s*", " ", path.read_text() if path.is_file() else "")
        bindings = dict(re.findall(r"^([\w.]+) = (\S.*)$", text, re.MULTILINE))
        # Of the buckets' lengths, the last.
        cells = [bindings.get(key, "-").strip("() ").split(", ")[-1] for key in _RECIPE.values()]
        rows.append([name, *cells])
    return tables.markdown_of(["run", *_RECIPE], rows)


def score_table(folders: Mapping[str, pathlib.Path], rows: Sequence[dict]) -> str:
    """A line per test set and model; the pooled set first."""
    header = "test set, model, sentences, BLEU, chrF, length, repeating, loss".split(", ")
    names = dict.fromkeys(row["test_set"] for row in rows if row["kind"] == "translation")
    lines = []
    for test_set in sorted(names, key=lambda name: name != POOLED):
        for model, path in folders.items():
            row = _latest(
                rows, kind="translation", test_set=test_set, model=model, weights=_digest(path)
            )
            if row is not None:
                numbers = [_number(row[key], 1) for key in ("bleu", "chrf")]
                numbers += [_number(row["length_ratio"], 2), _percent(row["repetition_share"])]
                numbers += [_number(row["loss"], 3)]
                lines.append([test_set, model, f"{row['num_examples']:,}", *numbers])
    return tables.markdown_of(header, lines, num_names=2)


def alpha_table(folders: Mapping[str, pathlib.Path], rows: Sequence[dict]) -> str:
    """A line per draft: alpha at every temperature after every stage of training, the last last."""
    alphas = [row for row in rows if row["kind"] == "alpha"]
    temperatures = sorted({row["temperature"] for row in alphas})
    earlier = dict.fromkeys(row["stage"] for row in alphas if row["stage"] not in (FINAL, NO_STAGE))
    stages = [*earlier, FINAL]
    header = ["draft"]
    for temperature in temperatures:
        header += [f"T = {temperature:g}, {stage}" for stage in stages]
    keys = [(name, path) for name, path in folders.items() if name != TARGET] + [(BIGRAM, None)]
    lines = []
    for name, path in keys:
        cells = []
        for temperature in temperatures:
            for stage in stages:
                key = dict(draft=name, stage=stage, temperature=temperature)
                if path is None:
                    # Counted, not trained: the same at every stage.
                    key["stage"] = NO_STAGE
                elif stage == FINAL:
                    key["weights"] = _digest(path)
                row = _latest(alphas, **key)
                cells.append("-" if row is None else _with_error(row))
        lines.append([name, *cells])
    sizes = sorted({f"{row['num_alpha_tokens']:,}" for row in alphas})
    return f"{tables.markdown_of(header, lines)}\n\nTokens per entry: {', '.join(sizes)}."


def environment_line(environment: Mapping[str, Any]) -> str:
    """Where the scores were measured."""
    packages = environment["packages"]
    return (
        f"{environment['num_devices']} x {environment['device']} ({environment['num_cpus']} CPUs), "
        f"Python {environment['python']}, jax {packages['jax']}"
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _with_error(row: Mapping[str, Any]) -> str:
    return f"{row['alpha']:.3f} ± {row['alpha_standard_error']:.3f}"


# The picture


_STYLES = ("-", "--", ":")  # of a student's runs, in order


def draw_curves(finished: Sequence[Finished], path: pathlib.Path) -> None:
    """Held-out loss of the runs that learn from text, and 1 - alpha of those that distil."""
    distilled = [one for one in finished if "tvd" in one.points[-1].losses]
    learned = [one for one in finished if one not in distilled]
    panels = [
        (learned, "cross_entropy", "Held-out loss, nats per token"),
        (distilled, "tvd", "Held-out 1 - alpha, on references"),
    ]
    panels = [panel for panel in panels if panel[0]]
    figure, drawn = pictures.panels([title for _, _, title in panels])
    colors = {
        name: f"C{index}"
        for index, name in enumerate(dict.fromkeys(one.student for one in finished))
    }
    has_tokens = not any(math.isnan(one.num_tokens) for one in finished)
    for axes, (students, part, _) in zip(drawn, panels, strict=True):
        for one in students:
            across = [point.num_tokens / 1e6 if has_tokens else point.step for point in one.points]
            heights = [point.losses[part] for point in one.points]
            runs = [other.run for other in students if other.student == one.student]
            style = dict(color=colors[one.student], linestyle=_STYLES[runs.index(one.run) % 3])
            axes.plot(across, heights, label=one.label, linewidth=1.8, **style)
        axes.set_xlabel("target tokens, millions" if has_tokens else "steps")
        axes.set_xlim(left=0)
        axes.legend(frameon=False, fontsize=9)
    pictures.save(figure, path)
