"""Copies of each rank's part on another node: made, used when a node is lost, gone when they have served (spec: N-12 to N-16)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ckptcore import copies, copywire, names, records
from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CallError, Damaged, ForeignRecord, InvalidRecord, SaveAborted, SaveFailed, Superseded, UnsafeStore
from ckptcore.events import Event
from ckptcore.history import read_run
from ckptcore.incarnations import undecided
from ckptcore.nodes import Held, Local, NodeStore
from ckptcore.wire import Broken, Place
from ckptcore.workers import at_most
from tests.ckptcore.cluster import RANKS, Cluster, rot
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.sharing_jobs import nothing_stays
from tests.ckptcore.support import FakeClock, check_commits, checkpointer, memory_directory, on_ranks, same, state


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with memory_directory() as folder, nothing_stays():
        yield Cluster(folder, copies=1)


def parts(cluster: Cluster, rank: int) -> list[tuple[int, int]]:
    """Step and rank of what is whole on a node."""
    return [(held.generation.step, held.receipt.rank) for held in cluster.held(rank)]


def databases(cluster: Cluster, node: int, rank: int) -> list[Path]:
    """Of one rank, on one node, whole or not."""
    return sorted(cluster.node(node).rglob(f"ranks/{rank:05d}-*"))


def saved(cluster: Cluster, *steps: int, told: Callable[[Event], object] = lambda _: None, **options: Any) -> None:
    """A job that saves and ends."""

    def body(link: Channel) -> None:
        with cluster.saver(link, on_event=told, **options) as saver:
            saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))
            for step in steps:
                saver.save(step, state(step, link.rank, RANKS)).result(60)

    on_ranks(RANKS, body)


class Slow(FaultyStore):
    """A store to which no part is uploaded before `allowed`."""

    def __init__(self, saver: Checkpointer, allowed: threading.Event) -> None:
        self.allowed = allowed
        super().__init__(saver._store, self._waits, times=10**9)

    def _waits(self, operation: str, key: str) -> bool:
        if operation == "kvstore" and "/ranks/" in key:
            assert self.allowed.wait(30)
        return False


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """By rank: it has failed to copy, and has said so."""
    events, explain = [threading.Event() for _ in range(RANKS)], copies.Keeper._explain

    def explained(self: copies.Keeper, own: Held, error: Exception) -> None:
        explain(self, own, error)
        events[self.rank].set()

    monkeypatch.setattr(copies.Keeper, "_explain", explained)
    return events


Act = Callable[[Checkpointer, Channel], object]


def save(saver: Checkpointer, link: Channel) -> None:
    saver.save(10, state(10, link.rank, RANKS)).result(60)


def job(cluster: Cluster, act: Act = save, settled: list[threading.Event] | None = None) -> list[list[Event]]:
    """A job of which each rank uploads once it has got its copy, or has `failed`. What was told on each."""

    def body(link: Channel) -> list[Event]:
        events: list[Event] = []
        allowed = threading.Event() if settled is None else settled[link.rank]

        def told(event: Event) -> None:
            events.append(event)
            if event.kind == "copied":
                allowed.set()

        with cluster.saver(link, on_event=told) as saver:
            saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))
            saver._store = Slow(saver, allowed)
            act(saver, link)
        return events

    return on_ranks(RANKS, body)


# What they are good for


def test_a_lost_node_is_finished_from_the_copy(cluster: Cluster) -> None:
    cluster.save(10)
    cluster.die_in_upload(20)
    assert [parts(cluster, rank) for rank in range(RANKS)] == [[(10, 0), (20, 0), (20, 1)], [(10, 1), (20, 0), (20, 1)]]
    shutil.rmtree(cluster.node(1))
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(20, "rolled-forward")] * RANKS
    assert [commit.step for commit in check_commits(cluster.store)] == [20, 10]


def test_a_start_tells_whose_part_it_has_uploaded_from_where(cluster: Cluster) -> None:
    generation = cluster.die_in_upload(10)
    shutil.rmtree(cluster.node(1))
    told: list[Event] = []

    def body(link: Channel) -> None:
        with cluster.saver(link, on_event=told.append if link.rank == 0 else None) as saver:
            saver.restore(like=state(0, link.rank, RANKS))

    on_ranks(RANKS, body)
    uploaded = sorted((event.rank, event.generation, event.message) for event in told if event.kind == "uploaded")
    where = "which lay whole on the node of process 0"
    assert uploaded == [(rank, generation, f"the part of rank {rank}, {where}") for rank in range(RANKS)]


def test_a_copy_is_the_same_bytes_under_the_same_keys(cluster: Cluster) -> None:
    generation = cluster.die_in_upload(10)
    run_id = read_run(cluster.store).run_id
    one, other = (cluster.node(rank) / run_id / names.generation_prefix(generation) for rank in range(RANKS))
    files = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    assert len(files) == 2 * 3  # a receipt, a data file and a manifest
    assert files == {path.relative_to(other) for path in other.rglob("*") if path.is_file()}
    assert all((one / path).read_bytes() == (other / path).read_bytes() for path in files)


def test_several_ranks_of_a_node(cluster: Cluster) -> None:
    wide = Cluster(cluster.place, copies=1, ranks=4, per_node=2)
    wide.save(10)
    wide.die_in_upload(20)
    assert parts(wide, 0) == [(10, 0), (10, 1), *((20, rank) for rank in range(4))]
    shutil.rmtree(wide.node(2))
    assert [(restored.step, restored.reason) for restored in wide.resume()] == [(20, "rolled-forward")] * 4
    assert [commit.step for commit in check_commits(wide.store)] == [20, 10]


def test_a_smaller_job_on_the_node_that_is_left(cluster: Cluster) -> None:
    """It finds all parts there, the copy among them."""
    generation = cluster.die_in_upload(10)
    shutil.rmtree(cluster.node(1))
    with checkpointer(cluster.place / "run", local=Local(cluster.node(0))) as saver:
        restored = saver.restore(like=state(0), remap={0: 1}, accept_guarantee="coverage")
    assert restored.generation == generation
    assert same(dict(restored.components), state(10) | {"rng": state(10, 1, RANKS)["rng"]})


def test_a_damaged_copy_is_not_uploaded(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.save(10)
    cluster.die_in_upload(20)
    shutil.rmtree(cluster.node(1))
    (copy,) = databases(cluster, 0, 1)
    rot(copy)
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(10, "newest")] * RANKS
    assert "what was whole on the node is not any more" in caplog.text
    assert [commit.step for commit in check_commits(cluster.store)] == [10]


@pytest.mark.parametrize("damaged", [0, 1])
def test_where_one_of_the_two_is_damaged_the_other_is_used(
    cluster: Cluster, damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 1's part, on its own node or on the other one."""
    cluster.save(10)
    generation = cluster.die_in_upload(20)
    (database,) = (path for path in databases(cluster, damaged, 1) if str(generation) in str(path))
    rot(database)
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(20, "rolled-forward")] * RANKS
    assert ("what was whole on the node is not any more" in caplog.text) == (damaged == 1)
    assert [commit.step for commit in check_commits(cluster.store)] == [20, 10]


