"""Holds out whole documents and keeps the training side clean of every text they contain.

Splitting line by line would not do: sentences repeat from page to page, so a held-out line
would often be a training line too. A text counts as the same whatever its case, punctuation
and digits (`pairs.words`).
"""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from experiments.corpora.pairs import Pair, is_acceptable, words

NEAR_TWIN = 0.8  # of a held-out text's word triples in one training text
_KEY = 3  # words by which a place in a text is looked up


class Split(NamedTuple):
    train: list[Pair]
    heldout: list[Pair]
    dropped: Counter


class WordIndex:
    """Finds whether a text's words stand in a row somewhere in the texts added."""

    def __init__(self):
        self._texts: list[tuple[str, ...]] = []
        self._places = defaultdict(list)

    def add(self, text: tuple[str, ...]) -> None:
        for place in range(len(text)):
            for length in range(1, _KEY + 1):
                if place + length <= len(text):
                    self._places[text[place : place + length]].append((len(self._texts), place))
        self._texts.append(text)

    def contains(self, text: tuple[str, ...]) -> bool:
        places = self._places.get(text[:_KEY], ()) if text else ()
        return any(self._texts[n][at : at + len(text)] == text for n, at in places)


class Excluded:
    """Texts given by the user. Lines under three words count only as a whole text."""

    def __init__(self, texts: Iterable[str]):
        self._lines = {words(text) for text in texts} - {()}
        self._long = defaultdict(list)
        for line in self._lines:
            if len(line) >= _KEY:
                self._long[line[:_KEY]].append(line)

    def occurs_in(self, text: tuple[str, ...]) -> bool:
        return text in self._lines or any(
            text[at : at + len(line)] == line
            for at in range(len(text) - _KEY + 1)
            for line in self._long.get(text[at : at + _KEY], ())
        )


def is_held_out(source: str, document: str, percent: float) -> bool:
    """By a checksum of the name, so that every build holds out the same documents."""
    return _checksum(f"{source}/{document}") < percent / 100 * 2**64


def split(pairs: Iterable[Pair], percent: float, excluded: Iterable[str] = ()) -> Split:
    """Divides all extracted pairs, also unacceptable ones: those too show what a page says."""
    training, heldout = {}, {}  # by text, so each pair once, with the first document it is in
    held, elsewhere = (WordIndex(), WordIndex()), (set(), set())  # English, German
    for pair in pairs:
        is_held = is_held_out(pair.source, pair.document, percent)
        (heldout if is_held else training).setdefault(pair[:2], pair)
        for index, others, text in zip(held, elsewhere, _sides(pair), strict=True):
            (index if is_held else others).add(text)
    outside = Excluded(excluded)
    dropped = Counter()

    def keep(candidates: dict, unfit) -> list[Pair]:
        kept = []
        for pair in candidates.values():
            acceptable = is_acceptable(pair.english, pair.german)
            reason = unfit(*_sides(pair)) if acceptable else "not acceptable"
            if reason:
                dropped[reason] += 1
            else:
                kept.append(pair)
        return kept

    def unfit_for_training(english, german):
        if held[0].contains(english) or held[1].contains(german):
            return "from training: on a held-out document too"
        if outside.occurs_in(english) or outside.occurs_in(german):
            return "from training: excluded"

    def unfit_for_heldout(english, german):
        if english in elsewhere[0] or german in elsewhere[1]:
            return "from held-out: on another document too"

    train = keep(training, unfit_for_training)
    unseen, twins = _without_near_twins(keep(heldout, unfit_for_heldout), train)
    dropped["from held-out: near twin in training"] += twins
    return Split(_shuffled(train), _shuffled(unseen), dropped)


def in_turn(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """Up to `count` pairs, one of each document in turn, so that no long page prevails.

    Example: documents a a a b, count 3 -> a b a.
    """
    by_document = defaultdict(list)
    for pair in pairs:
        by_document[pair.source, pair.document].append(pair)
    turns = itertools.zip_longest(*by_document.values())
    return [pair for turn in turns for pair in turn if pair][:count]


def _sides(pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return words(pair.english), words(pair.german)


def _without_near_twins(heldout: list[Pair], train: list[Pair]) -> tuple[list[Pair], int]:
    twins = set()
    for side in (0, 1):
        of_each = [triples(pair[side]) for pair in heldout]
        wanted = set().union(*of_each)
        where = defaultdict(list)
        for number, pair in enumerate(train):
            for triple in triples(pair[side]) & wanted:
                where[triple].append(number)
        for number, mine in enumerate(of_each):
            shared = Counter(other for triple in mine for other in where.get(triple, ()))
            if shared and max(shared.values()) >= NEAR_TWIN * len(mine):
                twins.add(number)
    return [pair for number, pair in enumerate(heldout) if number not in twins], len(twins)


def triples(text: str) -> set[tuple[str, ...]]:
    """Every three words in a row; of a shorter text, what there is."""
    found = words(text)
    return {found[at : at + 3] for at in range(max(1, len(found) - 2))}


def _shuffled(pairs: list[Pair]) -> list[Pair]:
    """The same order in every build, and no two neighbours of a page side by side."""
    return sorted(pairs, key=lambda pair: (_checksum("\t".join(pair[:2])), pair))


def _checksum(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
