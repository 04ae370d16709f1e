"""Defect: the receipt of a copy is put before its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore.nodes import Held, NodeStore


def _take(self: NodeStore, held: Held, pieces: Callable[[int], Iterable[memoryview]]) -> None:
    self.keep(held.receipt)
    _taken(self, held, pieces)


_taken, NodeStore.take = NodeStore.take, _take

if __name__ == "__main__":
    main(Jax())