# Nothing of it is a save's business


def test_what_is_copied_is_told(cluster: Cluster) -> None:
    events = job(cluster)
    for rank, told in enumerate(events):
        (copied,) = (event for event in told if event.kind == "copied")
        sizes = {event.kind: event.detail["bytes"] for event in events[1 - rank] if event.kind == "uploaded"}
        assert (copied.rank, copied.detail["owner"], copied.detail["bytes"]) == (rank, 1 - rank, sizes["uploaded"])
        assert copied.detail["seconds"] >= 0


@pytest.mark.parametrize("after", [0, 1])
def test_an_owner_that_dies_while_it_is_copied(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failed: list[threading.Event],
    after: int,
) -> None:
    """The connection ends in the middle: half of it is deleted, the save goes on."""
    real, files = copywire._send, dict[Any, int]()

    def send(connection: Any, path: str, size: int) -> None:
        files[connection] = files.get(connection, 0) + 1
        if files[connection] > after:
            raise OSError(32, "Broken pipe")
        real(connection, path, size)

    monkeypatch.setattr(copywire, "_send", send)
    job(cluster, settled=failed)
    assert "keeps no copy of rank" in caplog.text
    assert [commit.step for commit in check_commits(cluster.store)] == [10]
    assert [databases(cluster, 1 - rank, rank) for rank in range(RANKS)] == [[], []]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), UnsafeStore("a link"), MemoryError()])
