"""Other programs on the same weights and sentences, in turn with ours: greedy, one at a time.

All times are of whole requests, encoders included, over the tokens that came out. A system in
float32 must give our plain decoding's own ids; where it doesn't, the record says if it is a tie.
"""

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import records, tables
from experiments.baselines import t5x
from experiments.data import Task, first_pairs
from specdec import identity, metrics, timing
from specdec.checkpoints import huggingface as their_form
from specdec.config import SpecConfig
from specdec.generation import Decoded
from specdec.sampling import settings
from specdec.text import TextPair, load_pair

logger = logging.getLogger(__name__)
PLAIN, SPECULATIVE = "specdec plain", "specdec speculative"
_LOSSY = "CTranslate2 int8"  # another model: its ids are counted, not judged
COLUMNS = {
    "system": lambda row: row["system"],
    "ms / token": lambda row: f"{1e3 * row['seconds_per_token']:.2f}",
    "specdec plain\nis faster by": lambda row: _interval(row["plain_over"]),
    "specdec speculative\nis faster by": lambda row: _interval(row["speculative_over"]),
    "identical": lambda row: f"{row['identical']}/{row['num_sentences']}",
    "ties": lambda row: str(len(row["ties"])),
    "other": lambda row: str(len(row["others"])),
}
Run = Callable[[int], list[int]]  # a sentence's number -> ids


def race(
    output_dir: str,
    *,
    target: str,
    draft: str,
    vocabulary: str,
    task: Task,
    gamma: int,
    max_new_tokens: int = 128,
    num_sentences: int = 40,
    repeats: int = 5,
) -> None:
    """Times all systems on each sentence in turn, and writes a record a system.

    Args:
      output_dir: of the results; the target in Hugging Face's form goes there, too.
      target, draft, vocabulary: paths, see `specdec.text.load_pair`.
      task: sentences and their prefix.
      gamma: drafts a round, ours and theirs.
      max_new_tokens: most tokens of an output.
      num_sentences: the task's first.
      repeats: of every sentence; its median counts.

    Raises:
      ValueError: if a package is missing, or for settings and files that make no sense.
    """
    if gamma < 1:
        raise ValueError(f"gamma={gamma}: must be 1 or more, plain decoding is always in")
    sentences = first_pairs(task, num_sentences)
    pair = load_pair(target, draft, vocabulary, prefix=task.prefix)
    config = pair.config(gamma=gamma, max_new_tokens=max_new_tokens)
    requests = [pair.request([text], 0) for text, _ in sentences]
    about = dict(target=target, draft=draft, task=task.path, gamma=gamma)
    about |= dict(max_new_tokens=max_new_tokens, num_sentences=num_sentences, repeats=repeats)
    records.claim(output_dir, experiment="peers", **about)
    records.write_environment(output_dir)
    folder = str(pathlib.Path(output_dir) / "target")
    their_form.save(folder, pair.params.target, pair.target.config)
    systems = {
        **our_systems(pair, requests, config),
        **their_systems(pair, requests, config, folder),
        **t5x_systems(pair, requests, config),
    }
    outputs, seconds = run_in_turn(systems, len(sentences), repeats)
    found = rows(pair, requests, config, outputs, seconds)
    for row in found:
        row |= {"experiment": "peers", **about, "device": jax.devices()[0].device_kind}
        records.append(output_dir, row)
    tables.show(tables.of(f"The same weights elsewhere, gamma {gamma}", COLUMNS, found))


def our_systems(pair: TextPair, requests: Sequence, config: SpecConfig) -> dict[str, Run]:
    """Both ways of ours, from request to ids on the host."""
    how = settings(0)

    def ids(result: Decoded) -> list[int]:
        tokens, lengths = jax.device_get((result.tokens, result.lengths))
        return tokens[0, : lengths[0]].tolist()

    return {
        PLAIN: lambda n: ids(pair.plain(requests[n], how, config)),
        SPECULATIVE: lambda n: ids(pair.speculate(requests[n], how, config)),
    }


