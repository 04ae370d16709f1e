"""`make demo-failures` as a person runs it, and that its claims would not hold of other runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ckptcore.sampler import Sampler
from ckptsupervise import leftovers
from demo.failures import history, plan, tables
from demo.failures.claims import coverage
from demo.failures.history import RankLog, Step
from demo.failures.plan import BATCH, FAULTS, RANKS, SAMPLES, Mark, Plan
from demo.screen import COLUMNS
from tests.processes import ROOT

TOTAL = 2 * plan.STEPS_PER_EPOCH


def rank_log(rank: int, size: int, start: int, last: int) -> RankLog:
    cursor, part = Sampler(SAMPLES, BATCH, seed=7), BATCH // size

    def step(number: int) -> Step:
        return Step(f"{number}.0", f"{number}", tuple(cursor.ids((number - 1) * BATCH + rank * part, part).tolist()))

    position = last * BATCH if last == TOTAL else None
    return RankLog(start=start, size=size, slot=rank, steps={n: step(n) for n in range(start + 1, last + 1)}, position=position)


def attempt(size: int, start: int, last: int) -> list[RankLog]:
    return [rank_log(rank, size, start, last) for rank in range(size)]


def run() -> dict[int, list[RankLog]]:
    """Step 6 is lost, an attempt comes to nothing, then there are 3 ranks, and 4 again."""
    return {1: attempt(4, 0, 6), 2: attempt(4, 5, 9), 3: [RankLog(), RankLog()], 4: attempt(3, 8, 12), 5: attempt(4, 12, TOTAL)}


def claims(logs: dict[int, list[RankLog]]) -> list[bool]:
    return [check.held for check in coverage(history.history(logs), logs, TOTAL)]


def test_what_was_lost_is_made_again_and_counts_once() -> None:
    found = history.history(run())
    assert [found[step].attempt for step in (5, 6, 8, 9, 12, 13)] == [1, 2, 2, 4, 4, 5]
    assert sorted(found) == list(range(1, TOTAL + 1))
    assert claims(run()) == [True, True, True]


def test_a_step_that_not_all_ranks_have_made_does_not_count() -> None:
    logs = run()
    del logs[2][3].steps[7]
    assert 7 not in history.history(logs)
    assert claims(logs) == [False, False, True]


def test_a_resume_past_the_checkpoint_is_found() -> None:
    logs = run()
    logs[4] = attempt(3, 10, 12)
    assert claims(logs) == [False, False, True]


def test_ranks_that_resume_from_different_steps_are_found() -> None:
    logs = run()
    logs[2][1].start = 4
    assert claims(logs)[0] is False


@pytest.mark.parametrize("number", [3, 10])
def test_one_sample_in_place_of_another_is_found(number: int) -> None:
    logs = run()
    ranks = logs[1] if number == 3 else logs[4]
    step = ranks[0].steps[number]
    ranks[0].steps[number] = replace(step, samples=(step.samples[1], *step.samples[1:]))
    assert claims(logs) == [True, False, False]


def test_samples_in_another_order_are_found() -> None:
    logs = run()
    logs[5][0].steps[14], logs[5][0].steps[15] = logs[5][0].steps[15], logs[5][0].steps[14]
    assert claims(logs) == [True, True, False]


def test_a_cursor_that_ends_elsewhere_is_found() -> None:
    logs = run()
    logs[5][2].position = BATCH
    assert claims(logs) == [True, True, False]


def test_all_that_four_ranks_have_made_is_compared_also_what_was_lost() -> None:
    reference = history.history({1: attempt(4, 0, TOTAL)})
    logs, until = history.undivided(run(), 4)
    assert (list(logs), until) == ([1, 2, 3], 8)
    assert history.differences(logs, reference) == (4 * (6 + 4), [])
    logs[1][2].steps[6] = replace(logs[1][2].steps[6], state="another")
    assert history.differences(logs, reference) == (39, ["step 6 of rank 2 in attempt 1"])


def test_a_run_that_was_never_divided_is_compared_to_its_end() -> None:
    logs = {1: attempt(4, 0, TOTAL)}
    assert history.undivided(logs, 4) == (logs, TOTAL)


def done(count: int, number: int = 1) -> dict[str, Mark]:
    return {fault.name: Mark(attempt=number, step=1, at=0.0) for fault in FAULTS[:count]}


@pytest.mark.parametrize(
    ("count", "number", "expected"),
    [
        (0, 1, "straggler"),
        (1, 1, "kill"),  # the straggler ends no attempt
        (2, 1, None),
        (2, 2, "hang"),
        (6, 1, None),
        (6, 2, "failure-again"),
        (7, 2, None),
    ],
)
def test_one_fault_an_attempt_in_their_order(count: int, number: int, expected: str | None) -> None:
    found = plan.due(done(count), number)
    assert (found.name if found else None) == expected


def test_faults_come_between_two_saves() -> None:
    kill = FAULTS[1]
    assert [step for step in range(41, 80) if plan.is_moment(kill, step, step - 40)] == [56, 66, 76]


def test_a_fault_is_noted_for_those_who_come_later(tmp_path: Path) -> None:
    assert plan.marks(tmp_path) == {}
    plan.note(tmp_path, "coordinator", attempt=4, step=90, generation="000004-000000000090-1")
    (found,) = plan.marks(tmp_path).items()
    assert (found[0], found[1].attempt, found[1].generation) == ("coordinator", 4, "000004-000000000090-1")


def test_a_plan_survives_the_command_line() -> None:
    made = Plan(framework="torch", url="/a b", folder="c", cache="d", faults=True)
    assert Plan.from_json(made.to_json()) == made


def test_a_line_that_a_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    lines: Sequence[dict] = ({"start": 4, "size": 4, "slot": 2}, {"step": 5, "loss": "0x1p0", "state": "a", "samples": [3]})
    folder = tmp_path / "attempt-002"
    folder.mkdir()
    for rank in (10, 9):
        (folder / f"rank-{rank}.jsonl").write_text("\n".join([*map(json.dumps, lines), f'{{"step": {rank}, "lo']))
    assert history.read(tmp_path) == {2: [RankLog(start=4, size=4, slot=2, steps={5: Step("0x1p0", "a", (3,))})] * 2}


def test_tables_are_aligned() -> None:
    lines = tables.aligned([("attempt", "kind", "step"), ("1", "hang", "1234"), ("12", "out-of-memory", "7")])
    assert lines[0] == "attempt  kind           step"
    assert lines[2:] == ["      1  hang           1234", "     12  out-of-memory     7"]


def test_an_unknown_framework_is_refused(tmp_path: Path) -> None:
    from demo.failures.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["--framework", "numpy", "--dir", str(tmp_path / "new")])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_signal_ends_supervisors_and_ranks_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.failures", "--framework", "torch"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as demo:
        try:
            while len(leftovers.members(tmp_path)) < 2 * RANKS:
                assert demo.poll() is None
                time.sleep(0.05)
            demo.send_signal(signal.SIGTERM)
            _, errors = demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert (demo.returncode, errors) == (143, "The demo was stopped by SIGTERM; its supervisors and ranks were ended.\n")
    assert leftovers.members(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_everything_goes_wrong_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.failures", "--json", "--dir", str(tmp_path / "demo")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert max(map(len, ran.stderr.splitlines())) <= COLUMNS
    figures = json.loads(ran.stdout)
    assert figures["held"]
    assert [each["framework"] for each in figures["frameworks"]] == ["jax", "torch"]
    for each in figures["frameworks"]:
        assert len(each["checks"]) > 20
        assert all(check["held"] for check in each["checks"])
        incidents = each["supervision"]["incidents"]
        assert [incident["kind"] for incident in incidents] == ["signal", "hang", "signal", "exit", "exit"]
        assert [incident["slot"] for incident in incidents] == [1, 2, 0, 3, 3]
        assert all(incident["recovered"] for incident in incidents)
        assert each["supervision"]["outcome"] == "finished"
