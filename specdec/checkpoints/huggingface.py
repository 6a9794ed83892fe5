"""Reads and writes T5 1.0 and 1.1 folders in Hugging Face's form: config.json + safetensors.

Hugging Face's Linear weights are [out, in], t5x's kernels [in, out], hence the transposes. The
position bias lies in block 0 of each side and is shared by all its layers.

mT5 is read, too. Neither torch nor transformers is needed.
"""

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import folders, leaves, shards, strict
from specdec.checkpoints.folders import CONFIG
from specdec.checkpoints.leaves import Leaf, ShardingFn
from specdec.checkpoints.strict import CheckpointError
from specdec.models.t5 import T5Config

# Hugging Face name, t5x name, transposed.
NAME_MAP: tuple[tuple[str, str, bool], ...] = (
    ("shared.weight", "token_embedder/embedding", False),
    ("lm_head.weight", "decoder/logits_dense/kernel", True),
    *(
        row
        for side in ("encoder", "decoder")
        for row in (
            (
                f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                f"{side}/relpos_bias/rel_embedding",
                True,
            ),
            (f"{side}.final_layer_norm.weight", f"{side}/{side}_norm/scale", False),
        )
    ),
    *(
        (f"{block}.{theirs}.weight", f"{layer}/{ours}/kernel", True)
        for block, layer in (
            ("encoder.block.{i}.layer.0.SelfAttention", "encoder/layers_{i}/attention"),
            ("decoder.block.{i}.layer.0.SelfAttention", "decoder/layers_{i}/self_attention"),
            (
                "decoder.block.{i}.layer.1.EncDecAttention",
                "decoder/layers_{i}/encoder_decoder_attention",
            ),
        )
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))
    ),
    *(
        (f"{block}.DenseReluDense.{name}.weight", f"{layer}/mlp/{name}/kernel", True)
        for block, layer in (
            ("encoder.block.{i}.layer.1", "encoder/layers_{i}"),
            ("decoder.block.{i}.layer.2", "decoder/layers_{i}"),
        )
        for name in ("wi", "wi_0", "wi_1", "wo")
    ),
    *(
        (f"{block}.layer_norm.weight", f"{layer}_layer_norm/scale", False)
        for block, layer in (
            ("encoder.block.{i}.layer.0", "encoder/layers_{i}/pre_attention"),
            ("encoder.block.{i}.layer.1", "encoder/layers_{i}/pre_mlp"),
            ("decoder.block.{i}.layer.0", "decoder/layers_{i}/pre_self_attention"),
            ("decoder.block.{i}.layer.1", "decoder/layers_{i}/pre_cross_attention"),
            ("decoder.block.{i}.layer.2", "decoder/layers_{i}/pre_mlp"),
        )
    ),
)
_BY_T5X_NAME = {ours: (theirs, transposed) for theirs, ours, transposed in NAME_MAP}

# Further names of the embedding table. A copy may lie in the file; another table may not.
_ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Written by early versions of transformers, read by none.
_UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def load(
    path: str | os.PathLike,
    dtype: Any = jnp.float32,
    *,
    stays_narrow: bool = False,
    sharding_fn: ShardingFn | None = None,
) -> tuple[dict[str, Any], T5Config]:
    """Reads a Hugging Face T5 folder.

    The config's dropout_rate stays 0: dropout is the trainer's setting, not the weights'.

    Args:
      path: a folder with config.json and model.safetensors, or the latter's shards and index.
      dtype: float32 or bfloat16, of the parameters and of the config that come back, whatever the
        dtype in the files.
      stays_narrow, sharding_fn: see `leaves.place`.

    Returns:
      Nested parameters under t5x's names, and the config.

    Raises:
      CheckpointError: if it is no such T5, or anything is missing, left over, of another shape, or
        cut short.
    """
    how = dict(stays_narrow=stays_narrow, sharding_fn=sharding_fn)
    return strict.loaded(opened(path, dtype), dtype, **how)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike, dtype: Any = jnp.float32
) -> Iterator[tuple[dict[str, Leaf], T5Config]]:
    """Yields the parameters by t5x's names, checked but not read, and the config, in a dtype."""
    path = pathlib.Path(path)
    content = strict.read_json(path / CONFIG)
    with shards.opened(shards.files(path)) as tensors:
        ties = content.get("tie_word_embeddings", True)
        has_head = "lm_head.weight" in tensors
        config = _config(path / CONFIG, content, tied=ties and not has_head, dtype=dtype)
        _check(path, config, tensors)
        if has_head and _is_same(tensors, "lm_head.weight", "shared.weight"):
            config = _config(path / CONFIG, content, tied=True, dtype=dtype)
        flat = {}
        for name in strict.expected_shapes(config):
            theirs, transposed = hf_name(name)
            flat[name] = tensors[theirs].transposed if transposed else tensors[theirs]
        yield flat, config


def save(
    path: str | os.PathLike,
    params: Mapping[str, Any],
    config: T5Config,
    *,
    storage_dtype: Any = jnp.float32,
) -> None:
    """Writes a folder that transformers' T5ForConditionalGeneration reads.

    Start, padding and end of sequence are T5's ids 0, 0 and 1. transformers before 5 takes
    the logits' scale from `tie_word_embeddings`: there, a scale that isn't T5's own is lost.

    Args:
      path: the folder; an older checkpoint at the same path is replaced, whole or not at all.
      params: nested parameters under t5x's names.
      config: of the model they belong to.
      storage_dtype: of the tensors in the files; None = as they are.

    Raises:
      CheckpointError: if their form can't hold the model (no encoder of its own, a short head), if
        the parameters are not the config's, or if `path` holds other things than a checkpoint.
    """
    write(path, leaves.in_memory(strict.flatten(params)), config, storage_dtype)


