"""Passages of running text: whole sentences, short enough for a model's buffer."""

from collections.abc import Iterator

from experiments.corpora.pairs import one_line, sentences


def passages(paragraph: str, *, shortest: int = 5, longest: int = 90) -> Iterator[str]:
    """Cuts a paragraph at sentence ends into as few passages of at most `longest` words as follow.

    A sentence that is longer than that is left out, and so is a passage below `shortest` words.

    Example: sentences of 3, 2 and 4 words, shortest 2, longest 5 -> passages of 5 and 4 words.
    """
    passage: list[str] = []
    for sentence in sentences(one_line(paragraph)):
        size = len(sentence.split())
        if passage and len(" ".join(passage).split()) + size > longest:
            yield from _if_long(passage, shortest)
            passage = []
        if size <= longest:
            passage.append(sentence)
    yield from _if_long(passage, shortest)


def _if_long(passage: list[str], shortest: int) -> Iterator[str]:
    text = " ".join(passage)
    if len(text.split()) >= shortest:
        yield text
