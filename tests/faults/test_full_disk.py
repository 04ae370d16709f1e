"""There is no room left in the midst of a save of two real processes (spec: S-15).

Whatever does not fit, the error says so and names the rank. The job goes on, earlier checkpoints are whole, and once there is
room again the next save commits, and decides what could not be decided.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore.names import GenerationId, receipt_key
from ckptcore.store import open_store
from tests.faults.after import decided, start_again
from tests.faults.disks import PAGE, disk
from tests.faults.member import BIG, SCRIPT, Act, Plan
from tests.processes import wait_for_file
from tests.torchckpt.procs import Job

pytestmark = pytest.mark.slow

SECOND = GenerationId(1, 2, 1)
METADATA = "m" * 5 * PAGE
"""Makes a manifest larger than an abort record by several pages."""
WROTE_NOTHING = "save-failed () rank 1 could not write its part of 000001-000000000002-1"


def pausing(at: str, rank: int) -> Act:
    return Act(step=2, rank=rank, at=at, do="pause")


@pytest.mark.parametrize(
    ("act", "room", "expected"),
    [
        # The large arrays do not fit, the receipt that says so does.
        pytest.param(pausing("staged", 1), BIG // 2, ["save-aborted", WROTE_NOTHING], id="arrays"),
        # Not even that: the others learn it when their deadline passes, and the abort does not fit either.
        pytest.param(pausing("staged", 1), 0, [None, WROTE_NOTHING], id="arrays and all that follows"),
        pytest.param(pausing("written", 1), 0, [None, WROTE_NOTHING], id="receipt"),
        # Everything was delivered: it is committed as soon as there is room.
        pytest.param(pausing("receipts-complete", 0), 0, ["commit-unknown", "committed"], id="index"),
        pytest.param(pausing("proven", 0), 0, ["commit-unknown", "committed"], id="manifest and abort"),
        pytest.param(pausing("proven", 0), 2 * PAGE, ["save-aborted", "save-aborted"], id="manifest"),
    ],
)
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, act: Act, room: int, expected: list[str | None]) -> None:
    """A real file system without a free page, from one point of the second save until its outcome."""
    with disk(16 * BIG) as small:
        url = small.path / "run"
        plan = Plan(url=str(url), folder=str(tmp_path), steps=[1, 2, 3], acts=[act], hold=[2], metadata=METADATA)
        with Job(SCRIPT, args=[plan.text()]) as job:
            point = f"{act.at}-{act.step}"
            job.ranks[act.rank].wait_for(f"at {point}")
            wait_for_file(url / receipt_key(SECOND, 0))  # Rank 0 has written all that it wants to before its verdict.
            small.fill(room=room)
            plan.let_go(point)
            told = job.ranks[0].wait_for("step 2:")
            small.empty()
            plan.let_go("after-2")
            outputs = job.wait()
        assert "Make room" in told or "step 2: save-aborted (1,) " in told
        for output, outcome in zip(outputs, expected, strict=True):
            assert outcome is None or f"step 2: {outcome}" in output
            assert "step 3: committed" in output
        found = decided(open_store(url), SECOND)
        assert found is not None
        assert found.committed == ("committed" in expected)
        assert start_again(url) == 3


@pytest.mark.parametrize(
    ("act", "rank_1"),
    [
        pytest.param(Act(step=2, rank=1, at="staged", do="limit", limit=BIG // 2), WROTE_NOTHING, id="arrays"),
        pytest.param(Act(step=2, rank=1, at="written", do="limit", limit=1000), WROTE_NOTHING, id="receipt"),
        pytest.param(Act(step=2, rank=0, at="receipts-complete", do="limit", limit=1000), "save-aborted", id="index"),
        pytest.param(Act(step=2, rank=0, at="proven", do="limit", limit=PAGE), "save-aborted", id="manifest"),
    ],
)
def test_files_that_may_not_grow(tmp_path: Path, act: Act, rank_1: str) -> None:
    """EFBIG by RLIMIT_FSIZE: records that are small enough can still be written, so that the abort is decided at once."""
    url = tmp_path / "run"
    plan = Plan(url=str(url), folder=str(tmp_path), steps=[1, 2, 3], acts=[act], metadata=METADATA, timeout=60.0)
    with Job(SCRIPT, args=[plan.text()]) as job:
        outputs = job.wait()
    for output, outcome in zip(outputs, ["save-aborted", rank_1], strict=True):
        told = next(line for line in output.splitlines() if line.startswith("step 2:"))
        assert told.startswith(f"step 2: {outcome}")
        assert "File too large" in told
        assert "rank 1" in told if act.rank == 1 else "no room left to commit it" in told
        assert "step 3: committed" in output
    found = decided(open_store(url), SECOND)
    assert found is not None
    assert not found.committed
    assert start_again(url) == 3
