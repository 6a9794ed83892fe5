"""SentencePiece vocabularies in T5's id layout.

Ids: 0 padding and decoder start, 1 end of sequence, 2 unknown, then the pieces, then extra ids.
Embedding tables may have more rows than that; those are padding, never emitted.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece

PAD_ID = 0
START_ID = 0
EOS_ID = 1
UNK_ID = 2

# Tables have a multiple of this many rows: even tiles, even shards.
_ROW_MULTIPLE = 128
# Public T5 tables have rows for this many extra ids, whether or not they are asked for.
_T5_EXTRA_IDS = 100


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A SentencePiece model file.

    Attributes:
      path: the model file.
      num_extra_ids: ids after the pieces without a text of their own; T5's public vocabulary has
        100, a vocabulary of our own none.

    Raises:
      ValueError: if the file is missing, no SentencePiece model, or its special ids are not T5's.
    """

    path: str | os.PathLike
    num_extra_ids: int = 0

    def __post_init__(self):
        if not pathlib.Path(self.path).is_file():
            raise ValueError(
                f"no vocabulary at {str(self.path)!r}: correct the path, or make one with "
                "gin_configs/train/ende_vocabulary.gin"
            )
        try:
            ids = (self.processor.pad_id(), self.processor.eos_id(), self.processor.unk_id())
        except RuntimeError as error:
            raise ValueError(
                f"vocabulary {str(self.path)!r} is no SentencePiece model, or cut short ({error}): "
                "copy it again"
            ) from error
        if ids != (PAD_ID, EOS_ID, UNK_ID):
            raise ValueError(
                f"vocabulary {str(self.path)!r} has pad, eos, unk = {ids}, T5's are "
                f"{(PAD_ID, EOS_ID, UNK_ID)}: use one in T5's layout"
            )

    @functools.cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_file=str(self.path))

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the vocabulary's content, whatever the file is called."""
        return hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest()[:16]

    @property
    def eos_id(self) -> int:
        return EOS_ID

    @property
    def num_pieces(self) -> int:
        return self.processor.get_piece_size()

    @property
    def num_ids(self) -> int:
        """Real ids are 0 .. num_ids - 1."""
        return self.num_pieces + self.num_extra_ids

    @property
    def num_rows(self) -> int:
        """Rows of the embedding tables, padding included."""
        return _padded(self.num_ids)

    @property
    def most_rows(self) -> int:
        """Rows of the largest table that can be this vocabulary's: extra ids and padding included.

        Example: T5's 32000 pieces come in tables of 32128 rows.
        """
        return _padded(self.num_pieces + max(self.num_extra_ids, _T5_EXTRA_IDS))

    def check_rows(self, path: str | os.PathLike, num_rows: int) -> None:
        """Raises a ValueError if the table of the model at `path` can't be this vocabulary's."""
        if not self.num_ids <= num_rows <= self.most_rows:
            raise ValueError(
                f"{str(path)!r} has {num_rows} ids, the vocabulary {str(self.path)!r} has "
                f"{self.num_ids}, and tables of at most {self.most_rows} rows with padding: they "
                "don't belong together, give the vocabulary that the model was trained with"
            )

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

    def piece(self, token: int) -> str:
        """What a token looks like, with its leading space if a word starts with it."""
        if token >= self.num_pieces:
            return f"<{token}>"
        return self.processor.id_to_piece(int(token)).replace("\u2581", " ")


def _padded(num_ids: int) -> int:
    return -(-num_ids // _ROW_MULTIPLE) * _ROW_MULTIPLE
