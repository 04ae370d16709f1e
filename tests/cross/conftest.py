"""Four CPU devices, as for the tests of the JAX backend, so that targets can be sharded."""

from __future__ import annotations

import jax

# By configuration, not by XLA_FLAGS: the environment would leak into the processes that tests start.
jax.config.update("jax_num_cpu_devices", 4)
