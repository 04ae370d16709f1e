"""Defect: a program restores its parameters, and begins with new moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckpt_conformance.adapters.training import Training


def _only_weights(self: Training, components: Mapping[str, Any]) -> None:
    _restored(self, {**components, "optimizer": self.components["optimizer"]})


_restored, Training.restored = Training.restored, _only_weights

if __name__ == "__main__":
    main(Jax())
