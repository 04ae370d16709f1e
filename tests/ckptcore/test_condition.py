"""Whether one generation can be resumed from; and whose bytes are missing or damaged, to the chunk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore import ledger, names, notes
from ckptcore.clock import Clock
from ckptcore.errors import Damaged, NotFound
from ckptcore.inspect import locating
from ckptcore.inspect.condition import Condition, condition
from ckptcore.names import GenerationId
from tests.ckptcore.support import Job, file_store, flip, manifest, restored_step, state

FIRST, SECOND = GenerationId(1, 10, 1), GenerationId(1, 20, 1)


@pytest.fixture
def job(place: Path) -> Job:
    opened = Job(file_store(place))
    opened.open()
    opened.save(10)
    opened.save(20)
    return opened


def look(job: Job, generation: GenerationId, *, deep: bool = False) -> Condition:
    return condition(job.store, generation, deep=deep)


def kinds(found: Condition) -> list[str]:
    return [each.kind for each in found.findings]


def data_file(place: Path, generation: GenerationId, rank: int) -> Path:
    """The one with the chunks; the other one holds the tree that finds them."""
    files = (place / names.state_prefix(generation) / "ranks").glob(f"{rank:05d}-*/d/*")
    return max(files, key=lambda file: file.stat().st_size)


def test_what_can_be_resumed_from(job: Job) -> None:
    assert (look(job, SECOND).resumable, kinds(look(job, SECOND))) == (True, ["resume", "whole"])
    assert (look(job, FIRST).resumable, kinds(look(job, FIRST))) == (True, ["ancestor", "whole"])
    assert look(job, FIRST, deep=True).findings[1].text == "every byte is as it was saved"


def test_a_stray_can_be_resumed_from_by_name(job: Job, place: Path) -> None:
    Job(file_store(place)).open(choose=FIRST)
    found = look(job, SECOND)
    assert (found.resumable, kinds(found)) == (True, ["stray", "whole"])


def test_progress_is_told_of_every_byte(job: Job) -> None:
    read: list[int] = []
    condition(job.store, SECOND, deep=True, progress=read.append)
    assert job.latest is not None
    assert sum(read) == sum(entry.bytes for entry in manifest(job.latest).components.values())


def test_what_the_records_forbid(job: Job) -> None:
    assert job.latest is not None
    run_id = job.latest.record.run_id
    notes.write(job.store, run_id, FIRST, "quarantine", clock=Clock(), text="spike")
    found = look(job, FIRST)
    assert (found.resumable, found.findings[0].text) == (False, "it is marked quarantine: spike")
    ledger.retire(job.store, job.latest, "policy", clock=Clock())
    assert (look(job, SECOND).resumable, kinds(look(job, SECOND))) == (False, ["retired", "whole"])
    data_file(Path(job.store.root), SECOND, 0).unlink()  # pyright: ignore[reportAttributeAccessIssue]
    assert [(each.kind, each.clause) for each in look(job, SECOND).findings] == [
        ("retired", "P-21, K-6"),
        ("retired", "O-14, K-17"),
    ]


def test_an_aborted_one_tells_who_was_missing(job: Job) -> None:
    generation = job.next_generation(30)
    job.write(generation, 0)
    job.coordinator().commit(generation, 2, timeout=1.0)
    found = look(job, generation)
    assert (found.resumable, kinds(found)) == (False, ["aborted", "missing-receipt"])
    assert found.findings[1].rank == 1


def test_an_undecided_one(job: Job) -> None:
    generation = job.next_generation(30)
    job.write(generation, 1)
    found = look(job, generation)
    assert (found.resumable, kinds(found)) == (False, ["abort", "missing-receipt", "undecided"])
    job.write(generation, 0)
    assert (look(job, generation).resumable, kinds(look(job, generation))) == (True, ["roll-forward", "undecided"])


def test_a_lost_file_names_the_rank_and_its_chunks(job: Job, place: Path) -> None:
    file = data_file(place, SECOND, 1)
    file.unlink()
    found = look(job, SECOND)
    assert not found.resumable
    damaged = next(each for each in found.findings if each.kind == "damaged")
    assert (damaged.rank, damaged.key) == (1, str(file.relative_to(place)))
    (chunks,) = [each for each in found.findings if each.kind == "chunks"]
    assert (chunks.leaf, chunks.chunks) == ("params.w", (2, 3))  # all others are so small that they lie in the tree
    assert chunks.text.startswith("chunks 2, 3 of 'params.w', written by rank 1, lie in that file")
    with pytest.raises(Damaged):
        restored_step(job.store, SECOND, 2)


def test_a_damaged_chunk_is_found_by_reading(job: Job, place: Path) -> None:
    file = data_file(place, SECOND, 1)
    flip(file, 700)
    assert look(job, SECOND).resumable
    found = look(job, SECOND, deep=True)
    assert not found.resumable
    chunks = [each for each in found.findings if each.kind == "chunks"]
    assert [(each.rank, each.leaf, each.clause) for each in chunks] == [(1, "params.w", "O-10, O-11")]
    assert chunks[0].chunks in ((2,), (3,))


def test_no_more_chunks_are_looked_for_than_anybody_reads(job: Job, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locating, "MOST_CHUNKS", 1)
    file = data_file(place, SECOND, 1)
    whole = file.read_bytes()
    for position in range(len(whole)):
        flip(file, position)
    (chunks,) = [each for each in look(job, SECOND, deep=True).findings if each.kind == "chunks" and each.leaf == "params.w"]
    assert len(chunks.chunks) == 1


def test_no_more_leaves_are_named_than_anybody_reads(job: Job, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locating, "MOST_LEAVES", 0)
    data_file(place, SECOND, 1).unlink()
    assert any("chunks of 1 more leaves that rank 1 wrote" in each.text for each in look(job, SECOND).findings)


def test_damage_in_the_generation_that_is_referred_to(job: Job, place: Path) -> None:
    job.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "params"}
    third = job.save(30, unchanged=("params",)).generation
    data_file(place, SECOND, 1).unlink()
    found = look(job, third)
    assert not found.resumable
    assert {each.leaf for each in found.findings if each.kind == "chunks"} >= {"params.w"}


def test_an_unreadable_decision(job: Job, place: Path) -> None:
    (place / names.ledger_key(SECOND)).write_bytes(b"{}")
    found = look(job, SECOND)
    assert (found.resumable, kinds(found)) == (False, ["unreadable"])
    assert found.findings[0].key == names.ledger_key(SECOND)


def test_one_that_is_not_there(job: Job) -> None:
    with pytest.raises(NotFound, match="`ckpt ls` shows them"):
        look(job, GenerationId(7, 7, 7))
