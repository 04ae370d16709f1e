"""Defect: a coordinator decides although it sees that it has been superseded."""

from __future__ import annotations

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore import names
from ckptcore.coordinator import Coordinator
from ckptcore.names import GenerationId
from ckptcore.storereads import exists


def _without_consequence(self: Coordinator, generation: GenerationId) -> None:  # noqa: ARG001
    exists(self.store, names.claim_key(self.incarnation + 1))


Coordinator.fence = _without_consequence

if __name__ == "__main__":
    main(Jax())
