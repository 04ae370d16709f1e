"""`ckpt status`: ages, costs and troubles of a run, once or again and again, for people, programs and Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ckptcli import schemas, status
from ckptcore import names
from ckptcore.attempts import AttemptIncident
from ckptcore.errors import StoreUnavailable
from ckptcore.proof import Refuted
from ckptcore.records import StagedRecord, encode
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.supervised import Supervised, never_begun, of_nodes, supervised
from tests.ckptcore.support import Job, file_store
from tests.ckptcore.training import train


def test_what_people_see(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10, 20])
    open_run(place / "run").verify(step=10, note=True)
    job = Job(file_store(place / "run"), 3)
    job.open()
    late = job.next_generation(25)
    job.coordinator().abort(late, Refuted("no receipt from rank 1, 2 of 3", (1, 2)))
    job.write(job.next_generation(30), 1)
    lines = dict(line.split("  ", 1) for line in ckpt("status", place / "run").out.splitlines())
    told = {name: text.strip() for name, text in lines.items()}
    assert told["newest committed"].endswith("ago, step 20 (000001-000000000020-1)")
    assert told["newest verified"].endswith("ago, step 10 (000001-000000000010-1)")
    assert told["steps at risk"] == "at least 10"
    assert told["newest save"].startswith("000001-000000000020-1, ")
    assert told["newest save"].endswith("/s")
    assert told["its phases"].startswith("stage ")
    assert ", write " in told["its phases"]
    assert told["of the one before"].startswith("receipt wait ")
    assert " of 2, " in told["slowest rank"]
    assert told["failed saves"] == "1 missing receipt"
    assert told["not yet deleted"] == "nothing"
    assert told["undecided"] == "000002-000000000030-1, no receipt from ranks 0, 2 of 3"


def test_too_old_is_a_no(ckpt: Ckpt, place: Path) -> None:
    train(place, [10], size=1)
    assert ckpt("status", place, "--max-age", "1h", "--json").json["fresh"] is True
    told = ckpt("status", place, "--max-age", "0s", status=1)
    assert "(older than --max-age)" in told.out
    assert ckpt("status", place, "--json").json["fresh"] is None


def test_nothing_to_resume_from_is_too_old(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place), 1).open()
    told = ckpt("status", place, "--max-age", "9d", status=1)
    assert "none: a failure now loses all work" in told.out


def test_what_is_on_the_nodes_only_is_not_told_to_be_lost(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place), 1)
    job.open()
    generation = job.next_generation(10)
    job.write(generation, 0)
    run_id, at = job.identity(generation, 0).run_id, job.clock.utc()
    record = StagedRecord(run_id=run_id, generation=str(generation), participants=1, decided=at, decided_by=job.number)
    job.store.put_if_absent(names.on_nodes_key(generation), encode(record))
    told = ckpt("status", place).out
    assert "none: all work is lost with the nodes, unless a start there goes on from what is whole on them" in told
    assert "a failure now loses all work" not in told


def test_again_and_again_whatever_the_store_says(ckpt: Ckpt, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(place, [10], size=1)
    slept: list[float] = []
    looks = 0
    look = status.core.status

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    def unsteady(store: object) -> object:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise StoreUnavailable("no answer")
        return look(store)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(status.time, "sleep", sleep)
    monkeypatch.setattr(status.core, "status", unsteady)
    told = ckpt("status", place, "--watch", "5", "--json", status=130)
    assert slept == [5.0] * 3
    assert [json.loads(line)["committed"]["step"] for line in told.out.splitlines()] == [10, 10]
    assert told.error.splitlines()[0] == "ckpt: no answer"


def test_for_prometheus(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10], size=1)
    ckpt("status", place / "run", "--prometheus", place / "ckpt.prom")
    text = (place / "ckpt.prom").read_text()
    assert "# HELP ckpt_newest_commit_step Completed updates in that checkpoint.\n" in text
    assert f'ckpt_newest_commit_step{{run="file://{place}/run"}} 10.0\n' in text


def test_bad_input(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10], size=1)
    assert "there is no run at" in ckpt.refused("status", place, status=5)
    assert "--max-age 'soon': expected a span" in ckpt.refused("status", place / "run", "--max-age", "soon", status=2)
    for watch in ("0", "-1", "nan", "inf", "1e10"):
        told = ckpt.refused("status", place / "run", "--watch", watch, status=2)
        assert f"--watch {float(watch):g}: expected seconds" in told
    assert "does not end in .prom" in ckpt.refused("status", place / "run", "--prometheus", place / "x", status=2)


def test_a_supervised_run_tells_its_incidents(ckpt: Ckpt, place: Path) -> None:
    supervised(place / "run")
    out = ckpt("status", place / "run").out
    facts, _, table = out.partition("\nattempt   at")
    told = dict(line.split("  ", 1) for line in facts.splitlines())
    assert told["attempt"].strip() == "5, 4 ranks (grown), trains"
    assert told["goodput"].strip().endswith("% of 2 h")
    assert told["lost time"].strip() == (
        "detect 10 min 10 s, relaunch 4 min 42 s, restore 17 s, recompute 11 min 10 s, blocked 12 s"
    )
    assert told["incidents"].strip() == "1 exit, 1 hang, 1 signal; one in 40 min"
    newest = told["newest incident"].strip()
    assert newest.startswith("exit of rank 2 (trainer-7, slot 2) in init, ")
    assert newest.endswith("; cost 7 min 30 s and 0 steps, caught up")
    assert [row.split()[0] for row in table.splitlines()[2:]] == ["1", "2", "3"]
    assert "rank 2 was killed by SIGKILL" in table


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        (["node-one"], "1, 2 ranks on node-one (start), no end recorded"),
        (["node-one", "node-two"], "1, 4 ranks on node-one, node-two (start), no end recorded"),
        (
            [f"n{number}" for number in range(10)],
            "1, 20 ranks on n0, n1, n2, n3, n4, n5, n6, n7 and 2 more (start), no end recorded",
        ),
    ],
)
def test_an_attempt_of_several_nodes_names_them(ckpt: Ckpt, place: Path, nodes: list[str], shown: str) -> None:
    of_nodes(place, *nodes)
    assert told_by(ckpt, place)["attempt"] == shown


def test_a_supervised_run_for_programs(ckpt: Ckpt, place: Path) -> None:
    supervised(place / "run")
    document = ckpt("status", place / "run", "--json").json
    Draft202012Validator(schemas.schema("status")).validate(document)
    told = document["supervision"]
    assert (told["attempt"], told["cause"], told["processes"], told["outcome"]) == (5, "grown", 4, None)
    parts = ("productive", "blocked", "detect", "relaunch", "restore", "recompute")
    assert told["wall_seconds"] == pytest.approx(sum(told[f"{part}_seconds"] for part in parts))
    assert told["goodput"] == pytest.approx(told["productive_seconds"] / told["wall_seconds"])
    assert [each["kind"] for each in told["incidents"]] == ["signal", "hang", "exit"]
    assert told["incidents"][1]["phase"] == "save"
    assert told["incidents"][0]["recompute_seconds"] == 300


def test_a_job_that_does_not_start_again(ckpt: Ckpt, place: Path) -> None:
    """One attempt, which has failed, and nothing since."""
    run = Supervised(place / "run")
    run.plan(0, "start")
    run.train(20, 4, {100: 600})
    run.end(700, 702, incident=AttemptIncident(kind="exit", message="no words\x1b[31m"), last_step=120, restored_step=0)
    out = ckpt("status", place / "run").out
    assert "1, 4 ranks (start), failed" in out
    assert "; cost 2 s, not caught up yet" in out
    assert "no words\\x1b[31m (not caught up yet)" in out


def test_a_run_that_nobody_supervises_looks_as_ever(ckpt: Ckpt, place: Path) -> None:
    train(place, [10], size=1)
    assert "supervision" not in ckpt("status", place, "--json").json
    assert {"attempt", "goodput", "incidents"}.isdisjoint(line.split("  ")[0] for line in ckpt("status", place).out.splitlines())


def told_by(ckpt: Ckpt, place: Path) -> dict[str, str]:
    facts = ckpt("status", place).out.partition("\nattempt   at")[0]
    return {name: told.strip() for name, told in (line.split("  ", 1) for line in facts.splitlines())}


def test_starts_tell_their_guarantee(ckpt: Ckpt, place: Path) -> None:
    supervised(place)
    told = told_by(ckpt, place)
    assert told["newest start"] == "incarnation 4, 3 → 4 ranks: coverage, from 000003-000000000650-1"
    assert told["ranks changed"] == "incarnation 3: 4 → 3 ranks: coverage"
    starts = ckpt("status", place, "--json").json["starts"]
    assert [(each["incarnation"], each["base_participants"], each["participants"], each["guarantee"]) for each in starts] == [
        (1, None, 4, None),
        (2, 4, 4, "exact"),
        (3, 4, 3, "coverage"),
        (4, 3, 4, "coverage"),
    ]


def test_a_start_that_has_no_base_yet(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place), 2).open()
    assert told_by(ckpt, place)["newest start"] == "incarnation 1, 2 ranks, fresh"
    (place / "incarnations" / "000001" / "base.json").unlink()
    assert told_by(ckpt, place)["newest start"] == "incarnation 1, 2 ranks, no base recorded yet"


def test_a_run_that_no_job_has_begun(ckpt: Ckpt, place: Path) -> None:
    never_begun(place)
    told = told_by(ckpt, place)
    assert told["newest committed"].startswith("none: no run has begun here")
    assert told["attempt"] == "2, 3 ranks (restart), failed"
    assert told["next"].startswith("its ranks end before they open the run, or their Checkpointer has another URL")
    assert "No module named 'jax'" in ckpt("status", place).out
    document = ckpt("status", place, "--json").json
    Draft202012Validator(schemas.schema("status")).validate(document)
    assert (document["begun"], document["committed"], document["supervision"]["outcome"]) == (False, None, "failed")
    assert ckpt("status", place, "--max-age", "9d", "--json", status=1).json["fresh"] is False
    ckpt("status", place, "--prometheus", place / "ckpt.prom")
    assert 'ckpt_incidents{kind="exit",run=' in (place / "ckpt.prom").read_text()


def test_what_to_do_about_a_run_that_no_job_has_begun(ckpt: Ckpt, place: Path) -> None:
    waiting = Supervised(place / "waiting")
    waiting.plan(0, "start")
    assert told_by(ckpt, place / "waiting")["next"].startswith("if its supervisor is still there, wait")
    elsewhere = Supervised(place / "elsewhere")
    elsewhere.plan(0, "start")
    elsewhere.end(9, 10, "finished", last_step=40)
    assert told_by(ckpt, place / "elsewhere")["next"].startswith("its ranks have trained, and opened no run here")
    silent = Supervised(place / "silent")
    silent.plan(0, "start")
    silent.end(9, 10, "finished")
    assert told_by(ckpt, place / "silent")["next"].startswith("all of its ranks have ended with status 0, and opened no run here")
    told = Supervised(place / "told")
    told.plan(0, "start")
    told.end(9, 10, "preempted")
    assert told_by(ckpt, place / "told")["next"] == "start the supervisor again: the job begins at step 0"
