"""Runs an experiment that gin files describe, in T5X's flag style.

    python -m experiments.run --gin_file=FILE [--gin_file=FILE ...] --output_dir=DIR \\
        [--gin.MACRO=value ...] [--gin.module.fn.parameter=value ...] [--gin_search_paths=A,B] \\
        [--profile_dir=DIR] [--distributed or --coordinator=HOST:PORT and so on, see --help]

A gin file names its experiment, `run.execute.experiment = @train.train`; whatever it is, it is
called with the output folder. The operative configuration is kept as DIR/config.gin. Bad input
ends in one line on stderr and exit status 2; where it arose stands in DIR/error.log, and what
earlier runs wrote stays as it is. Ctrl-C ends in one line and status 130. A traceback is a bug.

Compiled programs are kept on disk for the next run, in ~/.cache/specdec; JAX's own variables choose
another folder (JAX_COMPILATION_CACHE_DIR) or none (JAX_ENABLE_COMPILATION_CACHE=false).
"""

import contextlib
import copy
import inspect
import logging
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import gin
from absl import app, flags
from absl import logging as absl_logging

logger = logging.getLogger(__name__)
_GIN_FLAG = re.compile(r"^--gin\.([^=]+)=(.*)$", re.DOTALL)

# What gin says of a fault, and what to do about it.
_REMEDIES = (
    (r"Unable to open file", "correct the path, or name its folder with --gin_search_paths=DIR"),
    (r"No bindings specified for '(\w+)/gin\.macro'", r"define the macro \1, or correct its name"),
    (r"No configurable matching", "correct it, or import its module in the gin file"),
    (
        r"no literal|invalid syntax|Expected|EOF|Unable to parse",
        "values are numbers, tuples, or texts in quotes of their own, '\"text\"'",
    ),
)


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


def parse_config(
    files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    *,
    is_whole: bool = True,
) -> None:
    """Reads gin files, then command-line bindings, and refuses what would be ignored silently.

    Where more is to come (`is_whole` is False), what is still missing is passed over.

    Raises:
      BadInput: for a file that is not there, a macro that no file knows, a parameter that its
        function does not have, or a macro without a value.
    """
    gin.clear_config()
    for path in search_paths:
        gin.add_config_file_search_path(path)
    try:
        with _without_log():
            gin.parse_config_files_and_bindings(files, None, finalize_config=False)
        known = macros()
        for binding in bindings:
            name = binding.split("=")[0].strip()
            if re.fullmatch(r"\w+", name) and name not in known:
                raise BadInput(
                    f"no macro {name} in {', '.join(files)}; it knows {', '.join(sorted(known))}"
                )
            _bind(binding)
        if not is_whole:
            return
        for name in macros_missing():
            raise BadInput(f"{name} has no value: give it with --gin.{name}=...")
        gin.finalize()
    except BadInput:
        raise
    except Exception as error:  # gin raises whatever the importing of modules raises, too
        raise BadInput(_with_remedy(error)) from error
    if not _names_an_experiment():
        raise BadInput(
            f"no experiment in {', '.join(files)}: bind run.execute.experiment, as "
            "gin_configs/compare.gin does"
        )


def _bind(binding: str) -> None:
    try:
        with gin.unlock_config():
            gin.parse_config(binding)
    except Exception as error:
        raise BadInput(f"{binding!r}: {_with_remedy(error)}") from error


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """gin logs every folder in which it doesn't find a file, and then raises an error as well."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def macros() -> dict[str, object]:
    """Macros that the configuration defines, with their values."""
    return {
        scope: parameters["value"]
        for (scope, selector), parameters in gin.config._CONFIG.items()
        if selector == "gin.macro"
    }


def macros_missing() -> list[str]:
    """Macros that were left without a value."""
    return [name for name, value in macros().items() if "gin.REQUIRED" in repr(value)]


def _names_an_experiment() -> bool:
    return any(
        selector.endswith("run.execute") and "experiment" in parameters
        for (_, selector), parameters in gin.config._CONFIG.items()
    )


def _with_remedy(error: BaseException) -> str:
    """gin's message in one line, and what to do about it where we know."""
    message = re.sub("malformed node or string.*", "no literal", one_line(error))
    for pattern, remedy in _REMEDIES:
        if match := re.search(pattern, message):
            return f"{message.rstrip('.: ')}: {match.expand(remedy)}"
    if match := re.search(r"Configurable '(.+?)' doesn't have a parameter", message):
        parameters = inspect.signature(gin.get_configurable(match[1])).parameters
        return f"{message.rstrip('.')}: it has {', '.join(parameters)}"
    return message


def one_line(error: BaseException) -> str:
    """An error's message, of gin's account of where it was only the lines about files."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    places = [line for line in lines[1:] if line.startswith("In file")]
    message = lines[0] if lines else type(error).__name__
    return " ".join([message, *places]) if lines else type(error).__name__


def prepare_output_dir(output_dir: str | None, flag: str = "output_dir") -> pathlib.Path:
    if not output_dir:
        raise BadInput(f"no output folder: give one with --{flag}=DIR")
    folder = pathlib.Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"cannot write to {flag}={output_dir!r} ({error.strerror}): choose another folder "
            f"with --{flag}=DIR"
        ) from error
    return folder


@contextlib.contextmanager
def _profiled(folder: str | None) -> Iterator[None]:
    """Writes what JAX's profiler sees of the block, for TensorBoard or Perfetto; None: nothing."""
    if folder is None:
        yield
        return
    import jax

    prepare_output_dir(folder, "profile_dir")
    with jax.profiler.trace(folder):
        yield


