"""What happened to each drafted token, to be looked at: Figure 1 of arXiv 2211.17192.

A line is a round, that is one run of the target. Accepted drafts are green, the rejected one is
red, the correction in its place is blue; a bonus token after a run that was accepted whole is
blue, too. Without colour they can be told apart by their marks: accepted, [-rejected-],
{+correction+}.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from rich.text import Text

from specdec.speculative import StepInfo


@dataclasses.dataclass(frozen=True)
class Round:
    """One row's round.

    Attributes:
      accepted: drafted tokens that stand.
      rejected: the drafted token that does not, if any.
      added: the target's own token, if the row didn't end before it.
    """

    accepted: tuple[int, ...]
    rejected: int | None
    added: int | None

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the round adds to the output."""
        return self.accepted if self.added is None else (*self.accepted, self.added)


def rounds_of(steps: Iterable[tuple], row: int = 0) -> list[Round]:
    """A row's rounds, from what `speculative_rounds` yields."""
    rounds = []
    for state, info in steps:
        info = jax.device_get(info._replace(target=None))
        if info.num_new[row] == 0:  # the row was done
            continue
        generation = state.generation
        end = int(generation.lengths[row])
        new = np.asarray(generation.columns.tokens[row, end - info.num_new[row] : end]).tolist()
        rounds.append(_round(info, row, new))
    return rounds


def _round(info: StepInfo, row: int, new: list[int]) -> Round:
    n = int(info.n_accepted[row])
    is_rejected = info.num_tested[row] > n
    return Round(
        accepted=tuple(new[:n]),
        rejected=int(info.proposal.tokens[row, n]) if is_rejected else None,
        added=new[n] if len(new) > n else None,
    )


def render(rounds: Sequence[Round], piece: Callable[[int], str]) -> Text:
    """Coloured lines, one a round.

    Args:
      rounds: of one row.
      piece: the text of a token id, with its leading space if a word starts with it.
    """
    text = Text()
    for number, one in enumerate(rounds, 1):
        text.append(f"{number:3} ", style="dim")
        for token in one.accepted:
            text.append(piece(token), style="green")
        if one.rejected is not None:
            text.append(f" [-{piece(one.rejected).strip()}-]", style="red strike")
        if one.added is not None:
            mark = piece(one.added)
            space = " " if mark.startswith(" ") else ""
            text.append(f"{space}{{+{mark.strip()}+}}", style="bold blue")
        text.append("\n")
    return text
