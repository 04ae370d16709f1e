"""The resume point follows from the records: rollbacks, strays, quarantine and damage included."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.errors import CheckpointError, Damaged, ForeignRecord, InvalidRecord, NotFound, UnsupportedFormat
from ckptcore.filestore import FileStore
from ckptcore.history import History, read_run
from ckptcore.names import GenerationId
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import Job, file_store, flip


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


def job(store: FileStore, *steps: int, choose: GenerationId | None = None) -> Job:
    """Start a job, save at `steps`, and let it die."""
    started = Job(store)
    started.open(choose)
    for step in steps:
        started.save(step)
    return started


def head(store: FileStore) -> str | None:
    decided = History.load(store).head()
    return str(decided.generation) if decided else None


def quarantine(store: FileStore, generation: GenerationId) -> None:
    notes.write(store, History.load(store).run.run_id, generation, "quarantine", clock=Clock(), text="a loss spike")


def replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def test_there_is_no_run(store: FileStore) -> None:
    with pytest.raises(NotFound, match=r"check the URL"):
        History.load(store)


def test_a_run_without_commits_has_no_head(store: FileStore) -> None:
    job(store)
    assert head(store) is None
    assert list(History.load(store).lineage()) == []


def test_the_head_is_the_newest_commit_of_the_newest_incarnation(store: FileStore) -> None:
    job(store, 10, 20)
    assert head(store) == "000001-000000000020-1"
    job(store)
    assert head(store) == "000001-000000000020-1"
    job(store, 30)
    assert head(store) == "000003-000000000030-1"


def test_ids_are_compared_as_numbers(store: FileStore) -> None:
    started = job(store, 10)
    for _ in range(10):
        started.save(10)
    assert head(store) == "000001-000000000010-11"


def test_a_rollback_stays_rolled_back(store: FileStore) -> None:
    job(store, 10, 20, 30)
    job(store, choose=GenerationId(1, 10, 1))
    assert head(store) == "000001-000000000010-1"
    job(store)  # it dies before its first commit
    assert head(store) == "000001-000000000010-1"
    job(store, 15)
    assert head(store) == "000004-000000000015-1"


def test_a_stray_of_a_superseded_job_is_nobodys_head(store: FileStore) -> None:
    old = job(store, 10)
    job(store)
    stray = old.next_generation(90)
    old.write(stray, 1)
    old.write(stray, 0)
    run = read_run(store)
    found = old.coordinator().examine(stray)
    ledger.decide(store, found.manifest, clock=Clock(), timeout=1.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert ledger.read(store, run.run_id, stray) is not None
    assert head(store) == "000001-000000000010-1"


def test_what_is_quarantined_is_passed_over(store: FileStore) -> None:
    job(store, 10, 20)
    job(store, 30, 40)
    quarantine(store, GenerationId(2, 40, 1))
    assert head(store) == "000002-000000000030-1"
    quarantine(store, GenerationId(2, 30, 1))
    assert head(store) == "000001-000000000020-1"
    quarantine(store, GenerationId(1, 20, 1))
    assert head(store) == "000001-000000000010-1"
    quarantine(store, GenerationId(1, 10, 1))
    assert head(store) is None
    assert [g.step for g in History.load(store).lineage()] == [40, 30, 20, 10]
    assert "quarantine: a loss spike" in (History.load(store).obstacle(GenerationId(1, 10, 1)) or "")


def test_weights_and_retired_ones_are_no_heads(store: FileStore) -> None:
    started = job(store, 10)
    started.save(20, guarantee="weights")
    assert head(store) == "000001-000000000010-1"
    assert "weights" in (History.load(store).obstacle(GenerationId(1, 20, 1)) or "")
    decided = started.save(30)
    ledger.retire(store, decided, "by hand", clock=Clock())
    assert head(store) == "000001-000000000010-1"
    assert History.load(store).obstacle(GenerationId(1, 30, 1)) == "it is retired"
    assert [d.generation.step for d in History.load(store).commits()] == [20, 10]


def test_an_unreadable_decision_is_passed_over_and_so_is_a_foreign_one(store: FileStore) -> None:
    job(store, 10, 20, 30)
    flip(Path(store.root) / names.ledger_key(GenerationId(1, 30, 1)), 0)
    replace(
        Path(store.root) / names.ledger_key(GenerationId(1, 20, 1)), store.get(names.ledger_key(GenerationId(1, 10, 1))) or b""
    )
    history = History.load(store)
    assert head(store) == "000001-000000000010-1"
    assert "ledger/000001-000000000030-1.json" in (history.obstacle(GenerationId(1, 30, 1)) or "")
    assert "generation is" in (history.obstacle(GenerationId(1, 20, 1)) or "")
    assert [d.generation.step for d in history.commits()] == [10]


def test_the_parents_lead_past_an_unreadable_base(store: FileStore) -> None:
    job(store, 10, 20)
    job(store)
    flip(Path(store.root) / names.ledger_key(GenerationId(1, 20, 1)), 0)
    assert head(store) == "000001-000000000010-1"


@pytest.mark.parametrize("change", [{"version": "2.0"}, {"requires": ["sharded-ledger"]}])
def test_a_decision_of_a_newer_format_is_not_passed_over(store: FileStore, change: dict[str, object]) -> None:
    job(store, 10, 20)
    path = Path(store.root) / names.ledger_key(GenerationId(1, 20, 1))
    raw = msgspec.json.decode(path.read_bytes())
    replace(path, msgspec.json.encode(raw | change))
    with pytest.raises(UnsupportedFormat, match="Use a newer release"):
        History.load(store).head()


@pytest.mark.parametrize("number", [2, 3])
def test_a_base_cannot_be_of_its_own_or_a_later_incarnation(store: FileStore, number: int) -> None:
    """Else parents could go round in circles."""
    job(store, 10)
    job(store)
    path = Path(store.root) / names.base_key(2)
    base = records.decode(path.read_bytes(), records.Base, key="base")
    replace(path, records.encode(msgspec.structs.replace(base, generation=str(GenerationId(number, 10, 1)))))
    with pytest.raises(InvalidRecord, match="not of an older incarnation"):
        History.load(store).head()


def test_a_foreign_base_is_refused(store: FileStore) -> None:
    job(store, 10)
    job(store)
    replace(Path(store.root) / names.base_key(2), store.get(names.base_key(1)) or b"")
    with pytest.raises(ForeignRecord, match=r"incarnations/000002/base\.json"):
        History.load(store).head()


@pytest.mark.parametrize(("lost", "named"), [("base", "base"), ("claim", "claim"), ("both", "claim")])
def test_without_the_base_of_its_newest_saves_a_run_has_no_known_head(store: FileStore, lost: str, named: str) -> None:
    """An older incarnation's commits may be what was given up: nobody goes back to them silently."""
    job(store, 10, 20)
    job(store, 30, choose=GenerationId(1, 10, 1))
    for what in ("claim", "base") if lost == "both" else (lost,):
        (Path(store.root) / f"incarnations/000002/{what}.json").unlink()
    history = History.load(store)
    with pytest.raises(Damaged, match=rf"incarnations/000002/{named}\.json is missing.*Checkpointer\.restore\(step="):
        history.head()
    assert [d.generation.step for d in history.commits() if history.obstacle(d.generation) is None] == [30, 20, 10]