def write(
    path: str | os.PathLike, flat: Mapping[str, Leaf], config: T5Config, storage_dtype: Any = None
) -> None:
    """`save` of parameters that may lie in a file yet, under t5x's names joined by "/"."""
    problems = strict.partial_model_problems(config)
    strict.fail_if_any(path, problems, "Hugging Face's T5 has no such model: keep it in our form.")
    strict.check_parameters(flat, config)
    tensors = {}
    for name, leaf in flat.items():
        theirs, transposed = hf_name(name)
        tensors[theirs] = leaf.transposed if transposed else leaf

    def fill(folder: pathlib.Path) -> None:
        content = json.dumps(their_config(config), indent=2) + "\n"
        (folder / CONFIG).write_text(content, encoding="utf-8")
        shards.write(folder, tensors, storage_dtype, metadata={"format": "pt"})

    folders.write(path, fill)


def their_config(config: T5Config) -> dict[str, Any]:
    """What their config.json says of a model of ours."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "d_kv": config.head_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": "gated-gelu" if config.gated else "relu",
        "relative_attention_num_buckets": config.num_buckets,
        "relative_attention_max_distance": config.max_distance,
        "layer_norm_epsilon": 1e-6,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.logits_scale != 1.0,
        "dropout_rate": config.dropout_rate,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def hf_name(name: str) -> tuple[str, bool]:
    """t5x name -> Hugging Face's, and whether the tensor is transposed (T).

    Example: encoder/layers_3/mlp/wo/kernel -> encoder.block.3.layer.1.DenseReluDense.wo.weight, T.
    """
    layer = re.search(r"layers_(\d+)", name)
    theirs, transposed = _BY_T5X_NAME[re.sub(r"layers_\d+", "layers_{i}", name)]
    return theirs.format(i=layer.group(1)) if layer else theirs, transposed


def _config(path: pathlib.Path, content: Mapping[str, Any], *, tied: bool, dtype: Any) -> T5Config:
    model_type = content.get("model_type")
    if model_type not in ("t5", "mt5"):
        raise CheckpointError(f"{path}: model_type={model_type!r}: only t5 and mt5 are read here")
    if not content.get("is_encoder_decoder", True):
        raise CheckpointError(f"{path}: is_encoder_decoder=false: an encoder alone can't decode")
    needed = ("vocab_size", "d_model", "d_ff", "d_kv", "num_heads", "num_layers")
    problems = [f"missing {name}" for name in needed if content.get(name) is None]
    feed_forward = content.get("feed_forward_proj", "relu")
    activations = {"relu": "relu", "gated-gelu": "gelu_new"}
    if feed_forward not in activations:
        problems.append(f"feed_forward_proj={feed_forward!r}: known are {list(activations)}")
    elif content.get("dense_act_fn", activations[feed_forward]) != activations[feed_forward]:
        problems.append(
            f"dense_act_fn={content['dense_act_fn']!r} instead of {activations[feed_forward]!r}"
        )
    if content.get("layer_norm_epsilon", 1e-6) != 1e-6:
        problems.append(f"layer_norm_epsilon={content['layer_norm_epsilon']} instead of 1e-6")
    strict.fail_if_any(path, problems, "It is no T5 1.0 or 1.1 as published.")
    # transformers 5 says in scale_decoder_outputs what tie_word_embeddings meant before.
    scaled = content.get("scale_decoder_outputs", content.get("tie_word_embeddings", True))
    num_decoder_layers = content.get("num_decoder_layers")
    return T5Config(
        vocab_size=content["vocab_size"],
        d_model=content["d_model"],
        d_ff=content["d_ff"],
        num_heads=content["num_heads"],
        head_dim=content["d_kv"],
        num_encoder_layers=content["num_layers"],
        num_decoder_layers=content["num_layers"]
        if num_decoder_layers is None
        else num_decoder_layers,
        gated=feed_forward == "gated-gelu",
        tied=tied,
        scale_logits=None if scaled == tied else bool(scaled),
        num_buckets=content.get("relative_attention_num_buckets", 32),
        max_distance=content.get("relative_attention_max_distance", 128),
        dtype=jnp.dtype(dtype),
    )


def _check(path: pathlib.Path, config: T5Config, tensors: Mapping[str, Leaf]) -> None:
    expected = {}
    for name, shape in strict.expected_shapes(config).items():
        theirs, transposed = hf_name(name)
        expected[theirs] = shape[::-1] if transposed else shape
    found = {name: tensor.shape for name, tensor in tensors.items() if name not in _UNUSED}
    problems = strict.non_float_problems(tensors)
    for alias in _ALIASES:
        if found.pop(alias, None) is not None and not _is_same(tensors, alias, "shared.weight"):
            problems.append(f"{alias} differs from shared.weight: two tables are not read")
    remedy = "config.json and the weights belong to different models, or the copy is not whole."
    strict.check_names_and_shapes(path, expected, found, remedy, problems)


def _is_same(tensors: Mapping[str, Leaf], name: str, other: str) -> bool:
    if other not in tensors or tensors[name].shape != tensors[other].shape:
        return False
    return bool(np.array_equal(tensors[name].read(), tensors[other].read()))
