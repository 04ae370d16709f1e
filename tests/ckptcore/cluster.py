"""A run whose ranks have a node each: saved, broken off in the upload, and resumed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer, Restored
from ckptcore.clock import Clock
from ckptcore.errors import CommitUnknown, SaveFailed
from ckptcore.events import Event
from ckptcore.filestore import FileStore
from ckptcore.history import read_run
from ckptcore.incarnations import undecided
from ckptcore.names import GenerationId
from ckptcore.nodes import Held, Local, NodeStore
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FakeClock, checkpointer, file_store, on_ranks, same, state

RANKS = 2


class Dying(Clock):
    """Time passes as it does until the store is out of reach; then waits end at once."""

    def __init__(self, dead: list[str]) -> None:
        self.dead, self.passed = dead, 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed

    def sleep(self, seconds: float) -> None:
        if self.dead:
            self.passed += seconds
        else:
            super().sleep(seconds)


@dataclass
class Cluster:
    """A run, and a node for every `per_node` of its `ranks`. `copies`: how many other nodes keep each rank's data."""

    place: Path
    copies: int = 0
    ranks: int = RANKS
    per_node: int = 1

    @property
    def store(self) -> FileStore:
        return file_store(self.place / "run")

    def node(self, rank: int) -> Path:
        return self.place / f"node-{rank // self.per_node}"

    def held(self, rank: int) -> list[Held]:
        return list(NodeStore.of(Local(self.node(rank)), read_run(self.store).run_id, FakeClock()).held())

    def saver(self, link: Channel, **options: Any) -> Checkpointer:
        local = Local(self.node(link.rank), copies=self.copies)
        return checkpointer(self.place / "run", link, **{"local": local} | options)

    def save(self, *steps: int) -> None:
        """A job that saves and ends."""

        def body(link: Channel) -> None:
            with self.saver(link) as saver:
                saver.restore_or_init(lambda: state(0, link.rank, self.ranks), like=state(0, link.rank, self.ranks))
                for step in steps:
                    saver.save(step, state(step, link.rank, self.ranks)).result()

        on_ranks(self.ranks, body)

    def die_in_upload(self, step: int) -> GenerationId:
        """A job whose ranks reach the store no more once all is whole on the nodes, and copied if it is to be."""
        copied = [threading.Event() for _ in range(self.ranks)]

        def die(dead: list[str]) -> None:
            assert not self.copies or all(each.wait(30) for each in copied)
            dead.append("dead")

        def body(link: Channel) -> None:
            dead: list[str] = []  # nothing gets through any more

            def told(event: Event) -> None:
                if event.kind == "copied":
                    copied[link.rank].set()
                if event.kind == "on-nodes":
                    die(dead)

            saver = self.saver(link, on_event=told)
            saver.restore_or_init(lambda: state(0, link.rank, self.ranks), like=state(0, link.rank, self.ranks))

            def matches(operation: str, key: str) -> bool:
                if dead:
                    return True
                # Rank 0 has to wait for all; another rank dies right behind its staged receipt.
                staged = link.rank != 0 and operation == "put_if_absent" and "/staged/" in key
                if staged:
                    die(dead)
                return False

            saver._store, saver._clock = FaultyStore(saver._store, matches, times=10**9), Dying(dead)
            with pytest.raises((SaveFailed, CommitUnknown)):
                saver.save(step, state(step, link.rank, self.ranks)).result()
            saver.close()

        on_ranks(self.ranks, body)
        (generation,) = undecided(self.store)
        return generation

    def resume(self) -> list[Restored]:
        def body(link: Channel) -> Restored:
            with self.saver(link) as saver:
                restored = saver.restore_or_init(lambda: state(0, link.rank, self.ranks), like=state(0, link.rank, self.ranks))
                assert same(dict(restored.components), state(restored.step, link.rank, self.ranks))
                return restored

        return on_ranks(self.ranks, body)


def data_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("d/*") if path.is_file()]


def rot(folder: Path) -> None:
    """Change every byte of all chunks, and no size."""
    for path in data_files(folder):
        path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
