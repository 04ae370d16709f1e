"""The commands that change one thing in a run: recover, rollback, quarantine, tag, pin, fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore import names, notes
from ckptcore.history import History, read_run
from ckptcore.incarnations import undecided
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, check_commits, contents, file_store

FIRST, SECOND, THIRD = (GenerationId(1, step, 1) for step in (10, 20, 30))


@pytest.fixture
def run(place: Path) -> Path:
    """A run with commits of steps 10, 20 and 30."""
    return trained(place / "run", 10, 20, 30)


def trained(path: Path, *steps: int) -> Path:
    job = Job(file_store(path))
    job.open()
    for step in steps:
        job.save(step)
    return path


def head(run: Path) -> GenerationId | None:
    found = History.load(file_store(run)).head()
    return found.generation if found else None


def leave(run: Path, *ranks: int) -> GenerationId:
    """A save that nobody has decided."""
    job = Job(file_store(run))
    job.open()
    generation = job.next_generation(40)
    for rank in ranks:
        job.write(generation, rank)
    return generation


# recover


def test_recover_shows_first_and_then_does_it(ckpt: Ckpt, run: Path) -> None:
    generation = leave(run, 0, 1)
    before = contents(run)
    told = ckpt("recover", run)
    assert f"{generation}  step 40  complete: --apply commits it" in told.out
    assert contents(run) == before
    (found,) = ckpt("recover", run, "--apply", "--json").json["generations"]
    assert (found["generation"], found["outcome"], found["missing"]) == (str(generation), "committed", [])
    assert head(run) == generation
    assert ckpt("recover", run).out == "nothing is undecided\n"


def test_recover_says_who_is_missing(ckpt: Ckpt, run: Path) -> None:
    generation = leave(run, 1)
    told = ckpt("recover", run, "--apply", status=1)
    assert "incomplete: left as it is" in told.out
    assert "no receipt from rank 0: nothing of it is there (P-12, P-35.1)" in told.out
    (found,) = ckpt("recover", run, "--json", status=1).json["generations"]
    assert found["missing"] == [0]
    assert found["details"][0]["key"] == names.receipt_key(generation, 0)
    assert undecided(file_store(run)) == [generation]


def test_recover_tells_what_nobody_can_know(ckpt: Ckpt, run: Path) -> None:
    generation = leave(run, 0, 1)
    (run / names.base_key(2)).unlink()
    assert f"{names.base_key(2)} of file://" in ckpt("recover", run, "--apply", status=3).out
    assert undecided(file_store(run)) == [generation]


def test_recover_without_a_run(ckpt: Ckpt, place: Path) -> None:
    assert "there is no run at" in ckpt.refused("recover", place, status=5)


# rollback


def test_rollback_shows_first_and_then_does_it(ckpt: Ckpt, run: Path) -> None:
    before = contents(run)
    told = ckpt("rollback", run, "--to", "10")
    assert f"the next start would resume from {FIRST} (step 10)" in told.out
    assert f"instead of: {THIRD}" in told.out
    assert "left behind, readable by name and never resumed from unasked: 2 checkpoints" in told.out
    assert "a job that still runs would stop at its next save" in told.out
    assert "no record tells whether its job lives" in told.out
    assert told.out.endswith("nothing was changed: --apply does it\n")
    assert contents(run) == before
    made = ckpt("rollback", run, "--to", FIRST, "--apply", "--json").json
    assert (made["incarnation"], made["generation"], made["strays"]) == (2, str(FIRST), [str(THIRD), str(SECOND)])
    assert head(run) == FIRST
    assert Job(file_store(run)).open().base_generation == FIRST


def test_rollback_settles_what_older_incarnations_left(ckpt: Ckpt, run: Path) -> None:
    complete = leave(run, 0, 1)
    made = ckpt("rollback", run, "--to", "10", "--json").json
    assert [(each["generation"], each["decision"]) for each in made["settles"]] == [(str(complete), "commit")]
    assert str(complete) in made["strays"]
    assert made["head"] == str(complete)
    ckpt("rollback", run, "--to", "10", "--apply")
    assert undecided(file_store(run)) == []
    assert head(run) == FIRST


def test_rollback_to_the_resume_point_changes_nothing_but_the_claim(ckpt: Ckpt, run: Path) -> None:
    assert "it is the resume point already" in ckpt("rollback", run, "--to", "30").out


def test_rollback_needs_no_head(ckpt: Ckpt, run: Path) -> None:
    """A lost base leaves it unknown, and this is the way out."""
    (run / names.base_key(1)).unlink()
    assert f"instead of: {names.base_key(1)} is missing" in ckpt("rollback", run, "--to", "20").out
    ckpt("rollback", run, "--to", "20", "--apply")
    assert head(run) == SECOND


@pytest.mark.parametrize("apply", [[], ["--apply"]])
def test_rollback_refuses_what_nobody_can_resume_from(ckpt: Ckpt, run: Path, apply: list[str]) -> None:
    open_run(run).quarantine(FIRST, "diverged")
    (run / names.receipt_key(SECOND, 1)).unlink()
    before = contents(run)
    assert "is marked quarantine: diverged" in ckpt.refused("rollback", run, "--to", "10", *apply, status=5)
    assert "is missing" in ckpt.refused("rollback", run, "--to", "20", *apply, status=4)
    assert "has no checkpoint of step 99" in ckpt.refused("rollback", run, "--to", "99", *apply, status=5)
    assert "is neither a step nor a generation" in ckpt.refused("rollback", run, "--to", "x", *apply, status=2)
    assert "Missing option '--to'" in ckpt("rollback", run, *apply, status=2).error
    assert contents(run) == before, "no claim stops a job for nothing"


def test_rollback_refuses_weights(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"))
    job.open()
    job.save(10)
    job.save(20, guarantee="weights")
    assert "is a new run, not a continuation" in ckpt.refused("rollback", place / "run", "--to", "20", status=2)


# quarantine, tag, pin


def test_quarantine(ckpt: Ckpt, run: Path) -> None:
    made = ckpt("quarantine", run, "30", "--reason", "loss\x1b[31m diverged")
    assert made.out == f"{THIRD} is quarantined: loss\\x1b[31m diverged\nthe next start resumes from {SECOND}\n"
    again = ckpt("quarantine", run, THIRD, "--reason", "another", "--json").json
    assert (again["reason"], again["head"]) == ("loss\x1b[31m diverged", str(SECOND))
    for step in ("10", "20"):
        last = ckpt("quarantine", run, step, "--reason", "too")
    assert "nothing is left that a start could resume from" in last.out


def test_tag_and_pin(ckpt: Ckpt, run: Path) -> None:
    assert ckpt("tag", run, "20", "good", "v1.0").out == f"{SECOND} is tagged good, v1.0\n"
    assert ckpt("pin", run, SECOND, "--reason", "a paper", "--json").json["reason"] == "a paper"
    told = notes.read(file_store(run), read_run(file_store(run)).run_id, SECOND)
    assert sorted(note.kind for note in told) == ["pin", "tag", "tag"]


def test_what_is_told_of_a_tag_or_a_pin_is_what_is_stored(ckpt: Ckpt, run: Path) -> None:
    ckpt("tag", run, "20", "old")
    assert ckpt("tag", run, "20", "b", "a", "b", "--json").json["tags"] == ["a", "b", "old"]
    ckpt("pin", run, "20", "--reason", "y")
    stored = ckpt("pin", run, "20", "--reason", "x" * 100_000, "--json").json["reason"]
    told = notes.read(file_store(run), read_run(file_store(run)).run_id, SECOND)
    assert len(stored) < 100_000
    assert stored in {note.text for note in told if note.kind == "pin"}


def test_a_note_on_nothing(ckpt: Ckpt, run: Path) -> None:
    before = contents(run)
    for command in (["quarantine", "--reason", "x"], ["pin", "--reason", "x"], ["tag"]):
        name, *rest = command
        tags = ["x"] if name == "tag" else []
        assert "has no checkpoint of step 99" in ckpt.refused(name, run, "99", *tags, *rest, status=5)
    assert "must be letters, digits" in ckpt.refused("tag", run, "10", "a b", status=2)
    assert "--reason is empty" in ckpt.refused("pin", run, "10", "--reason", " ", status=2)
    assert "Missing option '--reason'" in ckpt("quarantine", run, "10", status=2).error
    assert "Missing argument 'TAG…'" in ckpt("tag", run, "10", status=2).error
    assert contents(run) == before


# fork


def test_fork(ckpt: Ckpt, run: Path, place: Path) -> None:
    made = ckpt("fork", run, place / "new", "20", "--component", "params", "--json").json
    assert (made["generation"], made["components"]) == (str(SECOND), ["params"])
    assert made["run_id"] == read_run(file_store(place / "new")).run_id != made["parent_run_id"]
    told = ckpt("fork", run, place / "newer")
    assert f"it begins from {THIRD} of file://" in told.out
    assert "that one is pinned" in told.out
    check_commits(file_store(run))


def test_fork_to_where_a_run_is(ckpt: Ckpt, run: Path, place: Path) -> None:
    assert "holds a run already" in ckpt.refused("fork", run, run, status=2)
    assert "has no component 'nope'" in ckpt.refused("fork", run, place / "new", "--component", "nope", status=5)
    assert not (place / "new").exists()
