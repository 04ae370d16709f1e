"""Cases on the toy adapter: every outcome, and what is kept of a cell."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.cases.corpus import Corpus
from ckpt_conformance.cases.scenario import Case, cases
from ckpt_conformance.cases.states import state_of
from ckpt_conformance.jobs.adapter import Adapter
from ckpt_conformance.jobs.bench import Bench, Column, Options, columns
from ckpt_conformance.jobs.execute import run_case, slug
from ckpt_conformance.oracle import checker
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.results import Result
from tests.conformance.toy_adapter import DESCRIBE

GIVEN = shlex.join([sys.executable, str(Path(__file__).parent / "toy_adapter.py")])
TOY = Adapter(name="toy", given=GIVEN, describe=DESCRIBE)
STATE = state_of(
    "s", {"components": {"step": {"scope": "global"}}, "leaves": [{"component": "step", "name": "step", "value": "int"}]}
)
DONE = {"exit": "done"}


def save(*steps: int, expect: Any = DONE, **rest: Any) -> dict[str, Any]:
    return {"do": "save", "state": "s", "saves": list(steps), "expect": expect, **rest}


def latest(step: int | None, **rest: Any) -> dict[str, Any]:
    return {"do": "latest", "expect": {"exit": "done", "answer": {"step": step}}, **rest}


def case(*steps: dict[str, Any], **rest: Any) -> Case:
    table = {"title": "t", "why": "w", "clauses": ["P-1"], "cases": {"c": {}}, "steps": list(steps), **rest}
    (made,) = cases("f/x", table)
    return made


def bench_of(tmp_path: Path, **rest: Any) -> Bench:
    options = Options(adapters=(TOY,), scenarios="", work=str(tmp_path / "work"), **rest)
    return Bench(options, Corpus(cases={}, states={"s": STATE}))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_of(tmp_path) as made:
        yield made


def run(bench: Bench, *steps: dict[str, Any], column: Column | None = None, **rest: Any) -> Result:
    return run_case(case(*steps, **rest), column or Column(TOY, TOY), bench)


def test_a_case_passes(bench: Bench) -> None:
    found = run(bench, save(1, 2, processes=2), latest(2), latest(None, run="other"))
    assert (found.outcome, found.message, found.case, found.column, found.clauses) == ("passed", "", "f/x.c", "toy", ["P-1"])
    assert [step.title for step in found.steps] == ["save steps 1, 2 on 2 processes", "latest", "latest in the run other"]
    assert found.steps[0].found[1]["exit"] == "done"
    assert "--- rank 1, process" in found.steps[0].log
    assert found.steps[0].store == {"incarnations": {}, "generations": {}}
    assert not (bench.folder / "cells" / "f-x.c").joinpath("toy").exists()


def test_a_case_fails_and_stops(bench: Bench) -> None:
    found = run(bench, save(1), latest(2), save(3))
    assert (found.outcome, len(found.steps)) == ("failed", 2)
    assert found.message == "step 2, latest: rank 0: answer.step is 1, expected 2"


@pytest.mark.parametrize(
    ("order", "outcome", "message"),
    [
        ("crash", "failed", "rank 0: expected done, found exit status 1"),
        ("garble", "failed", "rank 0: the last line of its output is no JSON object"),
        ("cannot", "not-offered", "the adapter said that it cannot: toys cannot"),
        ("die", "error", "exit status 3: dying as ordered"),
    ],
)
def test_ways_to_fail(bench: Bench, order: str, outcome: str, message: str) -> None:
    found = run(bench, save(1, run_id=order))
    assert found.outcome == outcome
    assert message in found.message


def test_a_refusal_may_be_expected(bench: Bench) -> None:
    assert run(bench, save(101, expect={"exit": "refused", "error": ["call", "store"]})).outcome == "passed"
    assert run(bench, save(101, expect={"exit": "refused", "error": "store"})).outcome == "failed"


def test_a_killed_process_is_expected_by_rank(bench: Bench) -> None:
    point = {"name": "before-data", "rank": 1, "action": "kill"}
    assert run(bench, save(1, processes=2, failpoint=point, expect={"exit": ["gone", "killed"]}), latest(1)).outcome == "passed"
    spared = save(1, processes=2, failpoint={**point, "step": 7}, expect={"exit": ["gone", "killed"]})
    assert run(bench, spared).message.endswith("rank 1: expected killed, found done")


def test_a_traceback_is_no_end_of_a_survivor(bench: Bench) -> None:
    point = {"name": "before-data", "rank": 1, "action": "kill"}
    found = run(bench, save(1, processes=2, failpoint=point, run_id="crash", expect={"exit": ["gone", "killed"]}))
    assert found.message.endswith("rank 0: expected gone, found exit status 1")


def background(**rest: Any) -> dict[str, Any]:
    step = save(1, failpoint={"name": "before-data", "rank": 0, "action": "stop"}, background="slow", **rest)
    return {key: value for key, value in step.items() if key != "expect"}


def test_a_stopped_job_is_let_go_on_or_killed(bench: Bench) -> None:
    release = {"do": "release", "job": "slow", "expect": {"exit": "done", "answer": {"saves": [{"outcome": "committed"}]}}}
    assert run(bench, background(), latest(None), release, latest(1)).outcome == "passed"
    found = run(bench, background(), {"do": "kill", "job": "slow"}, latest(None))
    assert found.outcome == "passed"
    assert found.steps[1].found[0]["exit"] == "killed by signal 9"


def test_a_job_that_is_left_is_killed(bench: Bench) -> None:
    assert run(bench, background(), latest(None)).outcome == "passed"
    assert run(bench, background(run_id="hang")).outcome == "passed"


def test_a_job_that_does_not_stop_is_told_of(bench: Bench) -> None:
    step = background()
    found = run(bench, {**step, "failpoint": {**step["failpoint"], "step": 7}})
    assert "rank 0 (process" in found.message
    assert "ended before it stopped" in found.message
    assert found.steps[0].found[0]["exit"] == "done"


def test_waiting_for_an_object(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(bench, save(1), {"do": "wait", "key": "toy.json"}).outcome == "passed"
    monkeypatch.setattr("ckpt_conformance.jobs.cell.WAIT", 0)
    assert "other.json is not there" in run(bench, save(1), {"do": "wait", "key": "other.json"}).message


def test_what_the_store_must_hold(bench: Bench) -> None:
    assert run(bench, save(1), {"do": "store", "incarnations": {}, "generations": {}}).outcome == "passed"
    found = run(bench, save(1), {"do": "store", "generations": {"1/1/1": {"decision": "commit"}}})
    assert found.message.endswith("generation 000001-000000000001-1 is not in the store")


def test_a_copy_and_damage(bench: Bench) -> None:
    damage = {"do": "damage", "run": "copy", "ops": [{"replace": "toy.json", "with": "7"}]}
    found = run(bench, save(1), {"do": "copy", "from": "main", "to": "copy"}, damage, latest(7, run="copy"), latest(1))
    assert (found.outcome, found.message) == ("passed", "")


def test_what_the_checker_finds_fails_the_case(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "check", lambda place, damaged: [Problem("ledger/x.json", "R-1", "is garbage")])  # noqa: ARG005
    found = run(bench, save(1))
    assert found.message == "step 1, save step 1: ledger/x.json: is garbage (R-1)"


def test_a_decisive_record_that_changes_fails_the_case(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "decisive", lambda place: {"toy.json": place.read("toy.json") or b""})
    assert run(bench, save(1), latest(1)).outcome == "passed"
    assert run(bench, save(1), latest(1), save(2)).message == "step 3, save step 2: toy.json has changed (R-9)"
    damage = {"do": "damage", "ops": [{"replace": "toy.json", "with": "7"}]}
    assert run(bench, save(1), damage, latest(7)).outcome == "passed"
    assert run(bench, save(1), damage, latest(7), save(2)).message == "step 4, save step 2: toy.json has changed (R-9)"


def test_what_the_suite_gets_wrong_is_an_error(bench: Bench) -> None:
    found = run(bench, save(1), {"do": "damage", "ops": [{"sing": "toy.json"}]})
    assert found.outcome == "error"
    assert "the suite itself failed: ValueError" in found.message
    assert "Traceback" in found.steps[-1].log


@pytest.mark.parametrize(
    ("rest", "reason"),
    [({"needs": ["uneven"]}, "toy: uneven"), ({"steps": [{"do": "recover", "expect": DONE}]}, "toy: verb recover")],
)
def test_a_case_that_is_not_offered_is_not_run(bench: Bench, rest: dict[str, Any], reason: str) -> None:
    found = run(bench, save(1), **rest)
    assert (found.outcome, found.message, found.steps) == ("not-offered", reason, [])


def test_expected_failures_are_strict(tmp_path: Path) -> None:
    with bench_of(tmp_path, expected={"toy": {"f/x.c": "toys are so."}}) as bench:
        found = run(bench, latest(1))
        assert (found.outcome, found.bad) == ("expected-failure", False)
        assert found.message.startswith("toys are so. step 1, latest")
        found = run(bench, latest(None))
        assert (found.outcome, found.bad) == ("unexpected-pass", True)
        found = run(bench, save(1), needs=["uneven"])
        assert (found.outcome, found.message) == ("error", "expected to fail (toys are so.), and not offered: toy: uneven")


def test_what_cannot_be_kept_hides_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with bench_of(tmp_path, dir=str(tmp_path / "file"), keep=True) as bench:
        found = run(bench, save(1), latest(2))
        assert found.outcome == "failed"
        assert found.message.startswith("step 2, latest: rank 0: answer.step is 1, expected 2\nWhat the cell left")
        assert run(bench, save(1), latest(1)).outcome == "error"


def test_leading_saves_are_run_once_and_copied(bench: Bench) -> None:
    """The same saves first: what the second case starts with is what the first one's process answered."""
    first = run(bench, save(1), save(2), latest(2))
    second = run(bench, save(1), save(2), latest(2), latest(2))
    other = run(bench, save(1), save(3), latest(3))
    assert [found.outcome for found in (first, second, other)] == ["passed"] * 3
    assert second.steps[:2] == first.steps[:2]
    assert (other.steps[0] == first.steps[0], other.steps[1] == first.steps[1]) == (True, False)
    assert second.steps[2] != first.steps[2]


