"""How target and draft lie over several devices, as gin files say it (see `specdec.sharding`)."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh

from specdec.sharding import SHARDED, Layout, Rules, make_mesh


@dataclasses.dataclass(frozen=True)
class Devices:
    """A mesh, and what lies where on it.

    Attributes:
      mesh: devices along each axis, in order. Example: {"data": 1, "model": 8}.
      rules: (logical axis, axis of the mesh or None) of the target.
      draft_rules: of the draft; None = the target's, `sharding.REPLICATED` = all of it everywhere.
      draft_mesh: devices of the draft's own, the last ones, as `mesh` has it; None = the target's.
    """

    mesh: Mapping[str, int]
    rules: Rules = SHARDED
    draft_rules: Rules | None = None
    draft_mesh: Mapping[str, int] | None = None

    def layouts(self, devices: Sequence[jax.Device] | None = None) -> tuple[Layout, Layout]:
        """The target's and the draft's.

        Raises:
          ValueError: if the meshes need another number of devices than there are.
        """
        devices = list(jax.devices() if devices is None else devices)
        draft_rules = self.rules if self.draft_rules is None else self.draft_rules
        if self.draft_mesh is None:
            mesh = make_mesh(self.mesh, devices)
            return Layout(mesh, self.rules), Layout(mesh, draft_rules)
        num_own = _num_devices(self.draft_mesh)
        num_wanted = _num_devices(self.mesh) + num_own
        if num_wanted != len(devices):
            raise ValueError(
                f"meshes of {dict(self.mesh)} and {dict(self.draft_mesh)} need {num_wanted} "
                f"devices, there are {len(devices)}: change them"
            )
        target = Layout(make_mesh(self.mesh, devices[:-num_own]), self.rules)
        return target, Layout(make_mesh(self.draft_mesh, devices[-num_own:]), draft_rules)

    def abstract_layouts(self) -> tuple[Layout, Layout]:
        """As `layouts`, of devices that aren't there: for shapes, not for arrays."""
        here = AbstractMesh(tuple(self.mesh.values()), tuple(self.mesh))
        own = self.draft_mesh or self.mesh
        there = AbstractMesh(tuple(own.values()), tuple(own))
        return Layout(here, self.rules), Layout(there, self.draft_rules or self.rules)


def _num_devices(mesh: Mapping[str, int]) -> int:
    num = 1
    for size in mesh.values():
        num *= size
    return num
