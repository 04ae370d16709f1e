"""Ranks that read each chunk once between them, and what they do when one of them fails to pass it on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import restore, sharewire, sharing
from ckptcore.array_results import ChunkRead, Results
from ckptcore.array_spec import StoredArray
from ckptcore.channel import Channel
from ckptcore.components import PerRank
from ckptcore.errors import CallError, Damaged, DeadlineExceeded, StructureMismatch
from ckptcore.geometry import Box, Grid
from ckptcore.limits import limits
from ckptcore.match import Rules
from ckptcore.reader import Checkpoint
from ckptcore.shareplan import Plan
from ckptcore.sharewire import Server, Shelf
from ckptcore.sharing import Passed, Sharing
from ckptcore.store import Storage, open_store
from tests.ckptcore.support import HostBackend, Sharded, checkpointer, commits, flip, on_ranks, run_ranks, same
from tests.reading import bytes_read, stored_bytes

WIDTH = 512
DECLARED = {"schedule": "step", "rng": "step", "data": "step"}


def matrix(step: int) -> np.ndarray:
    return np.arange(WIDTH * WIDTH, dtype=np.float64).reshape(WIDTH, WIDTH) + step


def state(step: int, rank: int, size: int) -> dict[str, Any]:
    """Most of it on every rank, some of it cut, some of it each rank's own; 4 MiB of what all have."""
    return {
        "params": {
            "w": matrix(step),
            "scale": np.array(step, np.float32),
            "none": np.zeros((0, 3)),
            "cut": cut(step, rank, size),
        },
        "optimizer": {"mu": matrix(step) + 0.5, "count": step},
        "extra": PerRank({"seed": np.full(5, rank + step, np.int64)}),
    }


def cut(step: int, rank: int, size: int) -> Sharded:
    return Sharded.of(matrix(step)[:64], rank, size)


def save(url: Path, size: int, *steps: int) -> None:
    def body(link: Channel) -> None:
        with checkpointer(url, link, derived=DECLARED, chunk_bytes=256 << 10) as ckpt:
            for step in steps:
                ckpt.save(step, state(step, link.rank, link.size)).result(60)

    on_ranks(size, body)


def restored(url: Path, link: Channel, **options: Any) -> dict[str, Any]:
    options = {"derived": DECLARED, "fetch_once": True} | options
    with checkpointer(url, link, **options) as ckpt:
        return dict(ckpt.restore(like=state(0, link.rank, link.size)).components)


def restored_right(url: Path, size: int, step: int = 1, **options: Any) -> None:
    found = on_ranks(size, lambda link: restored(url, link, **options))
    for rank, components in enumerate(found):
        assert same(components, state(step, rank, size)), rank


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No thread and no descriptor."""
    threads, descriptors = threading.active_count(), _descriptors()
    yield
    assert threading.active_count() == threads
    assert _descriptors() <= descriptors


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of chunks that did not come."""
    caplog.set_level(logging.WARNING, "ckptcore")
    return lambda: [record.getMessage() for record in caplog.records if "other ranks" in record.getMessage()]


# Bytes


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_job_reads_what_is_stored_once(place: Path, size: int) -> None:
    save(place / "run", size, 1)
    stored = stored_bytes(place / "run")
    with bytes_read() as read:
        restored_right(place / "run", size)
    assert 0.9 * stored < read.bytes < 1.25 * stored  # each rank reads the records for itself
    with bytes_read() as read:
        restored_right(place / "run", size, fetch_once=False)
    assert read.bytes > 0.9 * size * 4 * (1 << 20)


def test_as_host_arrays_too(place: Path) -> None:
    save(place / "run", 3, 1)

    def body(link: Channel) -> dict[str, Any]:
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            return dict(ckpt.restore(components=["params", "optimizer"], accept_guarantee="coverage").components)

    with bytes_read() as read:
        found = on_ranks(3, body)
    assert all(same(components["optimizer"], state(1, 0, 3)["optimizer"]) for components in found)
    assert read.bytes < 1.25 * stored_bytes(place / "run")


def test_other_ranks_than_have_saved(place: Path) -> None:
    """Each wants a part of what is cut, some parts lie in one chunk, and the rest is wanted whole."""
    save(place / "run", 2, 1)

    def body(link: Channel) -> None:
        like = {name: component for name, component in state(0, link.rank, link.size).items() if name != "extra"}
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            found = ckpt.restore(like=like, components=["params", "optimizer"], accept_guarantee="coverage").components
        assert same(dict(found), {name: component for name, component in state(1, link.rank, 5).items() if name in found})

    on_ranks(5, body)


def test_through_memory_of_an_object_store() -> None:
    """Its reads take another way, and TensorStore's memory is shared through the context."""
    import tensorstore as ts

    storage = Storage(context=ts.Context())

    def body(link: Channel) -> None:
        with checkpointer("memory://run", link, derived=DECLARED, storage=storage, fetch_once=True) as ckpt:
            first = ckpt.restore_or_init(lambda: state(1, link.rank, 2), like=state(0, link.rank, 2))
            ckpt.save(1, first.components).result(60)
        assert same(restored("memory://run", link, storage=storage), state(1, link.rank, 2))  # pyright: ignore[reportArgumentType]

    on_ranks(2, body)


