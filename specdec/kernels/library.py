"""Builds and registers the compiled kernels, when they are first needed.

That takes a C++ compiler (CXX, g++ or clang++) and some seconds, once: the library is kept in the
user's cache. Without a compiler, on other backends than the CPU, or with SPECDEC_KERNELS=0, callers
take the form in plain JAX.
"""

import ctypes
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import jax
import jaxlib.version

# Rows or queries that count as few: the kernels' templates end there.
MAX_ROWS = 16

_FOLDER = pathlib.Path(__file__).parent
_SOURCES = (_FOLDER / "few_rows.cc", _FOLDER / "attention.cc")
_HEADERS = (_FOLDER / "parts.h",)
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-w")
_SYMBOLS = {"specdec_few_rows": "SpecdecFewRows", "specdec_few_queries": "SpecdecFewQueries"}
logger = logging.getLogger(__name__)


@functools.cache
def is_available() -> bool:
    """Whether the kernels can be called, by the names of `jax.ffi.ffi_call`."""
    if os.environ.get("SPECDEC_KERNELS", "1") == "0" or jax.default_backend() != "cpu":
        return False
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).splitlines()
        reason = next((line for line in lines if "error" in line), lines[0])
        logger.warning("no compiled kernels, so decoding is slower: %s", reason)
        return False
    for name, symbol in _SYMBOLS.items():
        capsule = jax.ffi.pycapsule(getattr(library, symbol))
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    return True


def _built() -> pathlib.Path:
    """The compiled library, from the user's cache if it was made there for this machine before.

    Raises:
      OSError: without a compiler, or where nothing can be written.
      subprocess.CalledProcessError: with the compiler's errors.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler found; install g++ or name one in CXX")
    content = [path.read_bytes() for path in _SOURCES + _HEADERS]
    # -march=native makes code for this kind of processor alone: a home may be shared by several.
    made_of = (content, compiler, _FLAGS, jaxlib.version.__version__, _processor())
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    path = cache / "specdec" / f"kernels-{digest}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = pathlib.Path(folder) / path.name
        include = f"-I{jax.ffi.include_dir()}"
        command = [compiler, *_FLAGS, include, *map(str, _SOURCES), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(path)  # whole or not at all, also beside another process
    return path


def _processor() -> str:
    """What tells kinds of processors apart."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
