"""Four CPU devices for every test of the JAX backend."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import Mesh

# By configuration, not by XLA_FLAGS: the environment would leak into the processes that tests start.
jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture
def mesh() -> Mesh:
    """A 2 × 2 mesh with the axes `data` and `model`."""
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
