"""What the programs that build corpora share: a failure is one line that says what to do."""

import sys
from collections.abc import Callable


class CorpusError(Exception):
    """Something the user has to put right; the message says what."""


def run(build: Callable[[], None]) -> int:
    """Builds, and returns the exit status: 0, 1 for what the user has to put right, 130 stopped."""
    try:
        build()
    except CorpusError as error:
        print(f"corpora: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        name = error.filename or "the output folder"
        remedy = "free space or change its permissions, then run again"
        print(f"corpora: cannot use {name} ({reason(error)}); {remedy}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("corpora: interrupted; run again, downloads are kept", file=sys.stderr)
        return 130
    return 0


def reason(error: Exception) -> str:
    """Why it failed, without the name of the file."""
    return getattr(error, "strerror", None) or str(error)