def test_what_is_copied_is_watched_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "decisive", lambda place: {"toy": place.read("toy.json") or b""})
    assert run(bench, save(1), latest(1)).outcome == "passed"
    assert run(bench, save(1), latest(1), save(2)).message.endswith("toy has changed (R-9)")


def test_failed_beginnings_are_not_copied(bench: Bench) -> None:
    expect = {"exit": "done", "answer": {"saves": [{"outcome": "aborted"}]}}
    found = [run(bench, save(1, expect=expect)) for _ in range(2)]
    assert [result.outcome for result in found] == ["failed", "failed"]
    assert found[0].steps != found[1].steps


@pytest.mark.parametrize(("keep", "kept"), [(False, ["f-x.c"]), (True, ["f-x.c", "f-y.c"])])
def test_failed_cells_are_kept_where_they_are_wanted(tmp_path: Path, keep: bool, kept: list[str]) -> None:  # noqa: FBT001
    with bench_of(tmp_path, dir=str(tmp_path / "kept"), keep=keep) as bench:
        run(bench, save(1), latest(2))
        (passing,) = cases("f/y", {"title": "t", "why": "w", "clauses": ["P-1"], "cases": {"c": {}}, "steps": [save(5)]})
        run_case(passing, Column(TOY, TOY), bench)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == kept
    assert (tmp_path / "kept" / "f-x.c" / "toy" / "store" / "main" / "toy.json").read_text() == "1"
    assert (tmp_path / "kept" / "f-x.c" / "toy" / "steps" / "2" / "0.request").exists()


