"""How good translations are, as entries of a record."""

import collections
from collections.abc import Sequence

import sacrebleu


def quality(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU, chrF, words of outputs per word of references, and share of outputs that repeat."""
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
        "length_ratio": _num_words(outputs) / max(_num_words(references), 1),
        "repetition_share": sum(map(is_repetitive, outputs)) / max(len(outputs), 1),
    }


def is_repetitive(text: str, *, size: int = 4, times: int = 3) -> bool:
    """Whether some `size` words in a row occur `times` times or more.

    Example: "a b c d a b c d a b c d" is; so is "a a a a a a", where "a a a a" begins three times.
    """
    words = text.split()
    grams = collections.Counter(zip(*(words[start:] for start in range(size)), strict=False))
    return max(grams.values(), default=0) >= times


def _num_words(texts: Sequence[str]) -> int:
    return sum(len(text.split()) for text in texts)
