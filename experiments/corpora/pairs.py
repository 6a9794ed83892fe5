"""A pair of texts, which pairs are worth keeping, and how two paragraphs become pairs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

SHORTEST, LONGEST = 3, 120  # English words
MOST_SHARED = 0.6

_NOT_WORD = re.compile(r"[\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”“’»«)]*\s+(?=[\"'“„»«(]*[A-ZÄÖÜ0-9])")
# After these a full stop does not end the sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|no|fig|dr|mr|st|approx|z\. ?b|d\. ?h|u\. ?a|o\. ?ä|bzw|ca"
    r"|usw|evtl|ggf|vgl|nr|abb|inkl|s|\w|\d+)\.$",
    re.IGNORECASE,
)


class Pair(NamedTuple):
    english: str
    german: str
    source: str
    document: str


def words(text: str) -> tuple[str, ...]:
    """The words by which texts are compared: no case, no punctuation, every digit a 0."""
    found = (_NOT_WORD.sub("", word) for word in text.casefold().split())
    return tuple(re.sub(r"\d", "0", word) for word in found if word)


def one_line(text: str) -> str:
    """Single spaces, and so no tab or line end that would break a TSV line."""
    return " ".join(text.replace("\u00ad", "").split())


def is_acceptable(english: str, german: str) -> bool:
    """3 to 120 English words, not left untranslated, and of lengths that suit each other."""
    if not _lengths_fit(english, german) or not SHORTEST <= len(english.split()) <= LONGEST:
        return False
    english_words, german_words = words(english), set(words(german))
    shared = sum(word in german_words for word in english_words)
    return bool(english_words and german_words) and shared <= MOST_SHARED * len(english_words)


def sentences(text: str) -> list[str]:
    """Splits a paragraph; a doubtful end is no end, because a half sentence trains badly."""
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text[start : match.start()]):
            found.append(text[start : match.end()].strip())
            start = match.end()
    return [*found, text[start:].strip()]


def align(english: str, german: str) -> Iterator[tuple[str, str]]:
    """Sentence pairs if both paragraphs have as many sentences, else the paragraphs whole."""
    english, german = one_line(english), one_line(german)
    pairs = list(zip(sentences(english), sentences(german), strict=False))
    same_number = len(sentences(english)) == len(sentences(german))
    if same_number and all(_lengths_fit(*pair) for pair in pairs):
        yield from pairs
    else:
        yield english, german


def _lengths_fit(english: str, german: str) -> bool:
    # The slack of 15 characters is for short sentences, whose ratio says little.
    return len(english) < 2 * len(german) + 15 and len(german) < 2 * len(english) + 15
