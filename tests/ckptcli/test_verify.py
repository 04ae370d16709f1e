"""`ckpt verify`: shallow and deep, one and all, with notes, and beside a job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore import ledger, names
from ckptcore.clock import Clock
from ckptcore.history import History
from ckptcore.names import GenerationId
from tests import processes
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, contents, file_store, flip
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"
FIRST, SECOND = GenerationId(1, 10, 1), GenerationId(1, 20, 1)


@pytest.fixture
def job(place: Path) -> Job:
    opened = Job(file_store(place / "run"))
    opened.open()
    opened.save(10)
    opened.save(20)
    return opened


def spoil(run: Path, generation: GenerationId) -> None:
    files = (run / names.state_prefix(generation) / "ranks").glob("00001-*/d/*")
    flip(max(files, key=lambda file: file.stat().st_size), 700)


def test_whole(ckpt: Ckpt, job: Job, place: Path) -> None:
    before = contents(place)
    assert ckpt("verify", place / "run").out == f"{SECOND}: whole (shallow)\n"
    assert ckpt("verify", place / "run", "10", "--deep").out == f"{FIRST}: whole (deep, 3.05 KiB read)\n"
    assert contents(place) == before
    assert job.number == 1


def test_damage_is_listed_and_is_the_exit_status(ckpt: Ckpt, job: Job, place: Path) -> None:
    spoil(place / "run", SECOND)
    assert ckpt("verify", place / "run").status == 0
    told = ckpt("verify", place / "run", "--deep", status=1).out
    assert told.startswith(f"{SECOND}: NOT WHOLE (deep, 1 problem)\n  chunk ")
    (result,) = ckpt("verify", place / "run", "--deep", "--json", status=1).json["results"]
    assert (result["whole"], result["depth"], len(result["problems"]), result["noted"]) == (False, "deep", 1, False)
    assert job.number == 1


def test_all_of_them(ckpt: Ckpt, job: Job, place: Path) -> None:
    spoil(place / "run", FIRST)
    third = job.save(30)
    ledger.retire(job.store, third, "policy", clock=Clock())
    (place / "run" / names.ledger_key(job.save(40).generation)).write_bytes(b"{}")
    found = ckpt("verify", place / "run", "--all", "--deep", "--json", status=1).json
    assert [(each["generation"][7:19].lstrip("0"), each["whole"], each["depth"]) for each in found["results"]] == [
        ("40", False, "none"),
        ("10", False, "deep"),
        ("20", True, "deep"),
    ]
    assert ckpt("verify", GOLDEN, "--all").out.count("whole") == 4


def test_a_note_changes_what_a_start_does(ckpt: Ckpt, job: Job, place: Path) -> None:
    assert "whole (deep, 3.05 KiB read, noted)" in ckpt("verify", place / "run", "10", "--deep", "--note").out
    spoil(place / "run", SECOND)
    ckpt("verify", place / "run", "--deep", "--note", status=1)
    kinds = {str(generation): [note.kind for note in told] for generation, told in History.load(job.store).notes.items()}
    assert kinds == {str(FIRST): ["verified"], str(SECOND): ["damaged"]}
    assert ckpt("verify", place / "run", "--json").json["results"][0]["generation"] == str(FIRST)


def test_what_is_wrong(ckpt: Ckpt, job: Job, place: Path) -> None:
    run = place / "run"
    assert "leave one of them out" in ckpt.refused("verify", run, "10", "--all", status=2)
    assert "leave one of them out" in ckpt.refused("verify", run, "--follow", "--all", status=2)
    assert "--timeout says when --follow ends" in ckpt.refused("verify", run, "--timeout", "1", status=2)
    assert "no checkpoint of step 7" in ckpt.refused("verify", run, "7", status=5)
    ledger.retire(job.store, History.load(job.store).decided(SECOND), "policy", clock=Clock())  # pyright: ignore[reportArgumentType]
    next((run / names.generation_prefix(SECOND) / "values").iterdir()).unlink()
    assert "was retired" in ckpt.refused("verify", run, SECOND, status=4)
    Job(file_store(place / "empty")).open()
    assert "no checkpoint to verify" in ckpt.refused("verify", place / "empty", "--all", status=5)


def test_following_ends_at_its_timeout(ckpt: Ckpt, job: Job, place: Path) -> None:
    told = ckpt("verify", place / "run", "--follow", "--timeout", "0", "--json")
    assert [result["generation"] for result in told.json["results"]] == [str(SECOND)]
    assert "no new commit after 0 s" in told.error
    spoil(place / "run", SECOND)
    spoil(place / "run", job.save(30).generation)
    assert "NOT WHOLE" in ckpt("verify", place / "run", "--follow", "--timeout", "0", status=1).out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_following_a_job_until_a_signal(job: Job, place: Path, number: int) -> None:
    command = [sys.executable, "-m", "ckptcli", "verify", str(place / "run"), "--follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    with processes.Job([process]) as watching:
        (watcher,) = watching.ranks
        assert json.loads(watcher.wait_for(str(SECOND)))["whole"]
        third = job.save(30).generation
        assert json.loads(watcher.wait_for(str(third)))["results"][0]["noted"]
        watcher.send(number)
        assert watcher.wait(timeout=30) == 0
        assert watcher.output.count("\n") == 2
