"""How target and draft lie over several devices, as gin files say it (see `specdec.sharding`)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
        if self.draft_mesh is None:
            mesh = make_mesh(self.mesh, devices)
            return self._laid_out(mesh, mesh)
        num_own = math.prod(self.draft_mesh.values())
        num_wanted = math.prod(self.mesh.values()) + num_own
        if num_wanted != len(devices):
            raise ValueError(
                f"meshes of {dict(self.mesh)} and {dict(self.draft_mesh)} need {num_wanted} "
                f"devices, there are {len(devices)}: change them"
            )
        return self._laid_out(
            make_mesh(self.mesh, devices[:-num_own]),
            make_mesh(self.draft_mesh, devices[-num_own:]),
        )

    def abstract_layouts(self) -> tuple[Layout, Layout]:
        """As `layouts`, of devices that aren't there: for shapes, not for arrays."""
        meshes = (self.mesh, self.draft_mesh or self.mesh)
        return self._laid_out(*(AbstractMesh(tuple(m.values()), tuple(m)) for m in meshes))

    def _laid_out(self, here: Any, there: Any) -> tuple[Layout, Layout]:
        draft_rules = self.rules if self.draft_rules is None else self.draft_rules
        return Layout(here, self.rules), Layout(there, draft_rules)
