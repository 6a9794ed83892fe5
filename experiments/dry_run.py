"""What a gin file would run: models, memory, what bandwidth allows, and what is missing.

    python -m experiments.run --dry_run --gin_file=FILE [--gin.MACRO=value ...]

Seconds, on any machine: no weights are read, no data, and nothing is compiled. Checkpoints that
aren't there are told by the shape that their name stands for (`published`).
"""

import copy
import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gin
import jax
import jax.numpy as jnp
import rich

from experiments import paper, published, tables
from experiments.devices import Devices
from experiments.run import one_line
from experiments.tasks import SeqioTask
from specdec import costs, theory
from specdec.checkpoints import forms, strict
from specdec.models import Config, GPTConfig, T5Config, language_model
from specdec.sharding import Layout

# Arguments that hold the path of a checkpoint, and of a file.
_MODEL_NAMES = ("target", "draft", "model", "init_from", "path")
_FILE_NAMES = ("vocabulary", "counts")
# Memory bandwidth, GB/s, as their makers give it.
BANDWIDTHS = {"TPU v4": 1228, "A100 80 GB": 2039, "H100": 3350}
ALPHAS = (0.5, 0.6, 0.7, 0.8)
SOURCE_LENGTH = 512


class Model(NamedTuple):
    """A model that the experiment names; config is None where its shape isn't known."""

    name: str
    config: Config | None
    path: str = ""


def dry_run(experiment: Any, missing: Sequence[str] = ()) -> None:
    """Prints what is known of an experiment that gin has configured, and is missing beside that."""
    arguments, unresolved = resolved(experiment)
    models, problems = models_in(arguments)
    missing = [*missing, *unresolved, *problems, *files_missing(arguments)]
    rich.print(f"[bold]{experiment.__module__.rsplit('.', 1)[-1]}.{experiment.__name__}[/bold]")
    for name, value in arguments.items():
        if isinstance(value, int | float | str | tuple):
            rich.print(f"  {name} = {value!r}")
    layouts = layouts_in(arguments)
    dtype = arguments.get("dtype", "float32")
    known = [model for model in models if model.config is not None]
    if known:
        rows = [model_row(model, dtype, layouts, arguments) for model in known]
        tables.show(tables.of("Models", COLUMNS, rows))
    for target in {target.name: target for target, _ in pairs_of(known)}.values():
        show_bounds(target, dtype, arguments)
    for target, draft in pairs_of(known):
        show_speeds(target, draft, dtype, arguments)
    if missing:
        rich.print("[bold]Missing:[/bold]")
        for one in dict.fromkeys(missing):
            print(f"  - {one}")
    else:
        rich.print("Nothing is missing.")


def resolved(experiment: Any) -> tuple[dict[str, Any], list[str]]:
    """The arguments that gin gives an experiment, and why others can't be told."""
    arguments, missing = {}, []
    for name, value in gin.get_bindings(experiment, resolve_references=False).items():
        try:
            arguments[name] = copy.deepcopy(value)  # which is how gin resolves references
        except (ValueError, OSError, RuntimeError, TypeError) as error:
            missing.append(f"{name}: {str(error).strip().splitlines()[0]}")
    return arguments, missing


# Models


def models_in(arguments: Mapping[str, Any]) -> tuple[list[Model], list[str]]:
    """The models that the arguments name, and the checkpoints that can't be read."""
    models, problems = {}, []
    for name, key, value in _walk(arguments, ""):
        if isinstance(value, T5Config | GPTConfig):
            models[name.removesuffix(".config")] = Model(name.removesuffix(".config"), value)
        elif isinstance(value, str) and value and _is_model(key, value):
            name = name.removesuffix(".path")
            known = published.of_path(value)
            try:
                with forms.opened(value) as (_, config):
                    models[name] = Model(name, config, value)
            except ValueError as error:
                problems.append(one_line(error) + (f". {how_to_get(value)}" if known else ""))
                models[name] = Model(name, known and known.config, value)
    return list(models.values()), problems


def _walk(value: Any, name: str, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """(dotted name, last name, value) of all that lies in an argument."""
    yield name, key, value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, T5Config | GPTConfig):
            return
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        inner = [(str(one), value[one]) for one in value]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        inner = [(str(getattr(one, "name", i)), one) for i, one in enumerate(value)]
    else:
        return
    for one, part in inner:
        yield from _walk(part, f"{name}.{one}".lstrip("."), key if one.isdigit() else one)


def _is_model(key: str, value: str) -> bool:
    is_file = pathlib.PurePath(value).suffix != ""
    is_named = key != "name" and published.of_path(value) is not None
    return (key in _MODEL_NAMES or is_named) and not is_file


def how_to_get(path: str) -> str:
    """A sentence about where a checkpoint comes from that is named after a public one."""
    one = published.of_path(path)
    if pathlib.PurePath(path).name != one.name:
        return f"It is {one.name}, fine-tuned by gin_configs/train/finetune_*.gin"
    return f"It is public: {one.bucket} (T5X's form) or {one.hub} (Hugging Face's)"


def files_missing(arguments: Mapping[str, Any]) -> list[str]:
    found = []
    for _, key, value in _walk(arguments, ""):
        if isinstance(value, SeqioTask):
            try:
                value.check()
            except ValueError as error:
                found.append(str(error))
        elif key in _FILE_NAMES and isinstance(value, str) and not pathlib.Path(value).is_file():
            found.append(f"no {key} at {value!r}")
    return found