def test_components_that_lie_in_an_earlier_generation(
    place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    """Two databases, which the ranks ask for in another order: nobody waits for what the other reads after it has waited."""
    monkeypatch.setattr(sharewire, "STALL_TIMEOUT", 5.0)

    def first(link: Channel) -> None:
        with checkpointer(place / "run", link, derived=DECLARED, chunk_bytes=256 << 10) as ckpt:
            ckpt.save(1, state(1, link.rank, 2)).result(60)
            later = {name: component for name, component in state(2, link.rank, 2).items() if name != "params"}
            ckpt.save(2, later, unchanged=["params"]).result(60)

    def second(link: Channel) -> dict[str, Any]:
        like = state(0, link.rank, 2)
        order = list(like) if link.rank == 0 else list(reversed(like))
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            return dict(ckpt.restore(like={name: like[name] for name in order}).components)

    on_ranks(2, first)
    for rank, components in enumerate(on_ranks(2, second)):
        assert same(components["params"], state(1, rank, 2)["params"])
        assert same(components["optimizer"], state(2, rank, 2)["optimizer"])
    assert told() == []


def test_what_is_each_ranks_own_is_not_shared(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 2, 1)
    plans: list[Plan] = []
    real = sharing.plan
    monkeypatch.setattr(sharing, "plan", lambda *given: (plans.append(real(*given)), plans[-1])[1])
    restored_right(place / "run", 2)
    assert plans[0] == plans[1]
    shared = {name for _, name, _ in plans[0].chunks}
    assert shared == {"params.w", "params.scale", "optimizer.mu"}
    assert {len(plans[0].of(rank)) for rank in range(2)} <= {len(plans[0].chunks) // 2, len(plans[0].chunks) // 2 + 1}


def test_nor_if_two_ranks_take_it_from_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 2, 1)
    plans: list[Plan] = []
    real = sharing.plan
    monkeypatch.setattr(sharing, "plan", lambda *given: (plans.append(real(*given)), plans[-1])[1])

    def body(link: Channel) -> dict[str, Any]:
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            like = state(0, link.rank, 2)
            return dict(ckpt.restore(like=like, remap={0: 0, 1: 0}, accept_guarantee="coverage").components)

    assert all(same(components["extra"], state(1, 0, 2)["extra"]) for components in on_ranks(2, body))
    assert {name for _, name, _ in plans[0].chunks} == {"params.w", "params.scale", "optimizer.mu"}


def test_a_run_that_starts_from_another(place: Path) -> None:
    save(place / "run", 3, 1)

    def body(link: Channel) -> dict[str, Any]:
        options = {"derived": DECLARED, "start_from": str(place / "run"), "fetch_once": True}
        with checkpointer(place / "new", link, **options) as ckpt:
            return dict(ckpt.restore_or_init(lambda: state(0, link.rank, 3), like=state(0, link.rank, 3)).components)

    with bytes_read() as read:
        found = on_ranks(3, body)
    assert all(same(components["params"], state(1, rank, 3)["params"]) for rank, components in enumerate(found))
    assert read.bytes < 1.25 * stored_bytes(place / "run")


def test_one_process_makes_no_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 1, 1)
    monkeypatch.setattr(sharing, "Server", lambda *_, **__: pytest.fail("for whom?"))
    restored_right(place / "run", 1)


def test_ranks_that_disagree_whether_to_are_told(place: Path) -> None:
    save(place / "run", 2, 1)
    outcomes = run_ranks(2, lambda link: restored(place / "run", link, fetch_once=link.rank == 0))
    assert all(isinstance(outcome, CallError) and "fetch_once" in str(outcome) for outcome in outcomes)


# What goes wrong


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
    real = sharewire._introduce
    monkeypatch.setattr(sharewire, "_introduce", lambda connection, _: real(connection, bytes(32)))
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
    monkeypatch.setattr(sharewire, "PULSE", 0.01)
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


# The exchange


class Counting:
    """A channel that counts what is sent through it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.rank, self.size, self.coordinator = channel.rank, channel.size, channel.coordinator
        self.sent: list[int] = []

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        self.sent.append(len(data))
        return self._channel.gather(data, timeout=timeout, what=what)

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:  # noqa: ARG002
        raise AssertionError


def sent_by(place: Path, size: int, wishes: Callable[[int], Any]) -> list[list[int]]:
    (checkpoint,) = commits(open_store(place / "run"))
    array = checkpoint.array(checkpoint.leaves("params")["params.w"])[0]

    def body(link: Channel) -> list[int]:
        counting = Counting(link)
        with Sharing(counting, limits(), timeout=30) as shared:
            shared.agree([("state/", array, boxes) for boxes in wishes(link.rank)])
            shared.end()
            counting.gather(b"", timeout=30, what="the end")
        return counting.sent[:-1]

    return on_ranks(size, body)


def test_equal_ranks_tell_a_digest_and_different_ones_each_list_once(place: Path) -> None:
    save(place / "run", 1, 1)
    whole, half = Box.whole((WIDTH, WIDTH)), Box((0, 0), (WIDTH // 2, WIDTH))
    assert [len(sent) for sent in sent_by(place, 4, lambda _: [[whole]])] == [1] * 4
    sent = sent_by(place, 4, lambda rank: [[whole]] if rank < 2 else [[half]])
    assert [messages[1] > 0 for messages in sent] == [True, False, True, False]


def test_ranks_wait_for_each_other_to_say_what_they_want_but_not_for_ever(place: Path) -> None:
    save(place / "run", 2, 1)

    counting: list[Counting] = []

    def body(link: Channel) -> None:
        if link.rank == 0:
            counting.append(Counting(link))
            with Sharing(counting[0], limits(), timeout=0.1) as shared:
                shared.during(lambda shared: shared.agree([]))

    outcomes = run_ranks(2, body)
    assert isinstance(outcomes[0], DeadlineExceeded)
    assert len(counting[0].sent) == 1  # who comes later finds one exchange, as every rank takes part in one
