"""Reads and writes T5X's own checkpoints of T5 1.0 and 1.1, without t5x or TensorFlow.

Three forms are read, from a disk or from "gs://bucket/path" (tensorstore reads both):

    native   a folder whose file `checkpoint` is a msgpack map {version, optimizer: {target,
             state}}; a leaf is an array in it, or describes a zarr array in a folder beside it,
             target.encoder.layers_0.attention.query.kernel
    one file the same map with all arrays in it
    orbax    a folder with _METADATA, or one whose map says "PLACEHOLDER://name"; arrays in zarr
             folders or in one OCDBT store

A model whose layers are scanned (t5x's scalable_t5) holds one stacked array a side and parameter,
its layers along axis 1, and a position bias in every layer; it is read where those are all the
same, as in T5 1.0 and 1.1.

The checkpoint says neither the shape of the model nor whether logits are scaled: the first follows
from the arrays, the second from whether there is a head of its own, as T5 has it.
"""

import ast
import contextlib
import json
import mmap
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from flax import serialization

from specdec.checkpoints import folders, leaves, msgpack_map, strict
from specdec.checkpoints.leaves import Index, Leaf, ShardingFn
from specdec.checkpoints.msgpack_map import Packed
from specdec.checkpoints.strict import CheckpointError
from specdec.models.t5 import T5Config

VERSION = 3
INDEX, METADATA, OCDBT = "checkpoint", "_METADATA", "manifest.ocdbt"
_PLACEHOLDER = "PLACEHOLDER://"
# Orbax puts a checkpoint's items into folders of these names.
_ITEMS = ("", "state/", "default/", "params/", "items/")
# What stands before the parameters' own names in one form or another.
_ROOTS = (("optimizer", "target"), ("target",), ("params",))
_SCANNED = re.compile(r"(encoder|decoder)/layers/(.+)")
_SCAN_AXIS = 1
_CHUNK_BYTES = 16 << 20

Raw = dict[tuple[str, ...], Leaf]  # parameters by the path of keys, the root still on it


def load(
    path: str | os.PathLike,
    dtype: Any = jnp.float32,
    *,
    stays_narrow: bool = False,
    sharding_fn: ShardingFn | None = None,
) -> tuple[dict[str, Any], T5Config]:
    """Reads a T5X checkpoint.

    Args:
      path: the folder `checkpoint_N`, the folder that holds just one such, or the file of the
        one-file form; may begin with gs://.
      dtype: float32 or bfloat16, of the parameters and of the config that come back.
      stays_narrow, sharding_fn: see `leaves.place`.

    Returns:
      Nested parameters, and the config.

    Raises:
      CheckpointError: if it is no T5, or anything is missing, left over, of another shape, or cut
        short.
    """
    how = dict(stays_narrow=stays_narrow, sharding_fn=sharding_fn)
    return strict.loaded(opened(path, dtype), dtype, **how)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike, dtype: Any = jnp.float32
) -> Iterator[tuple[dict[str, Leaf], T5Config]]:
    """Yields the parameters by name, checked but not read, and the config, in a dtype."""
    where = _only_step(str(path))
    with contextlib.ExitStack() as stack:
        flat = _unscanned(where, _without_roots(where, _raw_leaves(where, stack)))
        config = config_of(where, flat, dtype)
        strict.check_names_and_shapes(
            where,
            strict.expected_shapes(config),
            {name: leaf.shape for name, leaf in flat.items()},
            "It is no T5 1.0 or 1.1 of t5x, or the copy is not whole.",
            strict.non_float_problems(flat),
        )
        yield flat, config


def is_likely(path: str | os.PathLike) -> bool:
    """Whether a path is for `load` to take, or to refuse."""
    if "://" in str(path) or _is_file(str(path)):
        return True
    folder = pathlib.Path(path)
    items = [folder / item / name for item in _ITEMS for name in (INDEX, METADATA)]
    return any(map(pathlib.Path.is_file, items)) or any(folder.glob("checkpoint_*"))


def config_of(where: str, flat: Mapping[str, Leaf], dtype: Any = jnp.float32) -> T5Config:
    """The model that parameters of these names and shapes belong to.

    Raises:
      CheckpointError: where the names that tell the shape are missing.
    """
    telling = {
        "table": "token_embedder/embedding",
        "bias": "decoder/relpos_bias/rel_embedding",
        "query": "decoder/layers_0/self_attention/query/kernel",
        "out": "decoder/layers_0/mlp/wo/kernel",
    }
    missing = [f"missing {name}" for name in telling.values() if name not in flat]
    strict.fail_if_any(where, missing, "It is no T5 of t5x.")
    table, bias, query, out = (flat[name].shape for name in telling.values())
    if [len(shape) for shape in (table, bias, query, out)] != [2] * 4 or query[1] % bias[0]:
        raise CheckpointError(f"{where}: {table}, {bias}, {query}, {out} are no shapes of a T5")
    try:
        return T5Config(
            vocab_size=table[0],
            d_model=table[1],
            d_ff=out[0],
            num_heads=bias[0],
            head_dim=query[1] // bias[0],
            num_encoder_layers=_num_layers(flat, "encoder"),
            num_decoder_layers=_num_layers(flat, "decoder"),
            gated="decoder/layers_0/mlp/wi_0/kernel" in flat,
            tied="decoder/logits_dense/kernel" not in flat,
            num_buckets=bias[1],
            dtype=jnp.dtype(dtype),
        )
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _num_layers(flat: Mapping[str, Leaf], side: str) -> int:
    layers = (re.match(rf"{side}/layers_(\d+)/", name) for name in flat)
    return max((int(layer.group(1)) + 1 for layer in layers if layer), default=0)


