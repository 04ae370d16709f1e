"""A process is stopped by SIGSTOP in the midst of a save and wakes up later (spec: P-34, P-38, P-56, S-5).

Nothing waits for it beyond a deadline, whose error names it. When it wakes it learns what was decided, and decides nothing else.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ckptcore.names import GenerationId
from ckptcore.store import open_store
from tests.ckptcore.support import contents
from tests.faults.after import decided, start_again
from tests.faults.member import SCRIPT, Act, Plan
from tests.torchckpt.procs import Job

pytestmark = pytest.mark.slow

SECOND = GenerationId(1, 2, 1)


def plan_of(tmp_path: Path, act: Act, timeout: float, grace: float = 60.0) -> Plan:
    url = str(tmp_path / "run")
    return Plan(url=url, folder=str(tmp_path), steps=[1, 2, 3], acts=[act], hold=[2], timeout=timeout, grace=grace)


@pytest.mark.parametrize("at", ["staged", "written"])
def test_a_rank_that_stalls_is_named_and_learns_of_the_abort(tmp_path: Path, at: str) -> None:
    """Without its receipt the save is aborted after the coordinator's deadline; its late receipt changes nothing."""
    plan = plan_of(tmp_path, Act(step=2, rank=1, at=at, do="stop"), timeout=1.0)
    with Job(SCRIPT, args=[plan.text()]) as job:
        coordinator, stalled = job.ranks
        told = coordinator.wait_for("step 2:")
        assert "step 2: save-aborted (1,)" in told
        assert "no receipt from rank 1 of 2 within 1 s" in told
        before = decided(open_store(plan.url), SECOND)
        stalled.send(signal.SIGCONT)
        assert "step 2: save-aborted (1,)" in stalled.wait_for("step 2:")
        assert decided(open_store(plan.url), SECOND) == before
        plan.let_go("after-2")
        assert all("step 3: committed" in output for output in job.wait())
    assert start_again(plan.url) == 3


@pytest.mark.parametrize("at", ["staged", "receipts-complete", "proven"])
def test_a_coordinator_that_stalls_hangs_nobody_and_decides_late(tmp_path: Path, at: str) -> None:
    """The others are told that the outcome is unknown; it is not lost: everything was delivered, so that it commits after all."""
    plan = plan_of(tmp_path, Act(step=2, rank=0, at=at, do="stop"), timeout=1.0, grace=0.5)
    with Job(SCRIPT, args=[plan.text()]) as job:
        stalled, other = job.ranks
        told = other.wait_for("step 2:")
        assert "step 2: commit-unknown" in told
        assert ("no receipt from rank 0" if at == "staged" else "rank 0 (the coordinator) has not decided") in told
        assert decided(open_store(plan.url), SECOND) is None
        stalled.send(signal.SIGCONT)
        assert "step 2: committed" in stalled.wait_for("step 2:")
        plan.let_go("after-2")
        assert all("step 3: committed" in output for output in job.wait())
    assert start_again(plan.url) == 3


@pytest.mark.parametrize(
    ("at", "outcome"),
    [
        # It looks whether there is a decision before it proves anything; after that the fence stops it.
        ("receipts-complete", "committed"),
        ("proven", "superseded"),
    ],
)
def test_an_old_coordinator_that_wakes_up_after_a_new_job_has_settled(tmp_path: Path, at: str, outcome: str) -> None:
    """The new job rolls the save forward and goes on. The old one reports that, or that it is superseded; no record changes."""
    plan = plan_of(tmp_path, Act(step=2, rank=0, at=at, do="stop"), timeout=30.0)
    with Job(SCRIPT, args=[plan.text()]) as job:
        stalled = job.ranks[0]
        stalled.wait_for("doing stop")
        assert start_again(plan.url) == 2
        before = records_of(plan)
        stalled.send(signal.SIGCONT)
        assert f"step 2: {outcome}" in stalled.wait_for("step 2:")
        plan.let_go("after-2")
        # The other rank has seen the decision, or the claim before it.
        assert all("superseded" in output for output in job.wait())
        assert records_of(plan) == before
    assert start_again(plan.url) == 3


def records_of(plan: Plan) -> dict[str, bytes]:
    """Everything but the arrays: the merged root is derived, and may be made again."""
    return {key: data for key, data in contents(Path(plan.url)).items() if "/state/" not in key and "/.tmp-" not in key}
