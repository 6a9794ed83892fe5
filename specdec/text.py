"""From strings to strings: a target, a draft and a vocabulary, for people who write Python.

pair = load_pair("target", "draft", "spiece.model", prefix="translate English to German: ")
for translation in pair.decode(["Click the button."], gamma=5):
    print(translation.text, translation.accept_counts)
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.text import Text

from specdec import apart, compilation, identity, trace
from specdec.autoregressive import autoregressive_decode
from specdec.checkpoints import forms
from specdec.config import SpecConfig, checked_num_ids
from specdec.drafters import ModelDrafter, SharedEncoderDrafter
from specdec.generation import EOS, Decoded
from specdec.kernels import library
from specdec.models import GPTLanguageModel, T5LanguageModel, language_model
from specdec.sampling import Settings, settings
from specdec.sharding import Layout
from specdec.speculative import PairParams, speculative_decode
from specdec.streaming import speculative_rounds
from specdec.types import Drafter, EncoderInputs, LanguageModel
from specdec.vocabulary import EOS_ID, PAD_ID, START_ID, Vocabulary

# Source lengths are padded to the next of these, so that few programs serve all sentences.
BUCKETS = (32, 64, 128, 256, 512, 1024)


@dataclasses.dataclass(frozen=True)
class Output:
    """One text's result.

    Attributes:
      text, tokens: without padding; tokens end with EOS if the row ended by itself.
      is_complete: whether the row ended by itself rather than at its limit.
      origins: where each token came from, see `generation`.
      log_probs: of the law sampled from, natural log.
      accept_counts: accepted drafts of each round, [] after plain decoding.
      num_target_calls: runs of the target.
      num_compiles: programs that the call compiled (for all its texts).
    """

    text: str
    tokens: list[int]
    is_complete: bool
    origins: list[int]
    log_probs: list[float]
    accept_counts: list[int]
    num_target_calls: int
    num_compiles: int


@dataclasses.dataclass(frozen=True, eq=False)
class TextPair:
    """A target and its drafter with the vocabulary they share.

    Attributes:
      target, drafter: models; params: of both.
      vocabulary: see `Vocabulary`.
      prefix: put before every source text, as T5 names its tasks.
      prompt_tokens: of a decoder-only target: tokens of a text that it goes on from, None = all.
      max_source_tokens: longer sources are cut, EOS included, as T5 cuts articles; None = refused
        where no bucket holds them.

    Where the target has a layout, requests are laid out by it, and results can be read by every
    process; the draft may lie on the same devices or on its own.
    """

    target: LanguageModel
    drafter: Drafter
    params: PairParams
    vocabulary: Vocabulary
    prefix: str = ""
    prompt_tokens: int | None = None
    max_source_tokens: int | None = None

    def config(self, *, gamma: int, max_new_tokens: int) -> SpecConfig:
        return SpecConfig(
            gamma=gamma,
            max_new_tokens=max_new_tokens,
            eos_id=EOS_ID,
            pad_id=PAD_ID,
            num_ids=self.vocabulary.num_ids,
        )

    def inputs(self, texts: Sequence[str], buckets: Sequence[int] = BUCKETS) -> EncoderInputs:
        """Source texts as padded ids, EOS at the end, in the smallest bucket that holds all.

        Raises:
          ValueError: for no texts, an empty text, or one that is longer than the largest bucket.
        """
        if not texts:
            raise ValueError("no source texts: give at least one")
        for number, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"source text {number} is empty: leave it out")
        encoded = self.vocabulary.encode([self.prefix + text for text in texts])
        most = None if self.max_source_tokens is None else self.max_source_tokens - 1
        rows = [[*ids[:most], EOS_ID] for ids in encoded]
        lengths = [len(row) for row in rows]
        if max(lengths) > max(buckets):
            raise ValueError(
                f"source text {int(np.argmax(lengths))} has {max(lengths)} tokens, more than the "
                f"largest bucket, {max(buckets)}: shorten it or add a bucket"
            )
        size = min(bucket for bucket in buckets if bucket >= max(lengths))
        padded = np.full((len(rows), size), PAD_ID, np.int32)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return EncoderInputs(jnp.asarray(padded), jnp.asarray(lengths, jnp.int32))

    def request(
        self, texts: Sequence[str], seed: int
    ) -> tuple[EncoderInputs, jax.Array, jax.Array]:
        """inputs, prompt [B, P] and keys [B] of a batch of texts.

        With an encoder the texts are its inputs, and P is 1; without one they are the prompt, and
        an empty text has the model begin by itself.

        Raises:
          ValueError: see `inputs`; without an encoder for prompts of several lengths in one batch.
        """
        keys = jax.random.split(jax.random.key(seed), len(texts))
        if self.target.has_encoder:
            inputs, prompt = self.inputs(texts), jnp.full((len(texts), 1), START_ID, jnp.int32)
        else:
            inputs = jnp.zeros(len(texts))
            about = (self.vocabulary, self.prefix, self.prompt_tokens)
            prompt = _of_one_length(prompt_ids(texts, *about))
        request = (inputs, prompt, keys)
        return request if self._layout is None else self._layout.place_rows(request)

    @property
    def _layout(self) -> Layout | None:
        return getattr(self.target, "layout", None)

    @property
    def is_apart(self) -> bool:
        """Whether the draft has devices of its own."""
        return apart.is_apart(self.target, self.drafter)

    def _gathered(self, result: Decoded) -> Decoded:
        return result if self._layout is None else self._layout.gathered(result)

    def speculate(self, request, how: Settings, config: SpecConfig, **kwargs) -> Decoded:
        """`speculative_decode` of a request."""
        decode = apart.decode_apart if self.is_apart else speculative_decode
        result = decode(
            self.params,
            *request,
            target=self.target,
            drafter=self.drafter,
            settings=how,
            config=config,
            **kwargs,
        )
        return self._gathered(result)

    def plain(self, request, how: Settings, config: SpecConfig, **kwargs) -> Decoded:
        """`autoregressive_decode` of a request, by the target alone."""
        result = autoregressive_decode(
            self.params.target, *request, model=self.target, settings=how, config=config, **kwargs
        )
        return self._gathered(result)

    def differences(
        self, request, plain: Decoded, other: Decoded, config: SpecConfig
    ) -> list[identity.Difference]:
        """First differences of two greedy results of a request, see `identity`."""
        inputs, prompt, _ = request
        return identity.differences(
            plain,
            other,
            self.params.target,
            inputs,
            prompt,
            model=self.target,
            num_ids=config.num_ids,
            tie=identity.TIE[self.target.config.dtype.name],
        )

    def decode(
        self,
        texts: Sequence[str],
        *,
        gamma: int = 5,
        temperature: float = 0.0,
        seed: int = 0,
        max_new_tokens: int = 128,
        is_plain: bool = False,
        **how: Any,
    ) -> list[Output]:
        """Decodes texts as one batch.

        Args:
          texts: sources, without the prefix.
          gamma: drafts a round.
          temperature, how: sampling settings, see `sampling.settings`.
          seed: of the random numbers.
          max_new_tokens: most tokens of an output, EOS included.
          is_plain: use the target alone.

        Raises:
          ValueError: for settings, lengths or texts that make no sense, before compiling.
        """
        config = self.config(gamma=gamma, max_new_tokens=max_new_tokens)
        checked = settings(temperature, **how)
        request = self.request(texts, seed)
        run = self.plain if is_plain else self.speculate
        with compilation.counted() as compiles:
            result = jax.device_get(run(request, checked, config))
        return [self._output(result, row, compiles.count) for row in range(len(texts))]

    def trace(
        self,
        text: str,
        *,
        gamma: int = 5,
        temperature: float = 0.0,
        seed: int = 0,
        max_new_tokens: int = 128,
        **how: Any,
    ) -> Text:
        """What `decode([text])` does, round by round, in colour: `rich.print` it."""
        config = self.config(gamma=gamma, max_new_tokens=max_new_tokens)
        steps = speculative_rounds(
            self.params,
            *self.request([text], seed),
            target=self.target,
            drafter=self.drafter,
            settings=settings(temperature, **how),
            config=config,
        )
        return trace.render(trace.rounds_of(steps), self.vocabulary.piece)

    def _output(self, result: Decoded, row: int, num_compiles: int) -> Output:
        size = int(result.lengths[row])
        tokens = result.tokens[row, :size].tolist()
        counts = [] if result.speculation is None else result.speculation.accept_counts[row]
        return Output(
            text=self.vocabulary.decode(tokens),
            tokens=tokens,
            is_complete=bool(result.stop_reasons[row] == EOS),
            origins=result.origins[row, :size].tolist(),
            log_probs=result.log_probs[row, :size].tolist(),
            accept_counts=[int(count) for count in counts if count >= 0],
            num_target_calls=int(result.num_target_calls[row]),
            num_compiles=num_compiles,
        )


def prompt_ids(
    texts: Sequence[str], vocabulary: Vocabulary, prefix: str = "", num_tokens: int | None = None
) -> list[list[int]]:
    """Texts for a decoder-only model to go on from, each the start id, then its tokens.

    Args:
      texts: an empty one has the model begin by itself.
      vocabulary: of the model.
      prefix: put before every text.
      num_tokens: of each text, its first; None = all.
    """
    rows = vocabulary.encode([prefix + text for text in texts])
    return [[START_ID, *ids[:num_tokens]] for ids in rows]


def _of_one_length(rows: Sequence[Sequence[int]]) -> jax.Array:
    sizes = sorted({len(row) for row in rows})
    if len(sizes) != 1:
        raise ValueError(
            f"prompts of {sizes} tokens in one batch: decode them one at a time, or set "
            "prompt_tokens to cut all to the same length"
        )
    return jnp.asarray(rows, jnp.int32)


def load_model(
    path: str | os.PathLike,
    dtype: Any = jnp.float32,
    *,
    stays_narrow: bool = False,
    layout: Layout | None = None,
) -> tuple[Any, T5LanguageModel | GPTLanguageModel]:
    """Parameters and model of a checkpoint, ours, Hugging Face's or T5X's.

    Args:
      path: the folder; of T5X's forms a file or a gs:// path, too.
      dtype: of the arithmetic, float32 or bfloat16.
      stays_narrow: keep what the checkpoint holds in bfloat16 as it is: the same numbers as in
        float32, from half the memory, widened in each product (see `kernels.few_rows`).
      layout: over several devices; each leaf goes to its own as it is read.

    Raises:
      CheckpointError: a ValueError that names what is missing, extra or of the wrong shape.
    """
    sharding_fn = None if layout is None else layout.parameter
    params, config = forms.load(path, dtype, stays_narrow=stays_narrow, sharding_fn=sharding_fn)
    return params, language_model(config, layout)


def load_pair(
    target: str | os.PathLike,
    draft: str | os.PathLike,
    vocabulary: str | os.PathLike,
    *,
    prefix: str = "",
    prompt_tokens: int | None = None,
    num_extra_ids: int = 0,
    dtype: Any = jnp.float32,
    layout: Layout | None = None,
    draft_layout: Layout | None = None,
    max_source_tokens: int | None = None,
) -> TextPair:
    """Loads a target and a draft. A draft without an encoder reads the target's encoder output.

    Over several devices the draft lies as the target does, unless it has a layout of its own.

    Where the kernels run (see `specdec.kernels`), a draft's bfloat16 weights stay as they are: the
    same numbers as in float32, from half the memory.

    Raises:
      ValueError: for checkpoints or a vocabulary that are missing, damaged or don't fit together.
    """
    words = Vocabulary(vocabulary, num_extra_ids)
    target_params, target_model = load_model(target, dtype, layout=layout)
    # Read once a draft, between two runs of the target, which drive them out of the cache.
    how = dict(stays_narrow=layout is None and library.is_available())
    draft_params, draft_model = load_model(draft, dtype, layout=draft_layout or layout, **how)
    for path, model in ((target, target_model), (draft, draft_model)):
        words.check_rows(path, model.vocab_size)
    checked_num_ids(SpecConfig(num_ids=words.num_ids), target_model, draft_model)
    return TextPair(
        target_model,
        drafter_for(target_model, draft_model),
        PairParams(target_params, draft_params),
        words,
        prefix,
        prompt_tokens,
        max_source_tokens,
    )


def drafter_for(target: LanguageModel, draft: LanguageModel) -> ModelDrafter:
    """The drafter that fits a draft model.

    Raises:
      ValueError: if one of the two reads sources and the other doesn't, or if a draft without an
        encoder expects another width than the target's.
    """
    if target.has_encoder != draft.has_encoder:
        raise ValueError(
            f"the target is a {type(target.config).__name__[:-6]}, the draft a "
            f"{type(draft.config).__name__[:-6]}: what one reads the other can't; take a draft of "
            "the target's kind"
        )
    if not draft.has_encoder or draft.config.num_encoder_layers:
        return ModelDrafter(draft)
    if draft.config.encoder_dim != target.config.d_model:
        raise ValueError(
            f"the draft reads encoder output of width {draft.config.encoder_dim}, the target's has "
            f"{target.config.d_model}: use a draft that was trained for this target"
        )
    return SharedEncoderDrafter(draft)
