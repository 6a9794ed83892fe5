"""Converts a T5 checkpoint between our form, Hugging Face's and T5X's.

    python -m experiments.convert --from=PATH --to=FOLDER --form=native|huggingface|t5x
        [--dtype=float32|bfloat16]

Reads any form that `specdec.checkpoints` reads, gs:// paths of T5X's too, and writes tensor by
tensor. The folder appears when it is whole: what a killed conversion leaves has another name, that
begins with a dot. Bad input ends in one line on stderr and exit status 2.
"""

import dataclasses
import logging
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence

from absl import app, flags

from experiments import run
from specdec.checkpoints import forms
from specdec.checkpoints.leaves import Index, Leaf

logger = logging.getLogger(__name__)
_PROGRESS_SECONDS = 5.0


def convert(source: str, destination: str, *, form: str, dtype: str | None = None) -> None:
    """Writes a checkpoint in another form, whole or not at all.

    Args:
      source: a checkpoint of whatever form.
      destination: the new folder.
      form: of `forms.FORMS`.
      dtype: of the tensors; None = as they are.

    Raises:
      ValueError: for a form that there isn't, a destination that is there already, a checkpoint
        that can't be read, or a model that the other form can't hold.
    """
    if form not in forms.FORMS:
        raise ValueError(f"form={form!r} is none of {', '.join(forms.FORMS)}")
    if dtype not in (None, "float32", "bfloat16"):
        raise ValueError(f"dtype={dtype!r} is neither float32 nor bfloat16")
    if pathlib.Path(destination).exists():
        raise ValueError(f"{destination!r} is there already: remove it, or choose another folder")
    with forms.opened(source) as (leaves, config):
        counter = _Counter(sum(leaf.num_bytes for leaf in leaves.values()))
        forms.FORMS[form].write(destination, counter.counted(leaves), config, dtype)
    logger.info("%s: written in form %s", destination, form)


@dataclasses.dataclass
class _Counter:
    """Says from time to time how much of all bytes has been read."""

    num_bytes: int
    num_read: int = 0
    began: float = dataclasses.field(default_factory=time.monotonic)
    said: float = dataclasses.field(default_factory=time.monotonic)

    def counted(self, leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
        return {name: self._counted(leaf) for name, leaf in leaves.items()}

    def _counted(self, leaf: Leaf) -> Leaf:
        def read(index: Index):
            part = leaf.read_fn(index)
            self._add(part.nbytes)
            return part

        return leaf._replace(read_fn=read)

    def _add(self, num_bytes: int) -> None:
        self.num_read += num_bytes
        now = time.monotonic()
        if now - self.said > _PROGRESS_SECONDS:
            self.said = now
            left = (now - self.began) * (self.num_bytes / self.num_read - 1)
            done = f"{self.num_read / 1e9:.2f} of {self.num_bytes / 1e9:.2f} GB"
            logger.info("%s, %.0f s left", done, left)


def main(argv: Sequence[str], settings: flags.FlagValues = flags.FLAGS) -> int:
    """Exit status: 0, 2 for bad input, 130 if interrupted."""
    try:
        if argv[1:]:
            raise ValueError(f"{argv[1]!r} is no flag")
        how = {name: settings[name].value for name in ("from", "to", "form")}
        missing = [f"--{name}" for name, value in how.items() if not value]
        if missing:
            raise ValueError(f"{', '.join(missing)} not given: see --help")
        convert(how["from"], how["to"], form=how["form"], dtype=settings["dtype"].value)
    except (ValueError, OSError) as error:
        print(f"error: {run.one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing is written", file=sys.stderr)
        return 130
    return 0


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """The command's flags."""
    for name, text in (
        ("from", "The checkpoint to read: a folder, T5X's one-file form, or gs://..."),
        ("to", "The folder to write."),
        ("form", "What to write: native, huggingface or t5x."),
        ("dtype", "float32 or bfloat16; as they are if not given."),
    ):
        flags.DEFINE_string(name, None, text, flag_values=values)


def start() -> None:
    """The command."""
    define_flags()
    run.show_progress()
    app.run(main, flags_parser=run.parse_flags)


if __name__ == "__main__":
    from experiments.convert import start as start_by_name  # so that it logs under its own name

    start_by_name()
