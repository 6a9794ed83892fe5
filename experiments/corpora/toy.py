"""A made-up corpus: simple English sentences and their German, by a small grammar.

It takes real work to translate: German has three genders, cases that show in articles and
adjectives, and the verb at the end of a subordinate clause. So a toy pair trained on it in two
minutes shows everything that a real one does. The text is this module's own.
"""

import pathlib
import random

# English, German nominative without article, gender.
_NOUNS = [
    ("dog", "Hund", "m"),
    ("cat", "Katze", "f"),
    ("horse", "Pferd", "n"),
    ("bird", "Vogel", "m"),
    ("cow", "Kuh", "f"),
    ("child", "Kind", "n"),
    ("teacher", "Lehrer", "m"),
    ("doctor", "Arzt", "m"),
    ("woman", "Frau", "f"),
    ("girl", "Mädchen", "n"),
    ("gardener", "Gärtner", "m"),
    ("queen", "Königin", "f"),
]
_ADJECTIVES = [
    ("old", "alt"),
    ("small", "klein"),
    ("clever", "klug"),
    ("tired", "müd"),
    ("happy", "froh"),
    ("quiet", "still"),
    ("young", "jung"),
    ("hungry", "hungrig"),
]
_VERBS = [
    ("sees", "sieht"),
    ("hears", "hört"),
    ("follows", "verfolgt"),
    ("looks for", "sucht"),
    ("finds", "findet"),
    ("greets", "grüßt"),
    ("loves", "liebt"),
    ("paints", "malt"),
]
_REPORTS = [("says", "sagt"), ("thinks", "denkt"), ("knows", "weiß"), ("hopes", "hofft")]
_TIMES = [("today", "heute"), ("again", "wieder"), ("every morning", "jeden Morgen")]
_ARTICLES = {
    "nominative": {"m": "der", "f": "die", "n": "das"},
    "accusative": {"m": "den", "f": "die", "n": "das"},
}


def sentence(rng: random.Random) -> tuple[str, str]:
    """A random sentence in English and German, of one to three clauses."""
    if rng.random() < 0.3:
        english, german = _clause(rng, is_main=True)
    else:
        speaker, sprecher = _noun_phrase(rng, "nominative")
        says, sagt = rng.choice(_REPORTS)
        english, german = _clause(rng, is_main=False)
        english, german = f"{speaker} {says} that {english}", f"{sprecher} {sagt}, dass {german}"
    if rng.random() < 0.4:
        more_english, more_german = _clause(rng, is_main=True)
        english, german = f"{english}, and {more_english}", f"{german}, und {more_german}"
    return _finished(english), _finished(german)


def _noun_phrase(rng: random.Random, case: str) -> tuple[str, str]:
    noun, german_noun, gender = rng.choice(_NOUNS)
    article = _ARTICLES[case][gender]
    if rng.random() < 0.4:
        return f"the {noun}", f"{article} {german_noun}"
    adjective, stem = rng.choice(_ADJECTIVES)
    ending = "en" if case == "accusative" and gender == "m" else "e"
    return f"the {adjective} {noun}", f"{article} {stem}{ending} {german_noun}"


def _clause(rng: random.Random, *, is_main: bool) -> tuple[str, str]:
    subject, subjekt = _noun_phrase(rng, "nominative")
    verb, german_verb = rng.choice(_VERBS)
    target, objekt = _noun_phrase(rng, "accusative")
    time, zeit = rng.choice(_TIMES)
    english = f"{subject} {verb} {target} {time}"
    order = (
        (subjekt, german_verb, zeit, objekt) if is_main else (subjekt, zeit, objekt, german_verb)
    )
    return english, " ".join(order)


def _finished(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def write(path: pathlib.Path, size: int, seed: int, without: pathlib.Path | None = None) -> None:
    """Writes `size` different pairs as English, tab, German; none whose English is in `without`."""
    taken = set()
    if without is not None:
        taken = {line.split("\t")[0] for line in without.read_text("utf-8").splitlines()}
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < size:
        english, german = sentence(rng)
        if english not in taken:
            pairs[english] = german
    path.write_text("".join(f"{en}\t{de}\n" for en, de in pairs.items()), encoding="utf-8")