def test_a_holder_that_fails(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failed: list[threading.Event],
    error: Exception,
) -> None:
    def take(*_: object) -> None:
        raise error

    monkeypatch.setattr(NodeStore, "take", take)
    job(cluster, settled=failed)
    assert caplog.text.count("keeps no copy of rank") == RANKS
    assert [commit.step for commit in check_commits(cluster.store)] == [10]
    assert [databases(cluster, 1 - rank, rank) for rank in range(RANKS)] == [[], []]


def test_a_copy_takes_no_room_that_others_may_need(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failed: list[threading.Event]
) -> None:
    monkeypatch.setattr(NodeStore, "room", lambda _: 1000)
    job(cluster, settled=failed)
    assert caplog.text.count("1000 are free there") == RANKS
    assert [databases(cluster, 1 - rank, rank) for rank in range(RANKS)] == [[], []]


def test_a_rank_without_a_server_has_no_copy_and_keeps_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, once = copies.Server, threading.Lock()

    def server(*given: Any, **more: Any) -> Any:
        if once.acquire(blocking=False):
            raise OSError(24, "Too many open files")
        return real(*given, **more)

    monkeypatch.setattr(copies, "Server", server)
    saved(cluster, 10, 20)
    assert "no other node keeps copies for rank" in caplog.text
    assert [commit.step for commit in check_commits(cluster.store)] == [20, 10]


