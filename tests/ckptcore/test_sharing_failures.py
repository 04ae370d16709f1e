"""What ranks do when one of them fails to pass on what it was to read: whatever happens, each has the right bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import restore, sharewire, sharing, wire
from ckptcore.array_results import ChunkRead, Results
from ckptcore.array_spec import StoredArray
from ckptcore.channel import Channel
from ckptcore.errors import Damaged, StructureMismatch
from ckptcore.geometry import Box, Grid
from ckptcore.limits import limits
from ckptcore.match import Rules
from ckptcore.reader import Checkpoint
from ckptcore.sharewire import Server, Shelf
from ckptcore.sharing import Passed, Sharing
from ckptcore.store import open_store
from tests.ckptcore.sharing_jobs import DECLARED, not_passed_on, nothing_stays, restored, restored_right, save, state
from tests.ckptcore.support import HostBackend, checkpointer, commits, flip, on_ranks, run_ranks, same
from tests.reading import bytes_read, stored_bytes


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_stays():
        yield


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return not_passed_on(caplog)


def test_wrong_bytes_are_noticed_by_whom_they_reach(
    place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    save(place / "run", 2, 1)
    real = sharing._bytes_of

    def flipped(read: Any) -> np.ndarray:
        data = real(read).copy()
        data[0] ^= 1
        return data

    monkeypatch.setattr(sharing, "_bytes_of", flipped)
    restored_right(place / "run", 2)
    assert len(told()) == 2
    assert all("as it came: the bytes have digest" in line for line in told())


def test_bytes_of_another_chunk_are_noticed(place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]) -> None:
    save(place / "run", 2, 1)
    monkeypatch.setattr(sharing, "_bytes_of", lambda read: np.zeros(read.cell.size * 8, np.uint8))
    restored_right(place / "run", 2)
    assert len(told()) == 2


def test_a_refused_connection(place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]) -> None:
    save(place / "run", 3, 1)
    monkeypatch.setattr(sharing, "reached_at", lambda _: (("127.0.0.1",), True))
    monkeypatch.setattr(Server, "_accept", lambda self: self._listener.close())
    restored_right(place / "run", 3)
    assert len(told()) == 3


def test_another_server_at_that_address(place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]) -> None:
    save(place / "run", 2, 1)
    monkeypatch.setattr(sharewire, "_MAGIC", os.urandom(16))
    real = wire._introduce
    monkeypatch.setattr(wire, "_introduce", lambda connection, magic, _: real(connection, magic, bytes(32)))
    restored_right(place / "run", 2)
    assert all("not that rank" in line for line in told())
    assert len(told()) == 2


@pytest.mark.parametrize("unable", [{0}, {0, 1}, {0, 1, 2}])
def test_ranks_that_cannot_listen(place: Path, monkeypatch: pytest.MonkeyPatch, unable: set[int]) -> None:
    save(place / "run", 3, 1)
    real, made = Server.__init__, threading.local()

    def init(self: Server, *given: Any, **more: Any) -> None:
        if made.rank in unable:
            raise OSError(24, "Too many open files")
        real(self, *given, **more)

    def body(link: Channel) -> dict[str, Any]:
        made.rank = link.rank
        return restored(place / "run", link)

    monkeypatch.setattr(Server, "__init__", init)
    with bytes_read() as read:
        found = on_ranks(3, body)
    assert all(same(components, state(1, rank, 3)) for rank, components in enumerate(found))
    if len(unable) < 3:
        assert read.bytes < 1.25 * stored_bytes(place / "run")


def test_a_rank_that_gets_no_further(place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]) -> None:
    save(place / "run", 2, 1)
    monkeypatch.setattr(wire, "PULSE", 0.01)
    monkeypatch.setattr(sharewire, "STALL_TIMEOUT", 0.05)
    monkeypatch.setattr(Shelf, "put", lambda *_: None)
    restored_right(place / "run", 2)
    assert any("no new chunk for" in line for line in told())
    assert len(told()) == 2


def test_a_system_without_threads_for_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 2, 1)

    class Threadless(sharing.Workers):
        def __init__(self, count: int, name: str) -> None:
            assert count >= 0
            super().__init__(0, name)

    monkeypatch.setattr(sharing, "Workers", Threadless)
    restored_right(place / "run", 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_connection_that_breaks_in_the_middle(
    place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]], rank: int
) -> None:
    save(place / "run", 3, 1)
    real, lock, sent = sharewire._send, threading.Lock(), dict[Any, int]()

    def breaking(connection: Any, number: int, take: Any) -> None:
        with lock:
            sent[connection] = sent.get(connection, 0) + 1
        if sent[connection] > 1 + rank:
            connection.sendall(sharewire._FRAME.pack(0, number, 256 << 10) + bytes(1000))
            raise OSError(32, "Broken pipe")
        real(connection, number, take)

    monkeypatch.setattr(sharewire, "_send", breaking)
    restored_right(place / "run", 3)
    assert told()


# Ranks that end before the others


def found_by(link: Channel, checkpoint: Checkpoint, meet: threading.Barrier, on: Callable[[Sharing], None]) -> Any:
    """A restore as `Resumer` makes it, but for the agreement after it. `on` is called before the rank reads."""
    target = HostBackend(link).target(state(0, link.rank, link.size))
    with Sharing(link, limits(), timeout=30) as shared:
        found = Checkpoint(checkpoint.store, checkpoint.decided, shared)

        def read(_: Sharing) -> Any:
            on(shared)
            return restore.find(found, target, rules=Rules(), ranks={"extra": link.rank})

        components = dict(target.place(shared.during(read)))
        meet.wait(30)
        return components


class Killed(BaseException):
    """The process is dead."""


def die_after(count: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sharing], None]:
    """Rank 0 dies when it has read `count` of its own chunks."""
    real = Passed._filled
    filled: list[int] = []

    def dying(self: Passed, number: int, read: Any) -> None:
        if self._rank == 0:
            filled.append(number)
            if len(filled) > count:
                raise Killed
        real(self, number, read)

    monkeypatch.setattr(Passed, "_filled", dying)
    return lambda _: None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_rank_that_dies_while_it_reads(place: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    save(place / "run", 3, 1)
    (checkpoint,) = commits(open_store(place / "run"))
    on = die_after(count, monkeypatch)
    meet = threading.Barrier(2)  # the one that died does not come
    outcomes = run_ranks(3, lambda link: found_by(link, checkpoint, meet, on))
    assert isinstance(outcomes[0], Killed)
    assert all(same(outcomes[rank], state(1, rank, 3)) for rank in (1, 2))


def test_a_rank_that_fails_before_it_knows_what_it_wants(place: Path) -> None:
    save(place / "run", 3, 1)
    (checkpoint,) = commits(open_store(place / "run"))

    def failing(shared: Sharing) -> None:
        if shared._channel.rank == 1:
            raise StructureMismatch("something else", ["params.w"])

    meet = threading.Barrier(2)
    outcomes = run_ranks(3, lambda link: found_by(link, checkpoint, meet, failing))
    assert isinstance(outcomes[1], StructureMismatch)
    assert all(same(outcomes[rank], state(1, rank, 3)) for rank in (0, 2))


def test_every_rank_raises_what_one_of_them_met(place: Path) -> None:
    """Through the whole of it: rank 1 wants what is not there, and nobody waits for anybody."""
    save(place / "run", 2, 1)

    def body(link: Channel) -> Any:
        like = state(0, link.rank, 2)
        if link.rank == 1:
            like["params"]["w"] = np.zeros((3, 3))
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            return ckpt.restore(like=like)

    assert all(isinstance(outcome, StructureMismatch) for outcome in run_ranks(2, body))


def spoil(place: Path, step: int) -> None:
    """Flip a bit of every large file of a generation."""
    files = [file for file in place.glob(f"run/generations/*-{step:012d}-*/state/**/d/*") if file.stat().st_size > 1 << 20]
    assert files
    for file in files:
        for position in range(1000, file.stat().st_size, 64 << 10):
            flip(file, position)


def test_damage_in_a_chunk_of_one_rank_makes_all_of_them_fall_back(place: Path) -> None:
    save(place / "run", 3, 1, 2)
    spoil(place, 2)
    restored_right(place / "run", 3, step=1)


def test_damage_everywhere_is_an_error_on_every_rank(place: Path) -> None:
    save(place / "run", 2, 1)
    spoil(place, 1)
    outcomes = run_ranks(2, lambda link: restored(place / "run", link))
    assert all(isinstance(outcome, Damaged) for outcome in outcomes), outcomes


def test_a_chunk_that_is_wanted_twice_is_not_forgotten() -> None:
    """By two reads, as nothing makes them today: one of them comes from the store."""
    array = StoredArray("params.w", "int8", (4,), Grid.regular((4,), (4,)))
    reads = []
    for digest in ("blake3:" + "0" * 64, "blake3:" + "1" * 64):
        results = Results(array, [digest])
        results.add([Box((0,), (4,))])
        reads.append(ChunkRead(results, 0, [0]))
    passed = Passed(rank=0, numbers={("params.w", 0): 0}, owners={0: 1}, places=[None, None], shelf=Shelf(), limits=limits())
    assert passed.begin(reads) == reads[1:]
    assert passed.missing() == reads[:1]
