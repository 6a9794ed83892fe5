"""Runs an experiment that gin files describe, in T5X's flag style.

    python -m experiments.run --gin_file=FILE [--gin_file=FILE ...] --output_dir=DIR \\
        [--gin.MACRO=value ...] [--gin.module.fn.parameter=value ...] [--gin_search_paths=A,B]

A gin file names its experiment, `run.execute.experiment = @train.train`; whatever it is, it is
called with the output folder. The operative configuration is kept as DIR/config.gin. Bad input
ends in one line on stderr and exit status 2; where it arose stands in DIR/error.log.
"""

import logging
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence

import gin
from absl import app, flags
from absl import logging as absl_logging

_GIN_FLAG = re.compile(r"^--gin\.([^=]+)=(.*)$", re.DOTALL)


class BadInput(ValueError):
    """A fault of the command line or of the configuration, told in one line."""


class Failed(RuntimeError):
    """An experiment's verdict that something is wrong, told in one line."""


def execute(output_dir: str, *, experiment: Callable[[str], None]) -> None:
    """What a gin file configures: the experiment to call."""
    experiment(output_dir)


def rewrite_gin_flags(argv: Sequence[str]) -> list[str]:
    """Makes `--gin.X=Y` into `--gin_bindings=X = Y`, which absl can parse."""
    return [_GIN_FLAG.sub(r"--gin_bindings=\1 = \2", argument) for argument in argv]


def parse_config(files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]):
    """Reads gin files, then command-line bindings, and refuses what would be ignored silently.

    Raises:
      BadInput: for a file that is not there, a macro that no file knows, a parameter that its
        function does not have, or a macro without a value.
    """
    gin.clear_config()
    for path in search_paths:
        gin.add_config_file_search_path(path)
    try:
        gin.parse_config_files_and_bindings(files, None, finalize_config=False)
        known = _macros()
        for binding in bindings:
            name = binding.split("=")[0].strip()
            if re.fullmatch(r"\w+", name) and name not in known:
                raise BadInput(
                    f"no macro {name} in {', '.join(files)}; it knows {', '.join(sorted(known))}"
                )
            _bind(binding)
        for name, value in _macros().items():
            if getattr(value, "selector", None) == "gin.REQUIRED" or "gin.REQUIRED" in repr(value):
                raise BadInput(f"{name} has no value: give it with --gin.{name}=...")
        gin.finalize()
    except BadInput:
        raise
    except Exception as error:  # gin raises whatever the importing of modules raises, too
        raise BadInput(_one_line(error)) from error


def _bind(binding: str) -> None:
    try:
        with gin.unlock_config():
            gin.parse_config(binding)
    except Exception as error:
        raise BadInput(f"{binding!r}: {_one_line(error)}") from error


def _macros() -> dict[str, object]:
    """Macros that the configuration defines, with their values."""
    return {
        scope: parameters["value"]
        for (scope, selector), parameters in gin.config._CONFIG.items()
        if selector == "gin.macro"
    }


def _one_line(error: BaseException) -> str:
    """The message without gin's account of where it was: the first line, and gin file lines."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    places = [line for line in lines[1:] if line.startswith("In file")]
    message = lines[0] if lines else type(error).__name__
    return " ".join([message, *places]) if lines else type(error).__name__


def _prepare_output_dir(output_dir: str | None) -> pathlib.Path:
    if not output_dir:
        raise BadInput("no output folder: give one with --output_dir=DIR")
    folder = pathlib.Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(f"cannot write to output_dir={output_dir!r}: {error.strerror}") from error
    return folder


def run(files, bindings, search_paths, output_dir) -> None:
    """Parses, executes, and keeps the operative configuration.

    Raises:
      BadInput: see `parse_config`.
      ValueError, OSError: whatever the experiment finds wrong with its settings or files.
    """
    if not files:
        raise BadInput("no gin file: give one with --gin_file=FILE")
    parse_config(files, bindings, search_paths)
    folder = _prepare_output_dir(output_dir)
    try:
        gin.get_configurable(execute)(str(folder))
    except (ValueError, TypeError, RuntimeError, OSError):
        (folder / "error.log").write_text(traceback.format_exc())
        raise
    finally:
        (folder / "config.gin").write_text(gin.operative_config_str())


def main(argv: Sequence[str]) -> int:
    del argv
    settings = flags.FLAGS
    try:
        run(
            settings.gin_file,
            settings.gin_bindings,
            settings.gin_search_paths,
            settings.output_dir,
        )
    except (ValueError, OSError, Failed) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    return 0


def start() -> None:
    """The command: absl's flags, with --gin.X=Y among them."""
    flags.DEFINE_multi_string("gin_file", None, "A gin file; may be given several times.")
    flags.DEFINE_multi_string("gin_bindings", [], "A single binding; --gin.X=Y is short for it.")
    flags.DEFINE_list("gin_search_paths", ["."], "Folders in which gin files are looked for.")
    flags.DEFINE_string("output_dir", None, "Folder for all results; made if need be.")
    # Our own progress lines, without the chatter of the libraries below.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("experiments").setLevel(logging.INFO)
    app.run(main, argv=rewrite_gin_flags(sys.argv))


if __name__ == "__main__":
    # gin files import this module by its name; as __main__ it would exist twice.
    from experiments.run import start as start_by_name

    start_by_name()
