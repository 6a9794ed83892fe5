"""Settings of every test: float32 stays float32, and the CPU is enough."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
