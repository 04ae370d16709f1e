"""What a training loop is given by a restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptcore.ledger import metadata_of
from ckptcore.names import GenerationId
from ckptcore.records import Level, Manifest


@dataclass(frozen=True)
class Restored:
    """What a restore gave. `step` is the number of completed updates; `generation` is None for a fresh start.

    `guarantee` is what the continuation can promise, `reason` why this checkpoint was chosen; both None for a fresh start.
    """

    step: int
    components: Mapping[str, Any]
    generation: GenerationId | None = None
    guarantee: Level | None = None
    reason: str | None = None
    manifest: Manifest | None = None

    @property
    def metadata(self) -> Any:
        """What the save was given as `metadata`; None for a fresh start."""
        return None if self.manifest is None else metadata_of(self.manifest)

    def __repr__(self) -> str:
        generation = None if self.generation is None else str(self.generation)
        shown = f"step={self.step}, generation={generation!r}, guarantee={self.guarantee!r}"
        return f"Restored({shown}, components={list(self.components)})"
