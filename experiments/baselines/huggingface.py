"""Hugging Face transformers: plain generation, assisted by a draft, and with prompt lookup.

An assistant of theirs has an encoder of its own. A draft of ours that reads its target's encoder
output becomes one whose encoder is the target's, run a second time for every sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from experiments.baselines import NUM_THREADS, Decode
from specdec.checkpoints import strict
from specdec.checkpoints.huggingface import hf_name, their_config
from specdec.models.t5 import T5Config

Model = transformers.T5ForConditionalGeneration


def load(folder: str) -> Model:
    """A model as `specdec.checkpoints.huggingface.save` wrote it."""
    torch.set_num_threads(NUM_THREADS)
    return _with_caches_for_all_layers(Model.from_pretrained(folder, dtype=torch.float32).eval())


def _with_caches_for_all_layers(model: Model) -> Model:
    # `generate` makes caches for as many layers as the encoder has; the decoder may have more.
    model.config.num_layers = model.config.num_decoder_layers
    return model


def greedy(model: Model, *, max_new_tokens: int, **how: Any) -> Decode:
    """Plain decoding, or what `how` makes of it, see `assisted` and `by_lookup`."""

    @torch.inference_mode()
    def decode(source_ids: Sequence[int]) -> list[int]:
        ids = torch.tensor([list(source_ids)])
        mask = torch.ones_like(ids)
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_new_tokens,
            **how,
        )
        return output[0, 1:].tolist()  # without the start

    return decode


def assisted(model: Model, draft: Model, *, gamma: int, max_new_tokens: int) -> Decode:
    """Assisted generation with gamma drafts in every round, as ours."""
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return greedy(model, max_new_tokens=max_new_tokens, assistant_model=draft)


def by_lookup(model: Model, *, gamma: int, max_new_tokens: int) -> Decode:
    """Prompt lookup: drafts copied from what stands in the source or was decoded."""
    return greedy(model, max_new_tokens=max_new_tokens, prompt_lookup_num_tokens=gamma)


def draft_of(params: Mapping[str, Any], config: T5Config, target: Model) -> Model:
    """A draft of ours as an assistant of theirs.

    Args:
      params, config: of the draft, with or without an encoder of its own.
      target: whose encoder it takes otherwise.

    Raises:
      ValueError: if a parameter finds no place.
    """
    theirs = their_config(config) | {
        "num_layers": max(config.num_encoder_layers, 1),  # 0 is replaced below
        "tie_word_embeddings": False,  # the head is replaced below, too
        "dropout_rate": 0.0,
    }
    draft = Model(transformers.T5Config(**theirs))
    width = config.encoder_dim or config.d_model
    for block in draft.decoder.block:
        attention = block.layer[1].EncDecAttention
        attention.k = nn.Linear(width, attention.inner_dim, bias=False)
        attention.v = nn.Linear(width, attention.inner_dim, bias=False)
    tensors = {}
    for name, leaf in strict.flatten(params).items():
        where, transposed = hf_name(name)
        tensor = torch.from_numpy(np.array(leaf, np.float32))
        tensors[where] = tensor.T if transposed else tensor
    head = tensors.pop("lm_head.weight", tensors["shared.weight"])
    missing, left_over = draft.load_state_dict(tensors, strict=False)
    allowed = ("lm_head.", "encoder.embed_tokens.", "decoder.embed_tokens.")
    allowed += ("encoder.",) if config.num_encoder_layers == 0 else ()
    unfilled = [name for name in missing if not name.startswith(allowed)]
    if unfilled or left_over:
        raise ValueError(f"the draft has no {unfilled}, and {left_over} finds no place")
    for stack in (draft.encoder, draft.decoder):
        stack.embed_tokens = draft.shared
    draft.lm_head = ShortHead(head[: config.num_logits], config.vocab_size)
    if config.num_encoder_layers == 0:
        draft.encoder = target.encoder
    return _with_caches_for_all_layers(draft.eval())


class ShortHead(nn.Module):
    """Logits of the first ids; the others' are -inf."""

    def __init__(self, weight: torch.Tensor, num_ids: int):
        super().__init__()
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.num_left_out = num_ids - weight.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.linear(x, self.weight)
        return nn.functional.pad(logits, (0, self.num_left_out), value=-torch.inf)
