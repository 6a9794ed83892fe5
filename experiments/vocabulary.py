"""A SentencePiece vocabulary in T5's id layout, made from the text that a model trains on.

Ids: 0 padding (and decoder start), 1 end of sequence, 2 unknown, then the pieces. There is no
begin-of-sequence id. Byte fallback spells what no piece covers, so no text becomes unknown.

Embedding tables have `num_rows` rows, the number of pieces rounded up to a multiple of 128: the
rows beyond the pieces are padding ids, which are never real tokens.
"""

import dataclasses
import functools
import hashlib
import io
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece

from experiments.data import Task, read_pairs

PAD_ID = 0
START_ID = 0
EOS_ID = 1
UNK_ID = 2
_ROW_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A SentencePiece model file with T5's ids.

    Attributes:
      path: the model file.

    Raises:
      ValueError: if the file is missing or its special ids are not T5's.
    """

    path: str

    def __post_init__(self):
        if not pathlib.Path(self.path).is_file():
            raise ValueError(
                f"no vocabulary at {self.path!r}: make one with "
                "gin_configs/train/ende_vocabulary.gin or correct the path"
            )
        ids = (self.processor.pad_id(), self.processor.eos_id(), self.processor.unk_id())
        if ids != (PAD_ID, EOS_ID, UNK_ID):
            raise ValueError(
                f"vocabulary {self.path!r} has pad, eos, unk = {ids}, T5's are "
                f"{(PAD_ID, EOS_ID, UNK_ID)}: train it with experiments.vocabulary"
            )

    @functools.cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_file=self.path)

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the vocabulary's content, whatever the file is called."""
        return hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest()[:16]

    @property
    def eos_id(self) -> int:
        return EOS_ID

    @property
    def num_pieces(self) -> int:
        """Real ids are 0 .. num_pieces - 1."""
        return self.processor.get_piece_size()

    @property
    def num_rows(self) -> int:
        """Rows of the embedding tables, padding ids included."""
        return -(-self.num_pieces // _ROW_MULTIPLE) * _ROW_MULTIPLE

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without an end-of-sequence id."""
        return self.processor.encode(list(texts), num_threads=1)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of the ids up to the first end-of-sequence id."""
        kept = []
        for token in tokens:
            if token == EOS_ID:
                break
            if token < self.num_pieces:
                kept.append(int(token))
        return self.processor.decode(kept)


def train_vocabulary(
    output_dir: str,
    *,
    tasks: Sequence[Task],
    num_pieces: int = 8000,
    character_coverage: float = 0.9999,
    whole_prefixes: bool = True,
) -> Vocabulary:
    """Trains a unigram vocabulary with byte fallback on both sides of the tasks' text.

    Deterministic: one thread, the text in file order, no sampling.

    Args:
      output_dir: the folder that receives `spiece.model`.
      tasks: where the text is. Weights play no part.
      num_pieces: size, special ids and the 256 bytes included.
      character_coverage: share of the text whose characters become pieces; the rest is bytes.
      whole_prefixes: makes each task's prefix one piece, which shortens every encoder input.

    Returns:
      The vocabulary.

    Raises:
      ValueError: if the text does not give as many pieces.
    """
    texts = [text for task in tasks for pair in read_pairs(task) for text in pair]
    prefixes = sorted({_as_piece(task.prefix) for task in tasks if task.prefix.strip()})
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=num_pieces,
            byte_fallback=True,
            character_coverage=character_coverage,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            user_defined_symbols=prefixes if whole_prefixes else [],
            num_threads=1,
            shuffle_input_sentence=False,
            minloglevel=1,
        )
    except RuntimeError as error:  # with the reason at the end: "... set it to a value <= 294."
        raise ValueError(f"no vocabulary of num_pieces={num_pieces}: {error}") from error
    folder = pathlib.Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spiece.model"
    path.write_bytes(model.getvalue())
    vocabulary = Vocabulary(str(path))
    num_tokens = sum(map(len, vocabulary.encode(texts)))
    print(f"{path}: {vocabulary.num_pieces} pieces, {num_tokens} tokens in {len(texts)} texts")
    return vocabulary


def _as_piece(prefix: str) -> str:
    """A prefix as SentencePiece sees it inside: each word led by its space mark."""
    return "".join(f"\N{LOWER ONE EIGHTH BLOCK}{word}" for word in prefix.split())