def test_a_system_without_threads_for_it(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.save(10)
    (own,) = cluster.held(0)
    with at_most(0), closing(keeper(cluster)) as holder:
        holder.begin(own)
        holder.end(own.generation, decided=True)
    assert "the system has no thread for it" in caplog.text


def test_ranks_of_one_node_store_are_told_that_there_are_no_copies(caplog: pytest.LogCaptureFixture) -> None:
    with memory_directory() as place, nothing_stays():

        def body(link: Channel) -> None:
            with checkpointer(place / "run", link, local=Local(place / "node", copies=1)) as saver:
                saver.save(10, state(10, link.rank, RANKS)).result(60)
                assert saver._copies is None

        on_ranks(RANKS, body)
        with checkpointer(place / "alone", local=Local(place / "node", copies=1)) as saver:
            saver.save(10, state(10)).result(60)
    assert caplog.text.count("copies=1 needs ranks with node stores of their own") == 2


def test_a_node_store_that_cannot_be_written_takes_no_part(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    def body(link: Channel) -> None:
        with cluster.saver(link) as saver:
            if link.rank == 1:
                cluster.node(1).write_text("not a directory")
            with pytest.raises((SaveAborted, SaveFailed)):
                saver.save(10, state(10, link.rank, RANKS)).result(60)

    on_ranks(RANKS, body)
    assert "rank 1 takes no part in copies" in caplog.text
    assert undecided(cluster.store) == []


def test_a_marker_of_something_else_takes_no_part(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.save(10)
    (cluster.node(1) / read_run(cluster.store).run_id / "node").write_text("x" * 17)

    def body(link: Channel) -> bool:
        with cluster.saver(link) as saver:
            saver.restore(like=state(0, link.rank, RANKS))
            return saver._copies is None

    assert on_ranks(RANKS, body) == [True] * RANKS
    assert "rank 1 takes no part in copies: node in file://" in caplog.text


def test_ranks_have_to_say_alike_whether_there_are_copies(cluster: Cluster) -> None:
    def body(link: Channel) -> None:
        saver = cluster.saver(link, local=Local(cluster.node(link.rank), copies=link.rank))
        with pytest.raises(CallError, match="copies=1"):
            saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))
        with pytest.raises(CallError, match="copies=1"):
            saver.save(10, state(10, link.rank, RANKS))

    on_ranks(RANKS, body)


@pytest.mark.parametrize("wrong", [2, -1, True, 1.0, "1"])
def test_wrong_arguments(wrong: Any) -> None:
    with pytest.raises(CallError, match="expected 0 or 1"):
        Local("/x", copies=wrong)


# What stays


def test_a_commit_needs_no_copies(cluster: Cluster) -> None:
    """The run's store has it all: a copy would only take room."""
    events = job(cluster)
    assert all(any(event.kind == "copied" for event in told) for told in events)
    assert [parts(cluster, rank) for rank in range(RANKS)] == [[(10, rank)] for rank in range(RANKS)]
    assert [databases(cluster, 1 - rank, rank) for rank in range(RANKS)] == [[], []]


def test_an_aborted_save_leaves_no_copies(cluster: Cluster, failed: list[threading.Event]) -> None:
    def act(saver: Checkpointer, link: Channel) -> None:
        slow = saver._store
        refusing = FaultyStore(
            slow, lambda operation, key: operation == "sync" and "/ranks/" in key, lambda: UnsafeStore("no"), times=10**9
        )
        saver._store = refusing if link.rank == 1 else slow
        with pytest.raises((SaveAborted, SaveFailed)):
            saver.save(10, state(10, link.rank, RANKS)).result(60)
        saver._store = slow
        saver.save(20, state(20, link.rank, RANKS)).result(60)

    job(cluster, act, failed)
    for rank in range(RANKS):
        assert parts(cluster, rank) == [(20, rank)]
        left = {path.name for path in (cluster.node(rank) / read_run(cluster.store).run_id / "generations").iterdir()}
        assert left == {"000001-000000000020-1"}


def test_of_an_aborted_save_a_process_deletes_its_own_part_and_its_copies(cluster: Cluster) -> None:
    """Others of its node may be writing theirs still."""
    generation = cluster.die_in_upload(10)
    run_id = read_run(cluster.store).run_id
    Coordinator(cluster.store, run_id, 1).conclude(generation)
    node = NodeStore.of(Local(cluster.node(0), copies=1), run_id, FakeClock())
    node.tidy(cluster.store, 1, [0])
    assert parts(cluster, 0) == [(10, 1)]
    node.tidy(cluster.store, 1, [0, 1])
    assert parts(cluster, 0) == []


def test_a_superseded_save_leaves_nothing_in_the_end(cluster: Cluster, failed: list[threading.Event]) -> None:
    cluster.save(10)

    claims = cluster.place / "run" / "incarnations"

    def overtaken(operation: str, key: str) -> bool:
        """Another job claims as soon as rank 0 uploads."""
        if operation == "kvstore" and "/ranks/00000" in key:
            shutil.copytree(claims / "000002", claims / "000003")
        return False

    def act(saver: Checkpointer, link: Channel) -> None:
        saver._store = FaultyStore(saver._store, overtaken)
        with pytest.raises((Superseded, SaveFailed, SaveAborted)):
            saver.save(20, state(20, link.rank, RANKS)).result(60)

    job(cluster, act, failed)
    shutil.rmtree(claims / "000003")
    saved(cluster, 30)
    for rank in range(RANKS):
        assert parts(cluster, rank) == [(30, rank)]
        assert not databases(cluster, 1 - rank, rank)


@pytest.mark.slow
def test_node_stores_stay_flat(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever part of the copies was ready in time; what was not is nothing to warn of."""
    saved(cluster, *range(1, 21))
    run_id = read_run(cluster.store).run_id
    for rank in range(RANKS):
        folder = cluster.node(rank) / run_id
        assert {path.name for path in folder.iterdir()} == {"node", "generations"}
        assert [path.name for path in (folder / "generations").iterdir()] == ["000001-000000000020-1"]
        assert parts(cluster, rank) == [(20, rank)]
        assert not databases(cluster, 1 - rank, rank)
    assert not caplog.records


# What an owner sends is not believed


class Sent:
    """What `asked` gives."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pieces: Callable[[int], Iterator[memoryview]] = lambda _: iter(())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rank": 2, "participants": 3}, "rank is 2, expected 1"),
        ({"run_id": "0" * 8 + "-0000-4000-8000-" + "0" * 12}, "run_id is"),
        ({"claim": "0" * 16}, "claim is"),
        ({"participants": 3}, "participants is 3, expected 2"),
        ({"generation": "000001-000000000011-1", "step": 11}, "generation is"),
    ],
)
def test_a_receipt_of_something_else_is_refused(cluster: Cluster, change: dict[str, Any], reason: str) -> None:
    cluster.save(10)
    (own,), (theirs,) = cluster.held(0), cluster.held(1)
    with closing(keeper(cluster)) as holder:
        assert holder._promised(own, Sent(theirs.data)).data == theirs.data  # pyright: ignore[reportArgumentType]
        with pytest.raises(ForeignRecord, match=reason):
            holder._promised(own, Sent(records.encode(structs.replace(theirs.receipt, **change))))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [b"", b"{}", b"\xff" * 100, b"[" * 10_000])
