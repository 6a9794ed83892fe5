"""Models over several devices: a mesh, and rules that say which logical axis lies along which axis.

Logical axes: batch, vocab, heads (of attention, joined with their width in a kernel), mlp, embed,
length. XLA's partitioner does the rest: with heads, feed-forward and vocabulary split over `model`,
a layer's two products need one sum over the devices each (Shoeybi et al., arXiv 1909.08053), and
rows of a batch lie apart along `data`. An axis that its devices don't divide isn't split.

    mesh = make_mesh({"data": 1, "model": 8})
    target, draft = Layout(mesh), Layout(mesh, REPLICATED)
"""

import contextlib
import contextvars
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specdec.kernels import library

Rules = tuple[tuple[str, str | None], ...]

# Logical axis, axis of the mesh.
SHARDED: Rules = (
    ("batch", "data"),
    ("vocab", "model"),
    ("heads", "model"),
    ("mlp", "model"),
    ("embed", None),
)
# For a draft so small that every device had better run all of it.
REPLICATED: Rules = (("batch", "data"),)

# Parameters by name. A kernel's axis of "heads" is heads times their width.
_AXES = (
    (r"token_embedder/embedding", ("vocab", "embed")),
    (r"(.*/)?relpos_bias/rel_embedding", ("heads", None)),
    (r".*/(query|key|value)/kernel", ("embed", "heads")),
    (r".*/out/kernel", ("heads", "embed")),
    (r".*/mlp/wi(_\d)?/kernel", ("embed", "mlp")),
    (r".*/mlp/wo/kernel", ("mlp", "embed")),
    (r"(.*/)?logits_dense/kernel", ("embed", "vocab")),
)


def make_mesh(axes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of devices, neighbours along its last axis.

    Args:
      axes: devices along each axis, in order. Example: {"data": 2, "model": 4}.
      devices: default all, of all processes.

    Raises:
      ValueError: if the axes need another number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    shape = tuple(axes.values())
    if min(shape, default=0) < 1 or np.prod(shape) != len(devices):
        raise ValueError(
            f"a mesh of {dict(axes)} needs {int(np.prod(shape))} devices, there are "
            f"{len(devices)}: change the mesh's axes"
        )
    return Mesh(mesh_utils.create_device_mesh(shape, devices), tuple(axes))


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where arrays lie.

    Attributes:
      mesh: the devices.
      rules: (logical axis, axis of the mesh or None), as flax's `logical_to_mesh_axes` takes them.

    Raises:
      ValueError: for a rule about an axis that the mesh doesn't have.
    """

    mesh: Mesh
    rules: Rules = SHARDED

    def __post_init__(self):
        object.__setattr__(self, "rules", tuple(map(tuple, self.rules)))
        for logical, axis in self.rules:
            if axis is not None and axis not in self.mesh.axis_names:
                raise ValueError(
                    f"rule {logical!r} -> {axis!r}: the mesh has the axes {self.mesh.axis_names}"
                )

    def sharding(self, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """Of an array with these logical axes."""
        spec = nn.logical_to_mesh_axes(axes, self.rules)
        even = [
            axis if axis is not None and size % self.mesh.shape[axis] == 0 else None
            for axis, size in zip(spec, shape, strict=True)
        ]
        return NamedSharding(self.mesh, PartitionSpec(*even))

    def parameter(self, name: str, shape: Sequence[int]) -> NamedSharding:
        """Of a parameter, by its name: what `checkpoints` takes as a sharding_fn."""
        for pattern, axes in _AXES:
            if re.fullmatch(pattern, name) and len(axes) == len(shape):
                return self.sharding(axes, shape)
        return self.replicated

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def place(self, params: Any) -> Any:
        """Nested parameters, or any tree of them by t5x's names, where the rules put them."""

        def put(path, leaf):
            name = "/".join(str(key.key) for key in path)
            return _put(leaf, self.parameter(name, jnp.shape(leaf)))

        return jax.tree_util.tree_map_with_path(put, params)

    def replicate(self, tree: Any) -> Any:
        """Arrays that every device holds."""
        return jax.tree.map(lambda leaf: _put(leaf, self.replicated), tree)

    def place_rows(self, rows: Any) -> Any:
        """Arrays [B, ...] with their rows apart, the same arrays on every process."""

        def put(leaf):
            axes = ("batch", *[None] * (jnp.ndim(leaf) - 1))
            return _put(leaf, self.sharding(axes, jnp.shape(leaf)))

        return jax.tree.map(put, rows)

    def gathered(self, tree: Any) -> Any:
        """Arrays that every process can read whole."""
        if jax.process_count() == 1:
            return tree
        return multihost_utils.process_allgather(tree, tiled=True)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """device_put, also to devices of other processes, which hold the same array."""
    is_local = sharding.is_fully_addressable
    if is_local or not getattr(leaf, "is_fully_addressable", True):
        return jax.device_put(leaf, sharding)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        spec = PartitionSpec(*sharding.spec, None)
        data = _put(jax.random.key_data(leaf), NamedSharding(sharding.mesh, spec))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    held = np.asarray(leaf)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])


_layout = contextvars.ContextVar("specdec_layout", default=None)


@contextlib.contextmanager
def in_force(layout: Layout | None) -> Iterator[None]:
    """What is traced inside is laid out so; None changes nothing.

    XLA can't split the kernels of our own, so they are off.
    """
    if layout is None:
        yield
        return
    token = _layout.set(layout)
    try:
        with library.switched_off():
            yield
    finally:
        _layout.reset(token)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """x, laid out by the rules in force; without any, x as it is."""
    layout = _layout.get()
    if layout is None:
        return x
    return lax.with_sharding_constraint(x, layout.sharding(axes, x.shape))