def their_systems(
    pair: TextPair, requests: Sequence, config: SpecConfig, folder: str
) -> dict[str, Run]:
    """The other programs, each with the sentences' ids.

    Raises:
      ValueError: if a package is missing.
    """
    try:
        from experiments.baselines import ctranslate2, huggingface
    except ImportError as error:
        raise ValueError(
            f"the other programs need {error.name}: pip install -e '.[baselines]'"
        ) from error
    sources = [
        np.asarray(inputs.tokens)[0, : int(inputs.lengths[0])].tolist() for inputs, _, _ in requests
    ]
    most = dict(max_new_tokens=config.max_new_tokens)
    theirs = huggingface.load(folder)
    draft = huggingface.draft_of(pair.params.draft, pair.drafter.model.config, theirs)
    decoders = {
        "CTranslate2 float32": ctranslate2.greedy(folder, **most),
        _LOSSY: ctranslate2.greedy(folder, compute_type="int8", **most),
        "transformers": huggingface.greedy(theirs, **most),
        "transformers assisted": huggingface.assisted(theirs, draft, gamma=config.gamma, **most),
        "transformers lookup": huggingface.by_lookup(theirs, gamma=config.gamma, **most),
    }
    return {name: lambda n, decode=decode: decode(sources[n]) for name, decode in decoders.items()}


def t5x_systems(pair: TextPair, requests: Sequence, config: SpecConfig) -> dict[str, Run]:
    """T5X's decoding loop over its own network and over ours; none where it isn't installed."""
    how = dict(model=pair.target, max_new_tokens=config.max_new_tokens)
    try:
        decoders = {
            name: t5x.greedy(pair.params.target, is_theirs=is_theirs, **how)
            for name, is_theirs in (("t5x", True), ("t5x over our network", False))
        }
    except ValueError as error:
        logger.info("without t5x: %s", error)
        return {}

    def ids(row: jax.Array) -> list[int]:
        tokens = np.asarray(row).tolist()
        return tokens[: tokens.index(config.eos_id) + 1] if config.eos_id in tokens else tokens

    return {
        name: lambda n, decode=decode: ids(decode(requests[n][0])[0])
        for name, decode in decoders.items()
    }


def run_in_turn(
    systems: Mapping[str, Run], num_sentences: int, repeats: int
) -> tuple[dict[str, list[list[int]]], dict[str, np.ndarray]]:
    """Outputs of every system by sentence, and median seconds [num_sentences]."""
    outputs = {name: [] for name in systems}
    seconds = {name: [] for name in systems}
    for number in range(num_sentences):
        for name, run in systems.items():
            outputs[name].append(run(number))
        runs = {name: lambda run=run, number=number: run(number) for name, run in systems.items()}
        for name, times in timing.interleaved(runs, repeats).items():
            seconds[name].append(np.median(times))
        if (number + 1) % 10 == 0 or number + 1 == num_sentences:
            logger.info("%d/%d sentences", number + 1, num_sentences)
    return outputs, {name: np.array(times) for name, times in seconds.items()}


def rows(
    pair: TextPair,
    requests: Sequence,
    config: SpecConfig,
    outputs: Mapping[str, list[list[int]]],
    seconds: Mapping[str, np.ndarray],
) -> list[dict[str, Any]]:
    """A record a system: times, how much faster ours are, and whose ids differ."""
    found = []
    per_token = {
        name: times / np.mean([len(ids) for ids in outputs[name]])
        for name, times in seconds.items()
    }
    for name, ids in outputs.items():
        differing = [number for number, one in enumerate(ids) if one != outputs[PLAIN][number]]
        judged = [
            {"sentence": n, **dataclasses.asdict(one)}
            for n in ([] if name == _LOSSY else differing)
            for one in _judge(pair, requests[n], config, outputs[PLAIN][n], ids[n])
        ]
        row = {
            "system": name,
            "num_tokens": sum(map(len, ids)),
            "seconds_per_token": float(per_token[name].mean()),
            "identical": len(ids) - len(differing),
            "ties": [one for one in judged if one["is_tie"]],
            "others": [one for one in judged if not one["is_tie"]],
        }
        for key, ours in (("plain_over", PLAIN), ("speculative_over", SPECULATIVE)):
            row[key] = list(metrics.ratio_interval(per_token[name], per_token[ours]))
        found.append(row)
    return found


def _judge(pair: TextPair, request, config: SpecConfig, plain: list[int], other: list[int]):
    inputs, prompt, _ = request
    results = (_as_decoded(ids, config.max_new_tokens) for ids in (plain, other))
    return identity.differences(
        *results, pair.params.target, inputs, prompt, model=pair.target, num_ids=config.num_ids
    )


def _as_decoded(ids: list[int], num_slots: int) -> Decoded:
    tokens = jnp.array([ids + [0] * (num_slots - len(ids))])
    nothing = jnp.zeros_like(tokens)
    lengths = jnp.array([len(ids)])
    return Decoded(tokens, lengths, lengths, nothing, nothing, nothing, lengths)


def _interval(ratio: Sequence[float]) -> str:
    middle, low, high = ratio
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"
