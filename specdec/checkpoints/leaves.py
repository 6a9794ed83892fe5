"""Parameters that still lie in a file: read one by one, straight into dtype and sharding.

Peak memory is what was read plus one leaf. Where a leaf is sharded, a process reads only the parts
that its own devices hold.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")
Index = tuple[slice, ...]
_PART_BYTES = 16 << 20
_ALIGNMENT = 64
# Name and shape of a parameter -> where it goes.
ShardingFn = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]


class Leaf(NamedTuple):
    """A parameter that lies in a file.

    Attributes:
      shape, dtype: as the file has them; dtype by numpy's name ("float32", "bfloat16").
      read_fn: reads a part of it, one slice a dimension.
    """

    shape: tuple[int, ...]
    dtype: str
    read_fn: Callable[[Index], np.ndarray]

    def read(self) -> np.ndarray:
        """All of it."""
        return self.read_fn((slice(None),) * len(self.shape))

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    @property
    def transposed(self) -> "Leaf":
        return Leaf(self.shape[::-1], self.dtype, lambda index: self.read_fn(index[::-1]).T)

    def slice_of(self, position: int, axis: int) -> "Leaf":
        """One of the leaves that are stacked in this one along an axis."""

        def read(index: Index) -> np.ndarray:
            whole = (*index[:axis], slice(position, position + 1), *index[axis:])
            return np.squeeze(self.read_fn(whole), axis)

        return Leaf(self.shape[:axis] + self.shape[axis + 1 :], self.dtype, read)


def in_memory(flat: Mapping[str, Any]) -> dict[str, Leaf]:
    """Arrays as leaves, so that what writes leaves writes them, too."""

    def leaf(array: Any) -> Leaf:
        return Leaf(jnp.shape(array), jnp.dtype(array.dtype).name, lambda i: np.asarray(array)[i])

    return {name: leaf(array) for name, array in flat.items()}


def place(
    leaves: Mapping[str, Leaf],
    dtype: Any,
    *,
    stays_narrow: bool = False,
    sharding_fn: ShardingFn | None = None,
) -> dict[str, jax.Array]:
    """Reads all leaves.

    Args:
      leaves: by name.
      dtype: of the arrays.
      stays_narrow: leave those that lie there in bfloat16 as they are.
      sharding_fn: where each goes; None = the default device.
    """
    placed = {}
    for name, leaf in leaves.items():
        to = jnp.bfloat16 if stays_narrow and leaf.dtype == "bfloat16" else dtype

        def part(index: Index, leaf: Leaf = leaf, to: Any = to) -> np.ndarray:
            return _converted(leaf, index, to)

        if sharding_fn is None:
            placed[name] = jnp.asarray(part((slice(None),) * len(leaf.shape)))
        else:
            sharding = sharding_fn(name, leaf.shape)
            placed[name] = jax.make_array_from_callback(leaf.shape, sharding, part)
    return placed


def _aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An empty array where XLA's CPU backend takes arrays as they are, without a copy."""
    num_bytes = math.prod(shape) * jnp.dtype(dtype).itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


def _converted(leaf: Leaf, index: Index, dtype: Any) -> np.ndarray:
    """A part of a leaf in another dtype; a large one row by row, lest both be there whole."""
    if not index or jnp.dtype(dtype) == leaf.dtype or leaf.num_bytes <= _PART_BYTES:
        return np.asarray(leaf.read_fn(index)).astype(dtype, copy=False)
    first, last, _ = index[0].indices(leaf.shape[0])
    sizes = [len(range(*one.indices(size))) for one, size in zip(index, leaf.shape, strict=True)]
    found = _aligned(sizes, dtype)
    step = max(_PART_BYTES * leaf.shape[0] // leaf.num_bytes, 1)
    for start in range(first, last, step):
        stop = min(start + step, last)
        found[start - first : stop - first] = leaf.read_fn((slice(start, stop), *index[1:]))
    return found
