"""Data on the nodes: whole there first, durable later, and what a start makes of it (spec: 16-nodes)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ckptcore import finishing, ledger, names, records, restore
from ckptcore.channel import Channel
from ckptcore.errors import CallError, CommitUnknown, ProtocolViolation, SaveAborted, SaveFailed, StoreUnavailable, UnsafeStore
from ckptcore.events import Event
from ckptcore.history import read_run
from ckptcore.incarnations import undecided
from ckptcore.inspect.explaining import outlook
from ckptcore.inspect.inventory import inventory
from ckptcore.inspect.status import status
from ckptcore.match import Rules
from ckptcore.names import GenerationId
from ckptcore.nodes import Local, NodeStore, nearby
from ckptcore.reader import Checkpoint
from ckptcore.store import Storage
from tests.ckptcore.cluster import RANKS, Cluster, data_files, rot
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import (
    FakeClock,
    Job,
    check_commits,
    checkpointer,
    file_store,
    memory_directory,
    on_ranks,
    same,
    state,
)


@pytest.fixture
def place() -> Iterator[Path]:
    with memory_directory() as folder:
        yield folder


@pytest.fixture
def cluster(place: Path) -> Cluster:
    return Cluster(place)


def test_a_save_is_whole_on_the_node_before_it_is_committed(place: Path) -> None:
    told: list[Event] = []
    with checkpointer(place / "run", local=place / "node", on_event=told.append) as saver:
        manifest = saver.save(10, state(10)).result()
    kinds = [event.kind for event in told]
    assert kinds.index("on-nodes") < kinds.index("uploaded") < kinds.index("receipt") < kinds.index("committed")
    generation = GenerationId.parse(manifest.generation)
    key = names.on_nodes_key(generation)
    record = records.decode((place / "run" / key).read_bytes(), records.StagedRecord, key=key)
    assert (record.generation, record.participants, record.decided_by) == (str(generation), 1, 1)
    run = place / "run" / names.generation_prefix(generation)
    assert (run / "staged" / "00000.json").read_bytes() == (run / "receipts" / "00000.json").read_bytes()
    assert check_commits(file_store(place / "run"))


def test_a_job_that_died_in_the_upload_goes_on_from_its_nodes(cluster: Cluster) -> None:
    cluster.save(10)
    generation = cluster.die_in_upload(20)
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(20, "rolled-forward")] * RANKS
    assert [commit.step for commit in check_commits(cluster.store)] == [20, 10]
    assert generation.step == 20


def test_the_first_save_of_a_run_too(cluster: Cluster) -> None:
    cluster.die_in_upload(10)
    assert [restored.step for restored in cluster.resume()] == [10] * RANKS


def test_a_lost_node_takes_it_along(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.save(10)
    generation = cluster.die_in_upload(20)
    shutil.rmtree(cluster.node(1))
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(10, "newest")] * RANKS
    assert undecided(cluster.store) == []
    assert [commit.step for commit in check_commits(cluster.store)] == [10]
    assert f"{generation} was whole on nodes, and cannot be finished: no node of this start has the part of rank 1" in caplog.text


def test_ranks_may_come_back_on_each_others_nodes(cluster: Cluster) -> None:
    cluster.save(10)
    cluster.die_in_upload(20)
    cluster.node(0).rename(cluster.place / "other")
    cluster.node(1).rename(cluster.node(0))
    (cluster.place / "other").rename(cluster.node(1))
    assert [restored.step for restored in cluster.resume()] == [20] * RANKS


@pytest.mark.parametrize("how", ["flipped", "cut", "no receipt"])
def test_what_rotted_on_a_node_is_not_uploaded(cluster: Cluster, how: str) -> None:
    """Its sizes may be right: the digests of the cells are what counts."""
    cluster.save(10)
    generation = cluster.die_in_upload(20)
    run = cluster.node(1) / read_run(cluster.store).run_id
    if how == "no receipt":
        (run / names.receipt_key(generation, 1)).unlink()
    elif how == "cut":
        data = data_files(run / names.state_prefix(generation))[0]
        data.write_bytes(data.read_bytes()[:-1])
    else:
        rot(run / names.state_prefix(generation))
    assert [restored.step for restored in cluster.resume()] == [10] * RANKS
    assert [commit.step for commit in check_commits(cluster.store)] == [10]


def test_what_cannot_be_read_of_one_generation_hides_no_other(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.save(10)
    cluster.die_in_upload(20)
    run = cluster.node(0) / read_run(cluster.store).run_id
    (manifest,) = (run / "generations" / "000001-000000000010-1").rglob("manifest.ocdbt")
    manifest.rename(run / "moved")
    manifest.symlink_to(run / "moved")
    assert [restored.step for restored in cluster.resume()] == [20] * RANKS
    assert "what this node holds of generations/000001-000000000010-1/receipts/00000.json cannot be read" in caplog.text


def test_a_store_that_does_not_answer_stops_the_start_before_it_claims(cluster: Cluster) -> None:
    """To claim would abort what the nodes still hold (N-7)."""
    cluster.save(10)
    cluster.die_in_upload(20)

    def body(link: Channel) -> None:
        saver = cluster.saver(link)
        refusing = FaultyStore(saver._store, lambda operation, key: operation == "sync" and "/ranks/" in key, times=10**9)
        saver._resumer = replace(saver._resumer, store=refusing, clock=FakeClock())
        with pytest.raises(StoreUnavailable):
            saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))

    on_ranks(RANKS, body)
    assert len(undecided(cluster.store)) == 1
    assert [restored.step for restored in cluster.resume()] == [20] * RANKS


def test_a_restart_reads_from_the_node(cluster: Cluster) -> None:
    """Shown by a store that has lost the data; what the node has differs from it in nothing."""
    cluster.save(10)
    (held,) = cluster.held(1)
    shutil.rmtree(cluster.place / "run" / held.prefix)
    near = nearby(cluster.store, Local(cluster.node(1)), held.receipt.run_id, held.generation, FakeClock())
    assert near is not None
    decided = ledger.commit(near, held.receipt.run_id, held.generation)
    found = restore.host(Checkpoint(near, decided), ["rng"], rules=Rules(), ranks={"rng": 1})
    assert same(found["rng"], state(10, 1, RANKS)["rng"].value)
    assert nearby(cluster.store, Local(cluster.place / "empty"), held.receipt.run_id, held.generation, FakeClock()) is None


def test_a_damaged_copy_on_the_node_is_passed_over(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.save(10)
    (held,) = cluster.held(0)
    rot(cluster.node(0) / held.receipt.run_id / held.prefix)
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(10, "newest")] * RANKS
    assert "what the node has of 000001-000000000010-1 is passed over" in caplog.text


def test_the_node_keeps_the_newest_commit_only(cluster: Cluster) -> None:
    cluster.save(10, 20)
    assert [[held.generation.step for held in cluster.held(rank)] for rank in range(RANKS)] == [[20]] * RANKS


def test_a_rank_whose_node_fails_is_named(cluster: Cluster) -> None:
    def body(link: Channel) -> list[BaseException]:
        with cluster.saver(link) as saver:
            if link.rank == 1:
                cluster.node(1).write_text("not a directory")
            with pytest.raises((SaveAborted, SaveFailed)) as caught:
                saver.save(10, state(10, link.rank, RANKS)).result()
            return [caught.value]

    (first,), (second,) = on_ranks(RANKS, body)
    assert isinstance(first, SaveAborted)
    assert "rank 1" in str(first)
    assert isinstance(second, SaveFailed)
    assert undecided(cluster.store) == []


def test_a_rank_that_is_never_whole_is_named_at_the_deadline(cluster: Cluster) -> None:
    def body(link: Channel) -> list[BaseException]:
        saver = cluster.saver(link, coordinator_timeout=0.2)
        saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))
        if link.rank == 1:
            stalled = FaultyStore(saver._store, lambda _, key: "/staged/" in key or "/receipts/" in key, times=10**9)
            saver._store, saver._clock = stalled, FakeClock()
        with pytest.raises((SaveAborted, SaveFailed, CommitUnknown)) as caught:
            saver.save(10, state(10, link.rank, RANKS)).result()
        return [caught.value]

    (first,), _ = on_ranks(RANKS, body)
    assert isinstance(first, SaveAborted)
    assert "the data of rank 1 of 2 was not whole on its node within 0.2 s" in str(first)
    assert list(first.missing) == [1]


def test_the_upload_is_held_back(cluster: Cluster) -> None:
    cluster.save(10)
    (held,) = cluster.held(0)
    clock = FakeClock()
    node = NodeStore.of(Local(cluster.node(0), upload_limit=100.0), held.receipt.run_id, clock)
    before = clock.monotonic()
    copied = node.upload(file_store(cluster.place / "other"), held)
    assert copied == sum(file.size for file in held.receipt.files)
    assert clock.monotonic() - before >= copied / 100.0
    assert node.upload(file_store(cluster.place / "other"), held) == 0, "what is there is not copied again"


def test_wrong_arguments() -> None:
    with pytest.raises(CallError, match="expected a directory of this machine"):
        Local("s3://bucket/x")
    with pytest.raises(CallError, match="expected a positive number of bytes a second"):
        Local("/x", upload_limit=0)


def test_what_is_whole_on_the_nodes_is_told(cluster: Cluster) -> None:
    """By the inventory, by the status with an age of its own, and by whoever asks what the next start does."""
    cluster.save(10)
    generation = cluster.die_in_upload(20)
    (entry,) = (entry for entry in inventory(cluster.store) if entry.state == "undecided")
    assert (entry.generation, entry.on_nodes, entry.at is not None) == (generation, True, True)
    told = status(cluster.store)
    assert told.committed is not None
    assert told.on_nodes is not None
    assert (told.committed.generation.step, told.on_nodes.generation.step) == (10, 20)
    answer, *others = outlook(cluster.store, Storage()).findings
    assert {"abort", "on-nodes"} <= {finding.kind for finding in others}
    assert (answer.kind, answer.generation) == ("resume", told.committed.generation)
    assert answer.text.endswith(f", unless it is on the nodes that hold {generation}: that one resumes from there")
    cluster.resume()
    answer, *others = outlook(cluster.store, Storage()).findings
    assert (answer.generation, "unless" in answer.text) == (generation, False)
    told = status(cluster.store)
    assert told.on_nodes is None
    assert told.committed is not None
    assert told.committed.generation == generation


def test_a_first_save_that_is_whole_on_the_nodes_is_told(cluster: Cluster) -> None:
    generation = cluster.die_in_upload(10)
    answer, *_ = outlook(cluster.store, Storage()).findings
    assert answer.kind == "begin"
    assert f"is a fresh one, unless it is on the nodes that hold {generation}" in answer.text


def test_what_no_path_leads_to_is_not_promised(cluster: Cluster) -> None:
    """What a superseded job writes yet is of no use, wherever it lies."""
    cluster.save(10)
    stalled, newer = Job(cluster.store, RANKS), Job(cluster.store, RANKS)
    stalled.open()
    generation = stalled.next_generation(20)
    newer.open()
    stalled.write(generation, 0)
    at = stalled.clock.utc()
    record = records.StagedRecord(
        run_id=read_run(cluster.store).run_id,
        generation=str(generation),
        participants=RANKS,
        decided=at,
        decided_by=generation.incarnation,
    )
    cluster.store.put_if_absent(names.on_nodes_key(generation), records.encode(record))
    answer, *others = outlook(cluster.store, Storage()).findings
    assert "on-nodes" in {finding.kind for finding in others}
    assert "unless" not in answer.text


def test_what_aborted_saves_leave_does_not_fill_the_node(cluster: Cluster) -> None:
    """Each save deletes its own part when it is aborted, and what is decided before it writes."""

    def body(link: Channel) -> None:
        with cluster.saver(link) as saver:
            saver.save(10, state(10, link.rank, RANKS)).result()
            for step in (20, 30):
                refusing = FaultyStore(saver._store, lambda operation, key: operation == "sync" and "/ranks/" in key, UnsafeStore)
                refusing.left = 10**9 if link.rank == 1 else 0
                real, saver._store = saver._store, refusing
                with pytest.raises((SaveAborted, SaveFailed)):
                    saver.save(step, state(step, link.rank, RANKS)).result()
                saver._store = real
            saver.save(40, state(40, link.rank, RANKS)).result()

    on_ranks(RANKS, body)
    assert [[held.generation.step for held in cluster.held(rank)] for rank in range(RANKS)] == [[40]] * RANKS
    run_id = read_run(cluster.store).run_id
    for rank in range(RANKS):
        left = {path.name for path in (cluster.node(rank) / run_id / "generations").iterdir()}
        assert left == {"000001-000000000040-1"}


def test_what_a_job_has_left_that_died_while_it_wrote_to_its_node_is_deleted(cluster: Cluster) -> None:
    """Nothing in the store tells of it, but its incarnation was settled."""
    cluster.save(10)
    left = cluster.node(0) / read_run(cluster.store).run_id / names.state_prefix(GenerationId(1, 20, 1)) / "ranks" / "00000-ab"
    left.mkdir(parents=True)
    (left / "x").write_bytes(b"half")
    cluster.save(30)
    assert not left.exists()


def test_a_rank_that_fails_ends_the_uploads_of_the_others(cluster: Cluster) -> None:
    def body(link: Channel) -> list[BaseException]:
        local = Local(cluster.node(link.rank), upload_limit=None if link.rank else 1.0)
        with cluster.saver(link, local=local) as saver:
            saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))
            if link.rank == 1:
                saver._store = FaultyStore(
                    saver._store, lambda _, key: "/staged/00001" in key, lambda: UnsafeStore("no"), times=10**9
                )
            with pytest.raises((SaveAborted, SaveFailed)) as caught:
                saver.save(10, state(10, link.rank, RANKS)).result(60)
            return [caught.value]

    (first,), _ = on_ranks(RANKS, body)
    assert isinstance(first, SaveAborted)
    assert "rank 1" in str(first)


@pytest.mark.parametrize("how", ["a file", "a link", "another folder"])
def test_a_node_that_cannot_be_read_stops_no_restore(cluster: Cluster, how: str) -> None:
    cluster.save(10)
    run = cluster.node(0) / read_run(cluster.store).run_id
    generations = run / "generations"
    if how == "a link":
        generations.rename(run / "moved")
        generations.symlink_to(run / "moved")
    elif how == "a file":
        shutil.rmtree(run)
        run.write_text("x")
    else:
        (generations / "000001-000000000010-1.retired").mkdir()
    assert [(restored.step, restored.reason) for restored in cluster.resume()] == [(10, "newest")] * RANKS


def test_a_rank_without_local_is_refused_at_once(cluster: Cluster) -> None:
    def body(link: Channel) -> str:
        saver = cluster.saver(link, local=cluster.node(0) if link.rank == 0 else None)
        with pytest.raises(CallError, match="all ranks have to call restore alike") as caught:
            saver.restore_or_init(lambda: state(0, link.rank, RANKS), like=state(0, link.rank, RANKS))
        with pytest.raises(CallError, match="all ranks have to call"):
            saver.save(10, state(10, link.rank, RANKS))
        return str(caught.value)

    assert "'local': 'given'" in on_ranks(RANKS, body)[0]


def test_processes_of_one_node_upload_their_own_parts(cluster: Cluster) -> None:
    """All of them see all parts."""
    cluster.save(10)
    generation = cluster.die_in_upload(20)
    parts = [each for rank in range(RANKS) for each in cluster.held(rank) if each.generation == generation]
    told = finishing._tell(parts)
    assert finishing.plan(cluster.store, [told] * 4) == {(generation, 0): 0, (generation, 1): 1}
    assert finishing.plan(cluster.store, [b"[]", b"[]", told, told]) == {(generation, 0): 2, (generation, 1): 3}


def test_a_receipt_of_somebody_else_on_the_node_is_told(cluster: Cluster) -> None:
    cluster.save(10)
    (held,) = cluster.held(0)
    node = NodeStore.of(Local(cluster.node(0)), held.receipt.run_id, FakeClock())
    with pytest.raises(ProtocolViolation, match="two processes act as rank 0, or the run was put back"):
        node.keep(structs.replace(held.receipt, database="0" * 16))


def test_a_slow_upload_is_waited_for_and_a_dead_one_is_not() -> None:
    """The deadline begins anew while files come."""
    clock, files = FakeClock(), iter([1, 2, 3, 3])
    started = clock.monotonic()
    for _ in clock.polls_anew(10.0, lambda: next(files)):
        pass
    assert 30.0 <= clock.monotonic() - started < 40.0