def pairs_of(models: Sequence[Model]) -> Iterator[tuple[Model, Model]]:
    """Targets with their drafts, by their names."""
    for target in models:
        if target.name.split(".")[-1] != "target":
            continue
        beside = target.name.removesuffix("target")
        for draft in models:
            is_named = draft.name == f"{beside}draft" or draft.name.startswith(f"{beside}drafts.")
            if is_named:
                yield target, draft


# Memory


def layouts_in(arguments: Mapping[str, Any]) -> tuple[Layout, Layout] | None:
    """The layouts that the arguments ask for, without their devices."""
    for value in arguments.values():
        # A mesh that wasn't given is told as missing.
        if isinstance(value, Devices) and isinstance(value.mesh, Mapping):
            return value.abstract_layouts()
    return None


@functools.cache
def shapes_of(config: Config, dtype: Any) -> Any:
    """Parameters as shapes."""
    params = jax.eval_shape(lambda: language_model(config).init(jax.random.key(0)))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype)), params)


def bytes_per_device(params: Any, layout: Layout | None) -> int:
    """Of the weights, on the device that holds most."""
    total = 0
    for name, leaf in strict.flatten(params).items():
        shape = leaf.shape
        if layout is not None:
            shape = layout.parameter(name, shape).shard_shape(shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


def cache_bytes(config: Config, dtype: Any, arguments: Mapping[str, Any]) -> int:
    """Keys and values of a row, as long as it may get."""
    config = dataclasses.replace(config, dtype=jnp.dtype(dtype))
    decoder_length = arguments.get("max_new_tokens", 128) + arguments.get("gamma", 0) + 2
    if isinstance(config, GPTConfig):
        per_slot = 2 * config.num_heads * config.head_dim * config.dtype.itemsize
        return config.num_layers * decoder_length * per_slot
    source = arguments.get("max_source_tokens") or SOURCE_LENGTH
    return costs.cache_bytes(config, encoder_length=source, decoder_length=decoder_length)


def model_row(
    model: Model, dtype: Any, layouts: tuple[Layout, Layout] | None, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    params = shapes_of(model.config, dtype)
    layout = None if layouts is None else layouts["draft" in model.name.split(".")[-1]]
    return {
        "model": model.name,
        "path": model.path,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "bytes": costs.tree_bytes(params),
        "bytes_per_device": bytes_per_device(params, layout),
        "step_bytes": step_bytes(model.config, params),
        "cache_bytes": cache_bytes(model.config, dtype, arguments),
        "dtype": dtype,
    }


def step_bytes(config: Config, params: Any) -> int:
    """Weights that a step of the decoder reads."""
    if isinstance(config, GPTConfig):
        return costs.tree_bytes(params) - costs.tree_bytes(params["token_embedder"])
    return costs.weight_bytes(params, config)


COLUMNS = {
    "model": lambda row: row["model"],
    "checkpoint": lambda row: row["path"] or "-",
    "parameters": lambda row: f"{row['parameters'] / 1e6:,.1f}M",
    "weights\nGB": lambda row: f"{row['bytes'] / 1e9:.3f}",
    "a device\nGB": lambda row: f"{row['bytes_per_device'] / 1e9:.3f}",
    "read in\na step, GB": lambda row: f"{row['step_bytes'] / 1e9:.3f}",
    "caches of\na row, MB": lambda row: f"{row['cache_bytes'] / 1e6:.1f}",
    "dtype": lambda row: str(row["dtype"]),
}


# Speed


def show_bounds(target: Model, dtype: Any, arguments: Mapping[str, Any]) -> None:
    """What a device's bandwidth allows plain decoding, once the caches are full."""
    read = step_bytes(target.config, shapes_of(target.config, dtype))
    read += cache_bytes(target.config, dtype, arguments)
    bounds = [f"{each * 1e9 / read:,.0f} on {device}" for device, each in BANDWIDTHS.items()]
    rich.print(f"[bold]{target.name}[/bold], plain, tokens/s at most: {', '.join(bounds)}")


def show_speeds(target: Model, draft: Model, dtype: Any, arguments: Mapping[str, Any]) -> None:
    """What Theorem 3.8 makes of a draft that takes the time of what it reads."""
    read = [step_bytes(one.config, shapes_of(one.config, dtype)) for one in (target, draft)]
    c = read[1] / read[0]
    gamma = arguments.get("gamma")
    rich.print(f"[bold]{target.name} and {draft.name}[/bold]: c = {c:.3f} by what a step reads")
    for alpha in ALPHAS:
        best = theory.optimal_gamma(alpha, c) if alpha > c else 0
        chosen = best if gamma is None else gamma
        factor = float(theory.walltime_factor(alpha, chosen, c))
        note = "" if gamma is None else f", best gamma {best}"
        rich.print(f"  alpha {alpha}: {factor:.2f} times at gamma {chosen} (Theorem 3.8{note})")
    row = paper_row(arguments)
    if row is not None:
        ours = float(theory.walltime_factor(row.alpha, row.gamma, row.c))
        rich.print(
            f"  the paper: alpha {row.alpha}, c {row.c}, gamma {row.gamma}: {row.speed} times "
            f"measured, {row.expected} expected; Theorem 3.8 gives {ours:.2f}"
        )


def paper_row(arguments: Mapping[str, Any]) -> paper.Measured | None:
    """The row of Table 2 that the experiment's name tells: "table 2, EnDe, small, T=0"."""
    for row in paper.TABLES_2_AND_4:
        if arguments.get("name") == row.name:
            return row
    return None
