"""Defect: the resume point is the commit of the greatest step in the listing, whatever incarnations started from."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore.history import History
from ckptcore.names import GenerationId


def _by_step(self: History) -> Iterator[GenerationId]:
    yield from sorted(self.generations, key=lambda generation: (generation.step, generation), reverse=True)


History.lineage = _by_step

if __name__ == "__main__":
    main(Jax())
