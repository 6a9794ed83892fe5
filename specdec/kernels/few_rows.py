"""Products of few rows with a large matrix: what decoding on a CPU consists of.

Dimensions: T rows, K inputs, N outputs.

XLA's CPU backend reads a weight matrix at the memory's speed for a single row, but packs it anew
for two or more, which makes verifying a block of 4 tokens cost 1.7 single steps. few_rows.cc reads
it once for up to 16 rows, and rounds a row alike whatever stands beside it. It is built when it is
first needed, where a C++ compiler is found (CXX, g++ or clang++); without one, or with
SPECDEC_KERNELS=0, products are XLA's.
"""

import ctypes
import functools
import hashlib
import logging
import math
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
from jax import lax

MAX_ROWS = 16

_SOURCE = pathlib.Path(__file__).with_name("few_rows.cc")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-w")
_TARGET = "specdec_few_rows"
logger = logging.getLogger(__name__)


def product(
    x: jax.Array,
    w: jax.Array,
    *,
    transposed: bool = False,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """x times w, or times w's transpose.

    Args:
      x: [..., K].
      w: [K, N], or [N, K] if transposed.
      precision, preferred_element_type: of XLA's product; the kernel's is float32 throughout.

    Returns:
      [..., N].
    """
    num_rows = math.prod(x.shape[:-1])
    is_float32 = x.dtype == w.dtype == jnp.float32
    if is_float32 and 1 <= num_rows <= MAX_ROWS and is_available():
        y = _few_rows(x.reshape(num_rows, x.shape[-1]), w, transposed)
        return y.reshape(*x.shape[:-1], y.shape[-1])
    return _product(x, w, transposed, precision, preferred_element_type)


def dot_general(x, w, dimension_numbers, **kwargs):
    """`product` in the form in which flax's Dense asks for it."""
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        raise ValueError(f"dimension_numbers={dimension_numbers}: not those of a dense layer")
    return product(x, w, **kwargs)


def _product(x, w, transposed, precision, preferred_element_type=None):
    numbers = (((x.ndim - 1,), (1 if transposed else 0,)), ((), ()))
    return lax.dot_general(
        x, w, numbers, precision=precision, preferred_element_type=preferred_element_type
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _few_rows(x, w, transposed):
    shape = (x.shape[0], w.shape[0 if transposed else 1])
    call = jax.ffi.ffi_call(
        _TARGET, jax.ShapeDtypeStruct(shape, jnp.float32), vmap_method="sequential"
    )
    return call(x, w, transposed=transposed)


def _forward(x, w, transposed):
    return _few_rows(x, w, transposed), (x, w)


def _backward(transposed, operands, gradient):
    product_fn = functools.partial(_product, transposed=transposed, precision=lax.Precision.HIGHEST)
    return jax.vjp(product_fn, *operands)[1](gradient)


_few_rows.defvjp(_forward, _backward)


@functools.cache
def is_available() -> bool:
    """Whether products of few rows run in the kernel; builds and registers it when first asked."""
    if os.environ.get("SPECDEC_KERNELS", "1") == "0" or jax.default_backend() != "cpu":
        return False
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).splitlines()
        reason = next((line for line in lines if "error" in line), lines[0])
        logger.warning("no kernel for products of few rows, so decoding is slower: %s", reason)
        return False
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(library.FewRowsProduct), platform="cpu")
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
    # -march=native makes code for this kind of processor alone: a home may be shared by several.
    made_of = (_SOURCE.read_bytes(), compiler, _FLAGS, jaxlib.version.__version__, _processor())
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    path = cache / "specdec" / f"few_rows-{digest}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = pathlib.Path(folder) / path.name
        command = [compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(path)  # whole or not at all, also beside another process
    return path


def _processor() -> str:
    """What tells kinds of processors apart."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