def test_what_is_no_receipt_is_refused(cluster: Cluster, wrong: bytes) -> None:
    cluster.save(10)
    (own,) = cluster.held(0)
    with closing(keeper(cluster)) as holder, pytest.raises(InvalidRecord):
        holder._promised(own, Sent(wrong))  # pyright: ignore[reportArgumentType]


def test_files_of_another_digest_are_refused(cluster: Cluster) -> None:
    cluster.save(10)
    (held,) = cluster.held(1)
    node = NodeStore.of(Local(cluster.place / "other"), held.receipt.run_id, FakeClock())
    with pytest.raises(Damaged, match=r"manifest\.ocdbt, as it came, differs from its digest"):
        node.take(held, lambda size: [memoryview(bytes(size))])
    assert list(node.held()) == []
    assert not list((cluster.place / "other").rglob("manifest.ocdbt"))


def test_what_is_half_copied_is_deleted_though_nothing_is_decided(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.save(10)
    (own,), (theirs,) = cluster.held(0), cluster.held(1)
    seen: list[Path] = []

    def pieces(size: int) -> Iterator[memoryview]:
        seen.extend(databases(cluster, 0, 1))
        if seen:
            raise Broken("it ended the connection")
        yield memoryview(bytes(size))

    @contextmanager
    def asked(*_: object) -> Iterator[Any]:
        coming = Sent(theirs.data)
        coming.pieces = pieces
        yield coming

    monkeypatch.setattr(copies, "asked", asked)
    with closing(keeper(cluster)) as holder:
        holder._copy(own)
    assert seen
    assert not [path for path in databases(cluster, 0, 1) if any(path.iterdir())]
    assert [held.receipt.rank for held in cluster.held(0)] == [0]


def keeper(cluster: Cluster) -> copies.Keeper:
    """What rank 0 has to keep rank 1's copies."""
    node = NodeStore.of(Local(cluster.node(0), copies=1), read_run(cluster.store).run_id, FakeClock())
    place = Place(hosts=(), port=0, token=b"")
    return copies.Keeper(store=cluster.store, node=node, rank=0, owner=1, place=place, beside=1, on_event=None)