# Reading


def _is_file(where: str) -> bool:
    return "://" not in where and pathlib.Path(where).is_file()


def _url(where: str) -> str:
    """As tensorstore takes it, of a folder."""
    if "://" in where:
        return where.rstrip("/") + "/"
    return pathlib.Path(where).resolve().as_uri() + "/"


def _read_key(folder: str, name: str) -> bytes | None:
    """A file of a folder, None if there is none."""
    found = ts.KvStore.open(folder).result().read(name).result()
    return bytes(found.value) if found.state == "value" else None


def _find(where: str, name: str) -> tuple[str, bytes] | None:
    """The folder that holds such a file, the checkpoint's own or an item's, and the content."""
    for item in _ITEMS:
        content = _read_key(_url(where) + item, name)
        if content is not None:
            return _url(where) + item, content
    return None


@contextlib.contextmanager
def _mapped(where: str) -> Iterator[mmap.mmap]:
    with open(where, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _raw_leaves(where: str, stack: contextlib.ExitStack) -> Raw:
    try:
        if _is_file(where):
            return _of_map(where, "", stack.enter_context(_mapped(where)))
        index = _find(where, INDEX)
        if index is not None:
            return _of_map(where, *index)
        metadata = _find(where, METADATA)
        if metadata is not None:
            return _of_metadata(where, *metadata)
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{where}: can't be read ({error}): copy it again") from error
    raise CheckpointError(f"no T5X checkpoint at {where!r}: {_instead(where)}")


def _only_step(where: str) -> str:
    """A run's folder stands for its checkpoint_N, if there is just one."""
    inner = _steps(where)
    return (
        str(inner[0]) if len(inner) == 1 and not (pathlib.Path(where) / INDEX).exists() else where
    )


def _steps(where: str) -> list[pathlib.Path]:
    return [] if "://" in where else sorted(pathlib.Path(where).glob("checkpoint_*"))


def _instead(where: str) -> str:
    inner = _steps(where)
    if inner:
        return f"it holds {', '.join(one.name for one in inner)}: give one of these"
    return f"it must be a folder with a file {INDEX} or {METADATA}, or the one-file form"


def _of_map(where: str, folder: str, content: Any) -> Raw:
    """The leaves of a msgpack index, in it or beside it."""
    found: Raw = {}
    beside = {}
    for path, value in msgpack_map.walk(content):
        if _root_of(path) is None:
            continue
        if isinstance(value, Packed):
            found[path] = Leaf(value.shape, value.dtype, _reads_packed(content, value))
        elif isinstance(value, str) and value.startswith(_PLACEHOLDER):
            beside[path] = value.removeprefix(_PLACEHOLDER)
        elif path[-2:] == ("kvstore", "path"):
            beside[path[:-2]] = str(value).rstrip("/").rsplit("/", 1)[-1]
    return found | _arrays(folder, beside)


def _reads_packed(content: Any, packed: Packed) -> Callable[[Index], np.ndarray]:
    return lambda index: packed.read(content, index)


def _of_metadata(where: str, folder: str, content: bytes) -> Raw:
    """The leaves of an orbax checkpoint."""
    metadata = json.loads(content)
    if not isinstance(metadata.get("tree_metadata"), dict):
        raise CheckpointError(f"{where}: {METADATA} has no tree_metadata")
    paths = (tuple(map(str, ast.literal_eval(name))) for name in metadata["tree_metadata"])
    beside = {path: ".".join(path) for path in paths if _root_of(path) is not None}
    return _arrays(folder, beside, driver="zarr3" if metadata.get("use_zarr3") else "zarr")


def _arrays(folder: str, beside: Mapping[tuple[str, ...], str], driver: str = "zarr") -> Raw:
    """Arrays in folders of their own, or in the folder's OCDBT store, by their names."""
    is_ocdbt = bool(beside) and _read_key(folder, OCDBT) is not None

    def opening(name: str) -> Any:
        inner = {"driver": "ocdbt", "base": folder, "path": f"{name}/"}
        kvstore = inner if is_ocdbt else f"{folder}{name}/"
        return ts.open({"driver": driver, "kvstore": kvstore}, read=True)

    # All at once: on gs:// each waits for an answer.
    arrays = {path: opening(name) for path, name in beside.items()}
    return {path: _leaf_of(array.result()) for path, array in arrays.items()}


def _leaf_of(array: Any) -> Leaf:
    def read(index: Index) -> np.ndarray:
        return array[index].read().result()

    return Leaf(tuple(array.shape), array.dtype.name, read)


# Names


def _root_of(path: tuple[str, ...]) -> tuple[str, ...] | None:
    return next((root for root in _ROOTS if path[: len(root)] == root), None)


def _without_roots(where: str, raw: Raw) -> dict[str, Leaf]:
    """The parameters by their own names."""
    flat = {"/".join(path[len(_root_of(path)) :]): leaf for path, leaf in raw.items()}
    if not flat:
        raise CheckpointError(f"{where}: holds none of {', '.join(map('/'.join, _ROOTS))}")
    return flat


def _unscanned(where: str, flat: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Stacked layers, one by one; what isn't stacked stays as it is."""
    found: dict[str, Leaf] = {}
    for name, leaf in flat.items():
        scanned = _SCANNED.fullmatch(name)
        if scanned is None:
            found[name] = leaf
            continue
        side, rest = scanned.groups()
        if len(leaf.shape) <= _SCAN_AXIS:
            raise CheckpointError(f"{where}: {name} {leaf.shape} has no axis of layers")
        layers = [leaf.slice_of(i, _SCAN_AXIS) for i in range(leaf.shape[_SCAN_AXIS])]
        if rest == "relative_posemb/rel_embedding":
            found[f"{side}/relpos_bias/rel_embedding"] = _shared_bias(where, name, layers)
        else:
            found |= {f"{side}/layers_{i}/{rest}": layer for i, layer in enumerate(layers)}
    return found


def _shared_bias(where: str, name: str, layers: list[Leaf]) -> Leaf:
    first, *others = (layer.read() for layer in layers)
    if not all(np.array_equal(first, other) for other in others):
        raise CheckpointError(
            f"{where}: {name} differs from layer to layer (as in umT5): only a position bias that "
            "all layers share is read"
        )
    return layers[0]


# Writing


def save(
    path: str | os.PathLike,
    params: Mapping[str, Any],
    config: T5Config,
    *,
    storage_dtype: Any = jnp.float32,
    step: int = 0,
) -> None:
    """Writes T5X's native form, without an optimiser's state.

    t5x takes it for decoding and, told to start with a fresh optimiser, for training.

    Args:
      path: the folder, by habit `checkpoint_N`; an older one is replaced, whole or not at all.
      params: nested parameters under t5x's names.
      config: of the model they belong to.
      storage_dtype: of the arrays; None = as they are.
      step: the training step that is written.

    Raises:
      CheckpointError: if t5x has no such model (no encoder of its own, a short head, a scale that
        isn't T5's), if the parameters are not the config's, or if `path` holds other things.
    """
    write(path, leaves.in_memory(strict.flatten(params)), config, storage_dtype, step=step)


def write(
    path: str | os.PathLike,
    flat: Mapping[str, Leaf],
    config: T5Config,
    storage_dtype: Any = None,
    *,
    step: int = 0,
) -> None:
    """`save` of parameters that may lie in a file yet, under their names joined by "/"."""
    problems = strict.partial_model_problems(config)
    if config.scale_logits not in (None, config.tied):
        problems.append(f"scale_logits={config.scale_logits} with tied={config.tied}")
    strict.fail_if_any(path, problems, "t5x's T5 has no such model: keep it in our form.")
    strict.check_parameters(flat, config)

    def fill(folder: pathlib.Path) -> None:
        target = {}
        for name, leaf in flat.items():
            target[name] = _write_array(folder, name, leaf, storage_dtype)
        optimizer = {"target": strict.unflatten(target), "state": {"step": np.int32(step)}}
        content = serialization.msgpack_serialize({"version": VERSION, "optimizer": optimizer})
        (folder / INDEX).write_bytes(content)

    folders.write(path, fill, is_ours_fn=_is_ours)


def _is_ours(name: str) -> bool:
    return name == INDEX or name.startswith(("target.", "state."))


def _chunks(array: np.ndarray) -> list[int]:
    """Rows that make up to 16 MB: a reader holds a chunk at a time. T5X's own have 64."""
    if array.nbytes <= _CHUNK_BYTES or not array.ndim:
        return list(array.shape)
    per_row = array.nbytes // array.shape[0]
    return [max(_CHUNK_BYTES // per_row, 1), *array.shape[1:]]


def _write_array(folder: pathlib.Path, name: str, leaf: Leaf, dtype: Any) -> dict[str, Any]:
    """Writes a zarr array, and returns its description for the index."""
    array = np.asarray(leaf.read(), jnp.dtype(leaf.dtype if dtype is None else dtype))
    path = f"target.{name.replace('/', '.')}/"
    metadata = {
        "shape": list(array.shape),
        "chunks": _chunks(array),
        "compressor": {"id": "gzip", "level": 1},
    }
    about = {"driver": "zarr", "dtype": array.dtype.name, "metadata": metadata}
    store = ts.open({**about, "kvstore": _url(str(folder)) + path}, create=True).result()
    store.write(array).result()
    return {**about, "kvstore": {"driver": "file", "path": path}}
