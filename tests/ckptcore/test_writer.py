"""The participant: what a receipt says, and that it is there only for data that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcore import names, records, saving, writer
from ckptcore.components import PerRank, RankZero
from ckptcore.digests import digest, value_digest
from ckptcore.errors import CheckpointError, ProtocolViolation, StoreFull
from ckptcore.events import Event
from ckptcore.names import GenerationId
from tests.ckptcore.failing import Died, DyingStore, FaultyStore
from tests.ckptcore.support import Job, file_store, state


@pytest.fixture
def job(place: Path) -> Job:
    started = Job(file_store(place))
    started.open()
    return started


def stored_receipt(job: Job, generation: GenerationId, rank: int) -> records.Receipt | None:
    key = names.receipt_key(generation, rank)
    data = job.store.get(key)
    return None if data is None else records.decode(data, records.Receipt, key=key)


def test_a_receipt_lists_what_its_rank_wrote(job: Job) -> None:
    generation = job.next_generation(10)
    own, lead = job.write(generation, 1), job.write(generation, 0)
    assert stored_receipt(job, generation, 1) == own
    assert (own.rank, own.participants, own.step, own.incarnation, own.status) == (1, 2, 10, 1, "complete")
    assert own.lead is None
    assert lead.lead is not None
    assert own.claim == job.incarnation.claim.nonce  # pyright: ignore[reportOptionalMemberAccess]
    assert own.layout == lead.layout
    w = state(10, 1, 2)["params"]["w"].local
    written = [chunk for _, chunk in own.components["params"].chunks["params.w"]]
    assert written == [digest(w[:2]), digest(w[2:])] or written == [digest(w[:, :48]), digest(w[:, 48:])]
    assert own.components["optimizer"].values["optimizer.count"] == value_digest(10)
    assert own.components["optimizer"].values == lead.components["optimizer"].values
    assert own.components["params"].replicas == {"params.b": digest(np.full(3, 10.0))}
    for file in own.files:
        key = f"{names.database_prefix(generation, 1, own.database or '')}{file.path}"
        assert job.store.size(key) == file.size
        assert file.digest in (None, digest(job.store.get(key) or b""))


def test_shared_values_are_stored_by_rank_0_and_own_ones_by_each(job: Job) -> None:
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"rng": PerRank({"seed": rank + 5})}
    generation = job.next_generation(10)
    for rank in (0, 1):
        job.write(generation, rank)
        data = job.store.get(names.values_key(generation, rank)) or b""
        values = records.decode(data, records.Values, key="values")
        assert values.own == {"rng": {"rng": {"seed": rank + 5}}}
        assert ("data" in values.shared) == (rank == 0)


def test_the_others_say_nothing_of_what_rank_zero_alone_counts_for(job: Job) -> None:
    job.state_of = lambda _, rank, __: {
        "params": {"w": np.zeros(2)},
        "stats": RankZero({"mean": np.full(2, rank), "n": rank}),
    }
    generation = job.next_generation(10)
    receipts = [job.write(generation, rank, guarantee="weights", derived={}) for rank in (0, 1)]
    assert receipts[0].components["stats"].values
    assert receipts[1].components["stats"] == records.Written(bytes=0, chunks={})


def test_two_processes_that_act_as_one_rank_are_told(job: Job) -> None:
    generation = job.next_generation(10)
    first = job.write(generation, 1)
    with pytest.raises(ProtocolViolation, match="two processes act as rank 1"):
        job.write(generation, 1)
    assert stored_receipt(job, generation, 1) == first


def test_a_rank_that_cannot_write_leaves_a_failed_receipt(job: Job) -> None:
    generation = job.next_generation(10)
    error = StoreFull("no room left on \ud800 the device")
    writer.give_up(job.store, job.identity(generation, 1), error)
    found = stored_receipt(job, generation, 1)
    assert found is not None
    assert found.status == "failed"
    assert (found.reason or "").startswith("StoreFull: no room left on ? the device")


def test_rank_0_decides_at_once_when_it_cannot_write(job: Job) -> None:
    generation = job.next_generation(10)
    job.write(generation, 1)
    saving.give_up(job.coordinator(), job.identity(generation, 0), StoreFull("no room"))
    decided = job.coordinator().conclude(generation)
    assert not decided.committed
    assert "no room" in decided.record.reason  # pyright: ignore[reportAttributeAccessIssue]


def test_trouble_with_the_failed_receipt_is_added_to_the_error(job: Job) -> None:
    generation = job.next_generation(10)
    full = FaultyStore(job.store, lambda *_: True, lambda: StoreFull("still no room"), times=9)
    error = StoreFull("no room")
    writer.give_up(full, job.identity(generation, 1), error)
    assert "still no room" in "".join(error.__notes__)


def test_a_receipt_exists_only_for_what_is_durable(job: Job) -> None:
    """Whatever write fails, there is no receipt afterwards."""
    for at in range(1, 50):
        generation = job.next_generation(10)
        dying = DyingStore(job.store, at)
        job.stores = {1: dying}
        try:
            job.write(generation, 1)
        except Died:
            assert stored_receipt(job, generation, 1) is None
            continue
        assert stored_receipt(job, generation, 1) is not None
        return
    pytest.fail("the write never ran through")


def test_events_tell_of_every_leaf(job: Job) -> None:
    events: list[Event] = []
    generation = job.next_generation(10)
    writer.write(job.store, job.shard(generation, 1), clock=job.clock, on_event=events.append)
    assert [event.kind for event in events][-2:] == ["written", "receipt"]
    assert {event.detail.get("leaf") for event in events if event.kind == "chunk-written"} >= {"params.w", "rng.key"}
    assert {event.rank for event in events} == {1}


def test_a_key_that_holds_something_else_is_a_violation(job: Job) -> None:
    generation = job.next_generation(10)
    job.store.put_if_absent(names.values_key(generation, 0), b"{}")
    with pytest.raises(CheckpointError, match=r"values/00000\.json holds other bytes"):
        job.write(generation, 0)
