"""Maps of arrays in flax's msgpack form, walked without reading the arrays.

An array is msgpack's extension 1, which holds (shape, name of the dtype, bytes) packed in turn;
one of over a gigabyte is a map of its pieces. A T5X checkpoint of the oldest form is one such file.
"""

import math
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import msgpack
import numpy as np
from flax import serialization

_NDARRAY = 1
# First byte of an extension -> bytes of its length; then come the type's code and the payload.
_LENGTH_BYTES = {0xC7: 1, 0xC8: 2, 0xC9: 4}
# First byte -> payload, where it is one of the fixed ones.
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CHUNKED = "__msgpack_chunked_array__"
_WINDOW = 4096  # bytes that hold any key, any value that is no array, and the head of one that is

Path = tuple[str, ...]


class Packed(NamedTuple):
    """An array in the file: its span, what its head says, and where its numbers begin.

    `numbers` is None where they lie in pieces.
    """

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: str
    numbers: int | None = None

    def read(self, content: Any, index: tuple[slice, ...] = ()) -> np.ndarray:
        """A part of the array, by default all, of the file's content, a memory map or bytes."""
        if self.numbers is None:
            whole = serialization.msgpack_restore(bytes(content[self.start : self.stop]))
            return np.asarray(whole)[index]
        dtype = jnp.dtype(self.dtype)
        size = math.prod(self.shape)
        flat = np.frombuffer(content, dtype, size, self.numbers)
        # A copy: a view would keep the map from being closed.
        return np.array(flat.reshape(self.shape)[index])


def walk(content: Any) -> Iterator[tuple[Path, Any]]:
    """(path of keys, value) of all there is in the map; an array's value is a `Packed`.

    Args:
      content: bytes or a memory map, which begins with a map.

    Raises:
      ValueError: for what is no such map, or cut short.
    """
    try:
        stop = yield from _walk(content, 0, ())
    except (msgpack.exceptions.UnpackException, ValueError) as error:
        raise ValueError("no msgpack map, or cut short") from error
    if stop > len(content):
        raise ValueError("no msgpack map, or cut short")


def _walk(content: Any, position: int, path: Path) -> Generator[tuple[Path, Any], None, int]:
    """Yields what is in the map at that position, and returns where it ends."""
    unpacker = _unpacker(content, position)
    num_entries = unpacker.read_map_header()
    position += unpacker.tell()
    for _ in range(num_entries):
        unpacker = _unpacker(content, position)
        inner = (*path, str(unpacker.unpack()))
        position += unpacker.tell()
        if _is_map(content, position):
            if _is_chunked(content, position):
                packed = _in_pieces(content, position)
                position = packed.stop
                yield inner, packed
            else:
                position = yield from _walk(content, position, inner)
        elif _is_array(content, position):
            packed = _array(content, position)
            position = packed.stop
            yield inner, packed
        else:
            unpacker = _unpacker(content, position)
            value = unpacker.unpack()
            position += unpacker.tell()
            yield inner, value
    return position


def _unpacker(content: Any, position: int) -> Any:
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed(bytes(content[position : position + _WINDOW]))
    return unpacker


def _first(content: Any, position: int) -> int:
    if position >= len(content):
        raise ValueError("cut short")
    return content[position]


def _is_map(content: Any, position: int) -> bool:
    first = _first(content, position)
    return first >> 4 == 0x8 or first in (0xDE, 0xDF)


def _is_chunked(content: Any, position: int) -> bool:
    unpacker = _unpacker(content, position)
    return unpacker.read_map_header() > 0 and unpacker.unpack() == _CHUNKED


def _in_pieces(content: Any, position: int) -> Packed:
    entries = dict(_walk(content, position, ()))
    shape = tuple(size for path, size in entries.items() if path[0] == "shape")
    pieces = [piece for piece in entries.values() if isinstance(piece, Packed)]
    return Packed(position, pieces[-1].stop, shape, pieces[0].dtype)


def _code_position(content: Any, position: int) -> int | None:
    first = _first(content, position)
    if first in _FIXED:
        return position + 1
    return position + 1 + _LENGTH_BYTES[first] if first in _LENGTH_BYTES else None


def _is_array(content: Any, position: int) -> bool:
    code = _code_position(content, position)
    return code is not None and _first(content, code) == _NDARRAY


def _array(content: Any, position: int) -> Packed:
    code = _code_position(content, position)
    length = _FIXED.get(content[position]) or int.from_bytes(content[position + 1 : code], "big")
    unpacker = _unpacker(content, code + 1)
    unpacker.read_array_header()
    shape, dtype = unpacker.unpack(), unpacker.unpack()
    stop = code + 1 + length
    numbers = stop - math.prod(shape) * jnp.dtype(dtype).itemsize  # they come last
    return Packed(position, stop, tuple(shape), dtype, numbers)
