"""Ranks that keep data on nodes first, each slot a node of its own: what their programs do beside training.

A program is given `NODES`, JSON: `folder` (of all nodes), `copies`, `kill` (the step in whose upload rank 0 is killed, in the
first attempt), `lost` (its node goes with it). Where nothing is lost, the second attempt restores while the data in the run's
store is away.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ckptcore import resuming
from ckptcore.events import Event
from ckptcore.nodes import Local
from ckptcore.restored import Restored

T = TypeVar("T")
ATTEMPT = int(os.environ.get("CKPT_ATTEMPT", "1"))
UPLOAD_LIMIT = 400.0
"""Bytes a second of the first attempt: a part has some hundred."""


@dataclass(frozen=True)
class LocalTier:
    """What `NODES` says, for one rank of a job of `size`."""

    run: Path
    nodes: dict[str, Any]
    rank: int
    size: int

    @property
    def node(self) -> Path:
        return Path(self.nodes["folder"]) / f"node-{os.environ['CKPT_SLOT']}"

    def options(self) -> dict[str, Any]:
        """Of the `Checkpointer`."""
        if not self.nodes:
            return {}
        limit = UPLOAD_LIMIT if ATTEMPT == 1 else None
        return {"local": Local(self.node, upload_limit=limit, copies=self.nodes["copies"]), "on_event": self._on_event}

    def _on_event(self, event: Event) -> None:
        generation = event.generation
        if event.kind == "on-nodes" and ATTEMPT == 1 and generation is not None and generation.step == self.nodes["kill"]:
            threading.Thread(target=self._die, args=(str(generation),), daemon=True).start()

    def _die(self, generation: str) -> None:
        """When a first file is uploaded, and every node has what it is to have."""
        database = f"generations/{generation}/state/ranks/{self.rank:05d}-*"
        receipts = f"node-*/*/generations/{generation}/receipts/*.json"
        _await(lambda: any(self.run.glob(f"{database}/d/*")))
        _await(lambda: len([*Path(self.nodes["folder"]).glob(receipts)]) == self.size * (1 + self.nodes["copies"]))
        assert not any(self.run.glob(f"{database}/manifest.ocdbt"))
        if self.nodes["lost"]:
            shutil.rmtree(self.node)
        os.kill(os.getpid(), signal.SIGKILL)

    def restored(self, restore: Callable[[], Restored]) -> Restored:
        """Restore, and tell what. The data in the run's store is away meanwhile: rank 0 hides it when it hands over the base."""
        if not self.nodes or self.nodes["lost"] or ATTEMPT == 1:
            return self._told(restore())
        real, hidden = resuming.open_session, partial(self._moved, ".away", "")
        if self.rank == 0:
            resuming.open_session = lambda store, channel, claim: real(store, channel, lambda: _then(claim(), hidden))
        found = restore()
        if self.rank == 0:
            self._moved("", ".away")
        return self._told(found)

    def _moved(self, to: str, where: str) -> None:
        for folder in self.run.glob(f"generations/*/state/ranks{where}"):
            folder.rename(folder.with_name(f"ranks{to}"))

    def _told(self, restored: Restored) -> Restored:
        if self.rank == 0:
            sys.stdout.write(f"attempt {ATTEMPT} restored step {restored.step}: {restored.reason}\n")
            sys.stdout.flush()
        return restored


def _then(result: T, act: Callable[[], object]) -> T:
    act()
    return result


def _await(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.005)
