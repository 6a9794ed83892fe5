"""Builds and registers compiled kernels, when they are first needed.

That takes a C++ compiler (CXX, g++ or clang++) and some seconds, once: libraries are kept in the
user's cache. Without a compiler, on other backends than the CPU, or with SPECDEC_KERNELS=0, callers
take the form in plain JAX.
"""

import contextlib
import contextvars
import ctypes
import dataclasses
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import jax
import jaxlib.version

_FOLDER = pathlib.Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-w")
_ONEDNN = pathlib.Path(sys.prefix) / "lib" / "libdnnl.so.3"
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Library:
    """What is compiled into one file.

    Attributes:
      name: of the file.
      sources: in this folder, headers among them.
      symbols: (name for `jax.ffi.ffi_call`, symbol in the library) of each kernel.
      flags: more of the compiler's.
    """

    name: str
    sources: tuple[str, ...]
    symbols: tuple[tuple[str, str], ...]
    flags: tuple[str, ...] = ()

    def register(self) -> bool:
        """Whether it can be used; builds it if need be, and says in one line why not."""
        if os.environ.get("SPECDEC_KERNELS", "1") == "0" or jax.default_backend() != "cpu":
            return False
        try:
            library = ctypes.CDLL(str(self.built()))
        except (OSError, subprocess.SubprocessError) as error:
            lines = str(getattr(error, "stderr", None) or error).splitlines()
            reason = next((line for line in lines if "error" in line), lines[0])
            logger.warning("no compiled %s, so this is slower: %s", self.name, reason)
            return False
        for name, symbol in self.symbols:
            jax.ffi.register_ffi_target(
                name, jax.ffi.pycapsule(getattr(library, symbol)), platform="cpu"
            )
        return True

    def built(self) -> pathlib.Path:
        """The library's file, from the user's cache if it was made there for this machine before.

        Raises:
          OSError: without a compiler, or where nothing can be written.
          subprocess.CalledProcessError: with the compiler's errors.
        """
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise FileNotFoundError("no C++ compiler found; install g++ or name one in CXX")
        paths = [_FOLDER / name for name in self.sources]
        flags = (*_FLAGS, f"-I{jax.ffi.include_dir()}")
        # -march=native makes code for this kind of processor alone, and homes are shared.
        version = jaxlib.version.__version__
        made_of = [path.read_bytes() for path in paths], compiler, flags, self.flags, version
        digest = hashlib.sha256(repr((made_of, _processor())).encode()).hexdigest()[:16]
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        path = cache / "specdec" / f"{self.name}-{digest}.so"
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = pathlib.Path(folder) / path.name
            compiled = [str(source) for source in paths if source.suffix == ".cc"]
            command = [compiler, *flags, *compiled, *self.flags, "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            made.replace(path)  # whole or not at all, also beside another process
        return path


DECODING = Library(
    "decoding",
    ("few_rows.cc", "attention.cc", "parts.h"),
    (("specdec_few_rows", "SpecdecFewRows"), ("specdec_few_queries", "SpecdecFewQueries")),
)
TRAINING = Library(
    "training",
    ("mixed.cc",),
    (("specdec_mixed", "SpecdecMixed"),),
    (f"-I{sys.prefix}/include", str(_ONEDNN), f"-Wl,-rpath,{_ONEDNN.parent}"),
)


@functools.cache
def _is_decoding_registered() -> bool:
    return DECODING.register()


_is_off = contextvars.ContextVar("specdec_kernels_off", default=False)


def is_available() -> bool:
    """Whether the kernels of decoding can be called."""
    return not _is_off.get() and _is_decoding_registered()


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """What is traced inside takes the forms in plain JAX, which XLA can look into."""
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


@functools.cache
def is_training_available() -> bool:
    """Whether those of training can: they need oneDNN, see the extra `train` in setup.py."""
    # Its threads would otherwise go on spinning after each product, in the way of XLA's.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return _ONEDNN.exists() and TRAINING.register()


def _processor() -> str:
    """What tells kinds of processors apart."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