def show(files, bindings, search_paths, *_) -> None:
    """Says what a configuration would run, and runs nothing; see `dry_run`.

    Raises:
      BadInput: see `parse_config`.
    """
    if not files:
        raise BadInput("no gin file: give one with --gin_file=FILE")
    parse_config(files, bindings, search_paths, is_whole=False)
    from experiments import dry_run

    missing = [f"{name}: give it with --gin.{name}=..." for name in macros_missing()]
    dry_run.dry_run(experiment(), missing)


def experiment() -> Callable[..., None]:
    """What run.execute.experiment names, configured by gin."""
    try:
        reference = gin.query_parameter(f"{__name__}.execute.experiment")
    except ValueError as error:
        raise BadInput("no experiment: bind run.execute.experiment") from error
    return copy.deepcopy(reference)


def run(files, bindings, search_paths, output_dir, profile_dir=None) -> None:
    """Parses, executes, and keeps the operative configuration.

    A run that was refused or broke off leaves config.gin as it is, which may be another run's: what
    it was about is added to error.log.

    Raises:
      BadInput: see `parse_config`.
      ValueError, OSError: whatever the experiment finds wrong with its settings or files.
    """
    if not files:
        raise BadInput("no gin file: give one with --gin_file=FILE")
    parse_config(files, bindings, search_paths)
    folder = prepare_output_dir(output_dir)
    from specdec import compilation  # and with it JAX, for which mistakes need not wait

    try:
        with _profiled(profile_dir), compilation.counted() as compiles:
            gin.get_configurable(execute)(str(folder))
    except Exception as error:
        with (folder / "error.log").open("a") as log:
            log.write(f"{traceback.format_exc()}\n{gin.operative_config_str()}\n")
        if isinstance(error, Failed):
            _keep_config(folder)
        raise
    _keep_config(folder)
    logger.info("%d programs compiled or loaded in %.1f s", compiles.count, compiles.seconds)


def _keep_config(folder: pathlib.Path) -> None:
    from experiments import hosts

    if hosts.is_first():
        (folder / "config.gin").write_text(gin.operative_config_str())


def main(
    argv: Sequence[str],
    settings: flags.FlagValues = flags.FLAGS,
    run_fn: Callable[..., None] = run,
) -> int:
    """Runs what the flags say.

    Args:
      argv: the program's name, and what is left on the command line besides flags.
      settings: flags with their values.
      run_fn: `run`, or what takes its arguments.

    Returns:
      Exit status: 0, 2 for bad input or a run that failed, 130 if interrupted.
    """
    try:
        if argv[1:]:
            raise BadInput(f"{argv[1]!r} is no flag: write --gin_file=FILE, --gin.NAME=value")
        with _among_processes(settings):
            (show if settings.dry_run else run_fn)(
                settings.gin_file,
                settings.gin_bindings,
                settings.gin_search_paths,
                settings.output_dir,
                settings.profile_dir,
            )
    except (ValueError, OSError, Failed) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"interrupted; {settings.output_dir} keeps what was written, and the same command can "
            "be run again",
            file=sys.stderr,
        )
        return 130
    return 0


@contextlib.contextmanager
def _among_processes(settings: flags.FlagValues) -> Iterator[None]:
    """Joins the other processes, if the flags tell of any; of several the first one prints."""
    named = (settings.coordinator, settings.num_processes, settings.process_id)
    if not settings.distributed and named == (None, None, None):
        yield
        return
    from experiments import hosts  # and with it JAX

    hosts.join(*named)
    with hosts.quiet_unless_first():
        yield


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """The command's flags; --gin.X=Y is one of them, see `rewrite_gin_flags`."""

    def define(define_fn, name, default, text):
        define_fn(name, default, text, flag_values=values)

    define(flags.DEFINE_multi_string, "gin_file", None, "A gin file; several may be given.")
    define(flags.DEFINE_multi_string, "gin_bindings", [], "A binding; --gin.X=Y is short for it.")
    define(flags.DEFINE_list, "gin_search_paths", ["."], "Folders to look for gin files in.")
    define(flags.DEFINE_string, "output_dir", None, "Folder for all results; made if need be.")
    define(flags.DEFINE_string, "profile_dir", None, "Folder for a trace of JAX's profiler.")
    define(flags.DEFINE_bool, "dry_run", False, "Say what would run, and what is missing for it.")
    text = "Run on all hosts of a TPU slice or SLURM job, which JAX finds out by itself."
    define(flags.DEFINE_bool, "distributed", False, text)
    define(flags.DEFINE_string, "coordinator", None, "Elsewhere: HOST:PORT of the first process.")
    define(flags.DEFINE_integer, "num_processes", None, "Elsewhere: how many processes there are.")
    define(
        flags.DEFINE_integer, "process_id", None, "Elsewhere: which of them this one is, from 0."
    )


def parse_flags(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """What is left of the command line besides flags; a flag that isn't one ends the program."""
    try:
        return values(rewrite_gin_flags(argv))
    except flags.Error as error:
        print(f"error: {one_line(error)} See --help.", file=sys.stderr)
        sys.exit(2)


def _keep_compiled_programs() -> None:
    """JAX reads these when it is imported; what the user has set stays."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(cache, "specdec")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")


def show_progress() -> None:
    """Our own progress lines, without the chatter of the libraries below."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("experiments").setLevel(logging.INFO)


def start(run_fn: Callable[..., None] = run) -> None:
    """The command."""
    _keep_compiled_programs()
    define_flags()
    show_progress()
    app.run(partial(main, run_fn=run_fn), flags_parser=parse_flags)


if __name__ == "__main__":
    # gin files import this module by its name; as __main__ it would exist twice.
    from experiments.run import start as start_by_name

    start_by_name()
