"""Makes a SentencePiece vocabulary in T5's id layout from the text that a model trains on.

Byte fallback spells what no piece covers, so no text becomes unknown.
"""

import io
import pathlib
from collections.abc import Sequence

import sentencepiece

from experiments.data import Task, read_pairs
from specdec.vocabulary import EOS_ID, PAD_ID, UNK_ID, Vocabulary


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
