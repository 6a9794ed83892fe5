"""Settings of every test. The CPU is enough, and nearly all of the time would go to compiling."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Less optimised programs compile a third faster and mean the same. `make soak` sets XLA_FLAGS to
# nothing, so that the programs users run are tested as well.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# Tests compile what they test, and leave nothing in the user's cache.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import pytest

from specdec import timing


@pytest.fixture(autouse=True, scope="session")
def short_chains():
    """Costs are measured to be there, not to be precise."""
    timing.SECONDS = 1e-3
