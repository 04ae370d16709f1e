"""Defect: what a start cannot determine, such as a record of a newer version, it aborts."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CheckpointError
from ckptcore.names import GenerationId
from ckptcore.proof import Proven, Refuted


def _determined(self: Coordinator, generation: GenerationId, receipts: Mapping[int, bytes] | None = None) -> Proven | Refuted:
    try:
        return _examined(self, generation, receipts)
    except CheckpointError as error:
        return Refuted(str(error))


_examined, Coordinator.examine = Coordinator.examine, _determined

if __name__ == "__main__":
    main(Jax())
