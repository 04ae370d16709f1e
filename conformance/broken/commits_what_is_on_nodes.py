"""Defect: what is whole on the nodes counts as delivered: a staged receipt is taken for a receipt, before the upload."""

from __future__ import annotations

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore import names
from ckptcore.coordinator import Coordinator
from ckptcore.names import GenerationId
from ckptcore.proof import Proven
from ckptcore.storereads import bounded_bytes, exists


def _is_on_nodes(self: Coordinator, proven: Proven) -> bool:
    return exists(self.store, names.on_nodes_key(proven.generation))


def _receive(self: Coordinator, generation: GenerationId, found: dict[int, bytes]) -> None:
    _received(self, generation, found)
    for staged in self.store.children(names.staged_prefix(generation)):
        key = names.staged_prefix(generation) + staged
        rank, data = names.parse_receipt_key(key), bounded_bytes(self.store, key)
        if rank is not None and data is not None:
            found.setdefault(rank, data)


def _file_problems(self: Coordinator, proven: Proven) -> list[str]:
    return [] if _is_on_nodes(self, proven) else _problems(self, proven)


def _publish(self: Coordinator, proven: Proven) -> list[str]:
    if not _is_on_nodes(self, proven):
        return _published(self, proven)
    for key, data in proven.objects.items():
        self.store.put_if_absent(key, data)
    return []


_received, Coordinator._receive = Coordinator._receive, _receive  # noqa: SLF001 -- a defect is put where the work is done
_problems, Coordinator._file_problems = Coordinator._file_problems, _file_problems  # noqa: SLF001 -- as above
_published, Coordinator.publish_derived = Coordinator.publish_derived, _publish

if __name__ == "__main__":
    main(Jax())
