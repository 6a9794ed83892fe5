"""A copying task with long outputs: restore the case and punctuation of a text without either.

It stands in for the copying of CNN/DM's summaries, not for summarisation: most of the output
repeats the input, which is what drafts that copy live on.
"""

import re

SHORTEST, LONGEST = 60, 120  # words of a text to restore
LEAST, SHORT = 6, 30  # and of one to learn copying on

# An apostrophe or hyphen inside a word is spelling.
_PUNCTUATION = re.compile(r"(?<!\w)[^\w\s]+|[^\w\s]+(?!\w)|[^\w\s'\u2019-]+")


def stripped(text: str) -> str:
    """Lower case, no punctuation but inside words.

    Example: 'Yes," said Mr. Well-Born; "it\\'s 3.5."' -> "yes said mr well-born it's 3 5".
    """
    return " ".join(_PUNCTUATION.sub(" ", text).casefold().split())
