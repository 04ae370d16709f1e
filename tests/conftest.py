"""Settings that hold for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Before any test imports JAX: a machine's accelerator must not decide what the tests see.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# No deadlines: the speed of a shared machine is no property of the code.
settings.register_profile("here", deadline=None)
# On CI the examples are the same in every run: a failure there can be repeated.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
