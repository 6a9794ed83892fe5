"""CTranslate2: the strong baseline on a CPU that doesn't speculate, in float32 and in int8."""

import pathlib
import tempfile
from collections.abc import Sequence

import ctranslate2
from ctranslate2.converters import TransformersConverter

from experiments.baselines import NUM_THREADS, Decode
from specdec.checkpoints import strict
from specdec.checkpoints.folders import CONFIG


class _Ids:
    """A tokenizer for the converter, whose tokens are the ids' own numbers."""

    pad_token, eos_token, unk_token = "0", "1", "2"

    def __init__(self, num_ids: int):
        self._num_ids = num_ids

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self._num_ids)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(number)


class _Converter(TransformersConverter):
    def load_tokenizer(self, tokenizer_class, model_name_or_path, **kwargs):
        content = strict.read_json(pathlib.Path(model_name_or_path) / CONFIG)
        return _Ids(content["vocab_size"])


def greedy(folder: str, *, max_new_tokens: int, compute_type: str = "float32") -> Decode:
    """Greedy decoding of a model as `specdec.checkpoints.huggingface.save` wrote it.

    Args:
      folder: of the model.
      max_new_tokens: most tokens of an output, EOS included.
      compute_type: "float32", or "int8": weights rounded to 8 bits, so another model.
    """
    with tempfile.TemporaryDirectory() as converted:
        quantization = None if compute_type == "float32" else compute_type
        _Converter(folder).convert(converted, quantization=quantization, force=True)
        translator = ctranslate2.Translator(
            converted,
            device="cpu",
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=NUM_THREADS,
        )

    def decode(source_ids: Sequence[int]) -> list[int]:
        (result,) = translator.translate_batch(
            [[str(number) for number in source_ids]],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=max_new_tokens,
            max_input_length=0,
            return_end_token=True,
        )
        return [int(token) for token in result.hypotheses[0]]

    return decode
