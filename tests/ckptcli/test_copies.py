"""`ckpt cp` and `ckpt mirror`: what is told, what is refused, and going on after a break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcli import mirror
from ckptcli.copies import rate_of
from ckptcore import names
from ckptcore.clock import Clock
from ckptcore.errors import CallError, StoreUnavailable
from ckptcore.history import History
from ckptcore.names import GenerationId
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, check_commits, contents, file_store, flip

FIRST, SECOND = GenerationId(1, 10, 1), GenerationId(1, 20, 1)


@pytest.fixture
def job(place: Path) -> Job:
    """A run with commits of steps 10 and 20."""
    job = Job(file_store(place / "run"))
    job.open()
    job.save(10)
    job.save(20)
    return job


def test_the_resume_point_by_default(ckpt: Ckpt, job: Job, place: Path) -> None:
    run, copy = place / "run", place / "copy"
    made = ckpt("cp", run, copy, "--json").json
    assert [(row["generation"], row["sent"] == row["bytes"]) for row in made["copied"]] == [(str(SECOND), True)]
    assert check_commits(file_store(copy)) == [SECOND]
    again = ckpt("cp", run, copy).out
    assert f"{SECOND}  " in again
    assert ", was there" in again
    ckpt("cp", run, copy, "10")
    assert check_commits(file_store(copy)) == [SECOND, FIRST]
    assert "*" in ckpt("ls", copy).out
    assert job.number == 1


def test_all_of_them_and_what_came_since(ckpt: Ckpt, job: Job, place: Path) -> None:
    run, copy = place / "run", place / "copy"
    assert "2 checkpoints in file://" in ckpt("cp", run, copy, "--all", "--limit", "100MB/s").out
    job.save(30)
    made = ckpt("mirror", run, copy, "--json").json
    assert [row["generation"] for row in made["copied"]] == ["000001-000000000030-1"]
    assert ckpt("mirror", run, copy).out == f"nothing new for file://{copy}\n"


def test_one_that_is_damaged_hides_no_other(ckpt: Ckpt, job: Job, place: Path) -> None:
    run, copy = place / "run", place / "copy"
    flip(run / names.receipt_key(FIRST, 0))
    (run / names.ledger_key(job.save(30).generation)).write_bytes(b"{}")
    made = ckpt("mirror", run, copy, "--json", status=4).json
    assert [row["generation"] for row in made["copied"]] == [str(SECOND)]
    assert [row["generation"] for row in made["failed"]] == ["000001-000000000030-1", str(FIRST)]
    assert "not copied: " in ckpt("mirror", run, copy, status=4).out
    assert names.receipt_key(FIRST, 0) in ckpt.refused("cp", run, copy, "10", status=4)


def test_what_is_refused(ckpt: Ckpt, job: Job, place: Path) -> None:
    run, other = place / "run", place / "other"
    Job(file_store(other)).open()
    before = contents(other)
    assert "holds another run" in ckpt.refused("cp", run, other, status=2)
    assert "lie in each other" in ckpt.refused("mirror", run, run, status=2)
    assert "leave WHICH out" in ckpt.refused("cp", run, other, "10", "--all", status=2)
    assert "has no checkpoint of step 99" in ckpt.refused("cp", run, place / "new", "99", status=5)
    assert "--limit 'fast'" in ckpt.refused("cp", run, place / "new", "--limit", "fast", status=2)
    assert "there is no run at" in ckpt.refused("mirror", place, place / "new", status=5)
    assert contents(other) == before
    assert not (place / "new").exists()
    assert job.number == 1


@pytest.mark.parametrize(
    ("given", "rate"),
    [(None, None), ("100MB/s", 1e8), ("1.5GiB/s", 1.5 * 2**30), ("64 kB", 64e3), ("7B/s", 7.0)],
)
def test_rates(given: str | None, rate: float | None) -> None:
    assert rate_of(given) == rate


@pytest.mark.parametrize("given", ["", "0MB/s", "-1MB/s", "100Mbit/s", "MB/s", "1e9B"])
def test_what_is_no_rate(given: str) -> None:
    with pytest.raises(CallError):
        rate_of(given)


def following(monkeypatch: pytest.MonkeyPatch, *between: Callable[[], object]) -> None:
    """Between two rounds of `--follow` each of these happens, and then somebody interrupts."""
    left = list(between)

    class Impatient(Clock):
        def sleep(self, seconds: float) -> None:
            assert seconds == mirror.PAUSE
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

    monkeypatch.setattr(mirror, "Clock", Impatient)


def test_following(ckpt: Ckpt, job: Job, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    following(monkeypatch, lambda: job.save(30), lambda: None, lambda: job.save(40))
    told = ckpt("mirror", place / "run", place / "copy", "--follow", "--json", status=130)
    rounds = [[row["generation"] for row in json.loads(line)["copied"]] for line in told.out.splitlines()]
    assert rounds == [[str(FIRST), str(SECOND)], ["000001-000000000030-1"], ["000001-000000000040-1"]]
    head = History.load(file_store(place / "copy")).head()
    assert head is not None
    assert head.generation.step == 40


def test_following_outlasts_a_silent_store(
    ckpt: Ckpt, job: Job, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[int] = []

    def silent_once(copier: mirror.Copier, known: tuple[str, ...] | None, *, as_json: bool) -> tuple[str, ...]:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise StoreUnavailable("no answer")
        return follow(copier, known, as_json=as_json)

    follow = mirror._follow
    monkeypatch.setattr(mirror, "_follow", silent_once)
    following(monkeypatch, lambda: None)
    ckpt("mirror", place / "run", place / "copy", "--follow", status=130)
    assert "the copy goes on when the store answers: no answer" in caplog.text
    assert check_commits(file_store(place / "copy")) == [SECOND, FIRST]
    assert job.number == 1
