"""What supervisors put into a run's store, and who wins where two of them act."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ckptcore import ledger, names, records
from ckptcore.attempts import AttemptIncident, Attempts, Member, Supervisor
from ckptcore.errors import CallError, InvalidRecord
from ckptcore.filestore import FileStore
from ckptcore.forks import fork
from ckptcore.history import read_run
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.operate.copying import Copier
from ckptcore.probe import probe
from ckptcore.retention import Collector
from tests.ckptcore.supervised import ENDED, OWNER, PLAN, At, moment, supervised
from tests.ckptcore.support import Job, contents, file_store
from tests.spec.checker import check_run

OTHER = Supervisor(nonce="0123456789abcdef", host="trainer-8", pid=1)
TOKEN = "0a" * 32
WHERE: dict[str, Any] = {"slots": [0, 1], "nodes": ["a", "a"], "cause": "start"}
TIMES: dict[str, Any] = {"detected": moment(1), "stopped": moment(2)}


def test_a_run_that_nobody_supervises_has_none(place: Path) -> None:
    Job(file_store(place), 1).open()
    attempts = Attempts(file_store(place))
    assert (attempts.load(), attempts.next()) == ([], 1)


def test_what_is_put_comes_back(place: Path) -> None:
    run = supervised(place)
    found = Attempts(run.store).load()
    assert found == run.attempts.load()
    assert [each.number for each in found] == [1, 2, 3, 4, 5]
    assert [each.plan.cause for each in found] == ["start", "restart", "restart", "shrunk", "grown"]
    assert [each.end.outcome if each.end else None for each in found] == ["failed", "failed", "failed", "resized", None]
    assert [each.resumed is not None for each in found] == [True, True, False, True, True]
    assert found[1].end is not None
    assert (found[1].end.blocked, found[1].end.trained) == (2_000_000, 828_000_000)
    assert run.attempts.next() == 6
    assert check_run(place) == []


def test_before_the_run_has_an_identity_its_attempts_have_none_either(place: Path) -> None:
    store = file_store(place)
    attempts = Attempts(store, clock=At())
    assert attempts.plan(1, supervisor=OWNER, **WHERE).run_id is None
    Job(store, 1).open()
    run_id = json.loads((place / "run.json").read_bytes())["run_id"]
    assert attempts.end(1, outcome="finished", **TIMES).run_id == run_id
    assert [each.number for each in Attempts(store, run_id).load()] == [1]


def test_nodes_announce_themselves(place: Path) -> None:
    """That takes no number, and of two supervisors of one node the one that was started last counts."""
    store = file_store(place)
    attempts = Attempts(store, clock=At())
    facts: dict[str, Any] = {"address": "10.0.0.7:5", "token": TOKEN, "slots": 8, "since": 1}
    put = [
        attempts.announce(3, supervisor=OTHER, node="b", started="2026-01-31T12:00:00.000000Z", **facts),
        attempts.announce(3, supervisor=OWNER, node="b", started="2026-01-31T11:00:00.000000Z", **facts),
    ]
    third = Supervisor(nonce="00ff00ff", host="trainer-1", pid=1)
    put.append(attempts.announce(3, supervisor=third, node="a", started="2026-01-31T11:00:00.000000Z", **facts))
    assert Attempts(store).announced(3) == [put[2], put[0]]
    assert Attempts(store).announced(4) == []
    assert (attempts.load(), attempts.next()) == ([], 1)


def test_an_announcement_under_another_nonce_is_passed_over(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = file_store(place)
    put = Attempts(store).announce(
        1, supervisor=OTHER, node="b", address="b:1", token=TOKEN, slots=1, started="2026-01-31T12:00:00.000000Z", since=1
    )
    store.put_if_absent(names.attempt_node_key(1, OWNER.nonce), records.encode(put))
    assert Attempts(store).announced(1) == [put]
    assert "nonce" in caplog.text


def test_of_two_supervisors_one_has_the_number(place: Path) -> None:
    """Whoever loses is told whose it is, and sees the winner's records."""
    store = file_store(place)
    start, found = threading.Barrier(8), []

    def plan(number: int) -> None:
        me = Supervisor(nonce=f"{number:016x}", host="h", pid=number)
        start.wait(10)
        found.append((me, Attempts(store).plan(1, supervisor=me, **WHERE)))

    threads = [threading.Thread(target=plan, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({stored.supervisor.nonce for _, stored in found}) == 1
    assert sum(stored.supervisor == me for me, stored in found) == 1
    assert Attempts(store).next() == 2


def test_the_end_that_is_there_first_counts(place: Path) -> None:
    """A supervisor that was declared lost learns it from the end of its own attempt."""
    store = file_store(place)
    mine, theirs = Attempts(store), Attempts(store)
    mine.plan(1, supervisor=OWNER, **WHERE)
    theirs.end(1, outcome="lost", **TIMES)
    assert theirs.plan(2, supervisor=OTHER, **WHERE).supervisor == OTHER
    assert mine.end(1, outcome="finished", **TIMES).outcome == "lost"


def test_times_are_in_utc(place: Path) -> None:
    attempts = Attempts(file_store(place))
    attempts.plan(1, supervisor=OWNER, **WHERE)
    east = datetime(2026, 1, 31, 14, 30, tzinfo=timezone(timedelta(hours=2)))
    stored = attempts.end(1, outcome="preempted", detected=east, stopped=datetime(2026, 1, 31, 12, 31, tzinfo=UTC))
    assert (stored.detected, stored.stopped) == ("2026-01-31T12:30:00.000000Z", "2026-01-31T12:31:00.000000Z")


def test_what_programs_say_fits_into_a_record(place: Path) -> None:
    attempts = Attempts(file_store(place))
    attempts.plan(1, supervisor=OWNER, slots=[0], nodes=["n" * 300], cause="start", committed=GenerationId(1, 2, 1))
    told = AttemptIncident(kind="exit", node="\ud800" + "n" * 300, message="\ud800" + "x" * 30_000)
    stored = attempts.end(1, outcome="failed", incident=told, stack="é\ud800" * 50_000, blocked=-1.0, **TIMES)
    assert stored.incident is not None
    assert (len(stored.stack), len(stored.incident.message), stored.incident.node) == (65_536, 2000, "?" + "n" * 199)
    assert stored.blocked == 0
    assert Attempts(file_store(place)).load()[0].end == stored


@pytest.mark.parametrize(
    "told",
    [
        {"slots": [0, 0], "nodes": ["a", "a"], "cause": "start"},
        {"slots": [0, 1], "nodes": ["a"], "cause": "start"},
        {"slots": [], "nodes": [], "cause": "start"},
        {"slots": [0], "nodes": ["a"], "cause": "retry"},
        {"slots": [0], "nodes": ["a"], "cause": "start", "committed": "latest"},
    ],
)
def test_what_no_reader_would_take_is_not_put(place: Path, told: dict[str, Any]) -> None:
    attempts = Attempts(file_store(place))
    with pytest.raises(InvalidRecord):
        attempts.plan(1, supervisor=OWNER, **told)
    assert list(place.rglob("*.json")) == []


def test_numbers_have_bounds(place: Path) -> None:
    with pytest.raises(CallError, match=r"attempt 0 is outside 1\.\.99999999"):
        Attempts(file_store(place)).plan(0, supervisor=OWNER, **WHERE)
    assert names.attempt_key(99_999_999, "end") == "supervision/99999999/end.json"
    for key in ("supervision/00000000/plan.json", "supervision/1/plan.json", "supervision/00000001/base.json"):
        assert names.parse_attempt_key(key) is None


def test_an_unreadable_record_is_passed_over_and_its_number_is_taken(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = supervised(place)
    for number, data in ((2, b"{"), (5, b'{"format":"ckpt/attempt-plan","version":"2.0"}')):
        (place / names.attempt_key(number, "plan")).write_bytes(data)
    (place / "supervision" / "note.txt").write_text("not ours")
    attempts = Attempts(run.store)
    assert [each.number for each in attempts.load()] == [1, 3, 4]
    assert attempts.next() == 6
    assert sum("a record of supervision is passed over" in text for text in caplog.messages) == 2


def test_records_of_another_run_are_passed_over(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = supervised(place)
    first = place / names.attempt_key(1, "plan")
    first.write_bytes((place / names.attempt_key(2, "plan")).read_bytes())
    other = json.loads((place / names.attempt_key(3, "plan")).read_bytes())
    other["run_id"] = "00000000-0000-4000-8000-000000000000"
    (place / names.attempt_key(3, "plan")).write_bytes(json.dumps(other).encode())
    assert [each.number for each in Attempts(run.store).load()] == [2, 4, 5]
    assert "attempt is 2, expected 1" in caplog.text
    assert "run_id" in caplog.text


def test_what_was_read_is_not_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = supervised(place)
    attempts = Attempts(run.store)
    first = attempts.load()
    read: list[str] = []
    get = run.store.get
    monkeypatch.setattr(run.store, "get", lambda key, *span: (read.append(key), get(key, *span))[1])
    assert attempts.load() == first
    assert read == []
    run.end(9000, 9001, "finished")
    last = attempts.load()[-1].end
    assert last is not None
    assert read == [names.attempt_key(5, "end")]


def test_readers_of_checkpoints_take_no_notice(place: Path) -> None:
    """A run is the same to everybody with these records and without (U-2)."""
    from ckptcore.inspect.inventory import inventory

    run = supervised(place)
    before = inventory(run.store)
    for path in sorted((place / "supervision").rglob("*.json")):
        path.write_bytes(b"\xff")
    assert inventory(run.store) == before
    assert records.RECORDS["attempt-end"] is records.AttemptEnd


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (msgspec.structs.replace(PLAN, slots=[0]), "1 slots and 2 nodes for 2 processes"),
        (msgspec.structs.replace(PLAN, processes=3), "2 slots and 2 nodes for 3 processes"),
        (msgspec.structs.replace(PLAN, slots=[3, 3]), "two ranks have the same slot of a node"),
        (msgspec.structs.replace(ENDED, incident=None), "an attempt that failed has an incident"),
        (msgspec.structs.replace(ENDED, outcome="finished"), "an attempt that finished has no incident"),
    ],
)
def test_what_an_attempt_cannot_say(record: records.Record, words: str) -> None:
    with pytest.raises(InvalidRecord, match=f"^the/key.json: {words}"):
        records.decode(records.encode(record), type(record), key="the/key.json")


@pytest.mark.parametrize("nodes", [["a", "b", "a"], ["a", "a", "a"], ["b", "a", "a"]])
def test_members_are_the_nodes_of_the_ranks(place: Path, nodes: list[str]) -> None:
    members = [Member(node=name, nonce=OTHER.nonce, address=f"{name}:1", token=TOKEN) for name in "ab"]
    attempts = Attempts(file_store(place))
    with pytest.raises(InvalidRecord, match="ranks"):
        attempts.plan(1, supervisor=OTHER, slots=[0, 1, 2], nodes=nodes, cause="start", members=members)
    assert (
        attempts.plan(1, supervisor=OTHER, slots=[0, 1, 0], nodes=["a", "a", "b"], cause="start", members=members).members
        == members
    )


def test_ranks_of_two_nodes_may_have_slots_of_one_number() -> None:
    apart = msgspec.structs.replace(PLAN, slots=[0, 0], nodes=["trainer-7", "trainer-8"])
    assert records.decode(records.encode(apart), records.AttemptPlan, key="k") == apart


# What others do with these records: nothing


def below(place: Path) -> dict[str, bytes]:
    """The records of supervision, byte by byte."""
    return contents(place / "supervision")


def test_a_collection_leaves_them(place: Path) -> None:
    run = supervised(place)
    before = below(place)
    Collector(run.store, 4, At()).collect(Keep(last=2))
    assert len(list(ledger.entries(run.store))) > 10, "it has retired some"
    assert below(place) == before


def test_a_copy_has_none_and_may_lie_beside_some(place: Path) -> None:
    """A mirror is no place where the job goes on; a supervisor that has begun at the copy's place is no other run."""
    run = supervised(place / "run")
    target = file_store(place / "copy")
    Attempts(target).plan(1, supervisor=OTHER, **WHERE)
    before = below(place / "copy")
    for _ in range(2):
        copier = Copier(run.store, target, At())
        copier.open()
        for chosen in copier.pending(None):
            copier.copy(copier.plan(chosen))
        copier.follow_up()
    assert len(list(ledger.entries(target))) == 10
    assert below(place / "copy") == before


def test_a_fork_begins_without(place: Path) -> None:
    run = supervised(place / "run")
    decided = ledger.commit(run.store, read_run(run.store).run_id, GenerationId(4, 900, 1))
    fork(run.store, file_store(place / "fork"), decided, ["params"], clock=At())
    assert not (place / "fork" / "supervision").exists()


def test_the_probe_does_not_touch_them(place: Path) -> None:
    run = supervised(place)
    before = below(place)
    probe(run.store, single_writer=False)
    assert below(place) == before


def test_a_start_costs_no_request_more(place: Path) -> None:
    """Whether or not somebody supervises, a job asks for nothing there."""
    run = supervised(place)
    asked: list[str] = []

    class Watched(FileStore):
        def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
            asked.append(key)
            return super().get(key, start, stop)

        def list(self, prefix: str = "") -> Any:
            asked.append(prefix)
            return super().list(prefix)

    store = Watched(str(place), timeout=0.5)
    job = Job(store, 2, clock=run.clock)
    job.open()
    job.save(1000)
    assert asked
    assert [key for key in asked if key.startswith("supervision") or key == ""] == []
