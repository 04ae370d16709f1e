"""Defect: retention takes what a later commit refers to, and what a job has started from."""

from __future__ import annotations

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore import retention
from ckptcore.history import History
from ckptcore.names import GenerationId


def _nothing(history: History) -> set[GenerationId]:  # noqa: ARG001
    return set()


retention.pinned = _nothing
retention.referenced = _nothing

if __name__ == "__main__":
    main(Jax())