def test_a_damaged_base_that_is_put_back_is_read_again(store: FileStore) -> None:
    job(store, 10)
    key = names.base_key(1)
    kept = store.get(key) or b""
    replace(Path(store.root) / key, kept[:-9])
    history = History.load(store)
    with pytest.raises(InvalidRecord, match="goes on from the checkpoint that you name"):
        history.head()
    replace(Path(store.root) / key, kept)
    history.refresh()
    assert history.head() is not None


def test_a_damaged_older_base_matters_only_where_it_is_needed(store: FileStore) -> None:
    job(store, 10)
    job(store, 20)
    job(store, 30)
    replace(Path(store.root) / names.base_key(2), b"{")
    assert head(store) == "000003-000000000030-1"
    quarantine(store, GenerationId(3, 30, 1))
    quarantine(store, GenerationId(2, 20, 1))
    assert head(store) == "000001-000000000010-1"  # by the parents
    flip(Path(store.root) / names.ledger_key(GenerationId(2, 20, 1)), 0)
    with pytest.raises(InvalidRecord, match=r"incarnations/000002/base\.json"):
        head(store)


def test_a_job_that_claims_and_saves_while_a_reader_lists_is_no_damage(store: FileStore) -> None:
    job(store, 10)
    started: list[Job] = []

    def save(operation: str, key: str) -> bool:
        if operation == "list" and key == names.LEDGER and not started:
            started.append(job(store, 20))
        return False

    found = History.load(FaultyStore(store, save)).head()
    assert found is not None
    assert str(found.generation) == "000002-000000000020-1"


def test_the_newest_base_may_be_retired_but_not_quarantined(store: FileStore) -> None:
    """Retention keeps its data as long as it is that."""
    job(store, 10, 20)
    job(store, choose=GenerationId(1, 10, 1))
    for step in (10, 20):
        decided = ledger.read(store, read_run(store).run_id, GenerationId(1, step, 1))
        assert decided is not None
        ledger.retire(store, decided, "by hand", clock=Clock())
    history = History.load(store)
    assert history.obstacle(GenerationId(1, 20, 1)) == "it is retired"
    assert head(store) == "000001-000000000010-1"
    quarantine(store, GenerationId(1, 10, 1))
    assert head(store) is None


def test_a_claim_without_a_base_is_skipped_and_an_empty_folder_is_no_claim(store: FileStore) -> None:
    job(store, 10)
    store.put_if_absent(names.claim_key(2), b"a start that died")
    (Path(store.root) / "incarnations/000003").mkdir()
    assert History.load(store).bases.keys() == {1, 2}
    assert head(store) == "000001-000000000010-1"


@pytest.mark.parametrize("parent", ["000001-000000000020-1", "000009-000000000010-1"])
def test_parents_that_lead_nowhere_or_in_circles_end(store: FileStore, parent: str) -> None:
    job(store, 10, 20)
    job(store)
    path = Path(store.root) / names.ledger_key(GenerationId(1, 20, 1))
    raw = msgspec.json.decode(path.read_bytes())
    replace(path, msgspec.json.encode(raw | {"parent": parent}))
    quarantine(store, GenerationId(1, 20, 1))
    history = History.load(store)
    assert [str(g) for g in history.lineage()] == list(dict.fromkeys(["000001-000000000020-1", parent]))
    assert history.head() is None


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"format":"ckpt/run"}', b'{"format":"ckpt/run","version":"1.0"}'])
def test_a_run_record_that_is_none_is_refused(store: FileStore, data: bytes) -> None:
    store.put_if_absent(names.RUN, data)
    with pytest.raises(CheckpointError, match=r"run\.json"):
        History.load(store)


def test_what_comes_later_is_seen_after_a_refresh(store: FileStore) -> None:
    started = job(store, 10)
    history = History.load(store)
    started.save(20)
    assert history.head() != ledger.read(store, history.run.run_id, GenerationId(1, 20, 1))
    history.refresh()
    assert history.head() == ledger.read(store, history.run.run_id, GenerationId(1, 20, 1))
