"""Defect: the position in the data is saved and not restored, so a job begins its samples anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore.sampler import Sampler


def _ignored(self: Sampler, state: Mapping[str, Any]) -> None:  # noqa: ARG001
    return


Sampler.set_state = _ignored

if __name__ == "__main__":
    main(Jax())