def test_two_adapters_take_turns(bench: Bench) -> None:
    other = Adapter(name="other", given=f"{GIVEN} --other", describe={**DESCRIBE, "serve": False})
    found = run(bench, save(1), latest(1, adapter="b"), roles=2, column=Column(TOY, other))
    assert (found.outcome, found.column) == ("passed", "toy→other")
    lacking = Adapter(name="other", given=GIVEN, describe={**DESCRIBE, "verbs": ["save"]})
    found = run(bench, save(1), latest(1, adapter="b"), roles=2, column=Column(TOY, lacking))
    assert (found.outcome, found.message) == ("not-offered", "other: verb latest")


def test_columns_of_cases() -> None:
    other = Adapter(name="other", given="other")
    names = {
        (count, roles): [column.name for column in columns((TOY, other)[:count], roles)] for count in (1, 2) for roles in (1, 2)
    }
    assert names == {(1, 1): ["toy"], (1, 2): ["toy"], (2, 1): ["toy", "other"], (2, 2): ["toy→other", "other→toy"]}


def test_options_survive_the_way_to_another_process(tmp_path: Path) -> None:
    options = Options(adapters=(TOY,), scenarios="s", work=str(tmp_path), only=("a", "b"), expected={"toy": {"x": "y"}})
    assert Options.from_json(options.to_json()) == options


def test_storage_and_credentials_are_said_for_a_test_server_only() -> None:
    plain = Options(adapters=(TOY,), scenarios="", work="")
    server = Options(adapters=(TOY,), scenarios="", work="", store="s3://bucket/x", endpoint="http://127.0.0.1:1", region="r")
    assert (plain.kind, plain.storage, plain.environment) == ("file", {}, {})
    assert (server.kind, server.storage) == ("s3", {"endpoint": "http://127.0.0.1:1", "region": "r"})
    assert server.environment["AWS_ACCESS_KEY_ID"] == "test"


def test_names_of_folders() -> None:
    assert slug("crash/x.before-index") == "crash-x.before-index"
    assert slug("jax→torch") == "jax-to-torch"
