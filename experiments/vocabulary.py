"""Makes a SentencePiece vocabulary in T5's id layout from the text that a model trains on.

Byte fallback spells what no piece covers, so no text becomes unknown. Ids are sorted by how often
the outputs use them, so that a draft can do with the first ones (`T5Config.num_logits`).
"""

import io
import pathlib
from collections import Counter
from collections.abc import Sequence

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from experiments.data import Task
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
    pairs = [pair for task in tasks for pair in task.pairs()]
    texts = [text for pair in pairs for text in pair]
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
    path.write_bytes(sorted_by_use(model.getvalue(), [output for _, output in pairs])[0])
    vocabulary = Vocabulary(str(path))
    num_tokens = sum(map(len, vocabulary.encode(texts)))
    print(f"{path}: {vocabulary.num_pieces} pieces, {num_tokens} tokens in {len(texts)} texts")
    return vocabulary


def sorted_by_use(model: bytes, outputs: Sequence[str]) -> tuple[bytes, list[int]]:
    """The model with its pieces in another order, most used first: texts are split as before.

    Returns:
      The model, and the old id of each new one. The three special ids stay.
    """
    content = sentencepiece_model_pb2.ModelProto.FromString(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    counts = Counter(token for text in outputs for token in processor.encode(text))
    special = [PAD_ID, EOS_ID, UNK_ID]
    others = [token for token in range(len(content.pieces)) if token not in special]
    order = special + sorted(others, key=lambda token: (-counts[token], token))
    pieces = [content.pieces[token] for token in order]
    copies = [type(piece).FromString(piece.SerializeToString()) for piece in pieces]
    del content.pieces[:]
    content.pieces.extend(copies)
    return content.SerializeToString(), order


def _as_piece(prefix: str) -> str:
    """A prefix as SentencePiece sees it inside: each word led by its space mark."""
    return "".join(f"\N{LOWER ONE EIGHTH BLOCK}{word}" for word in prefix.split())
