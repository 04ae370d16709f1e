"""A run that may not be written, from the start or from the midst of a save on (spec: S-6, S-29).

Opening it for writing is refused in words that lead to the mount and the permissions; reading it works as ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ckptcore.errors import StoreError, StoreFull, StoreUnavailable, UnsafeStore
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from ckptcore.store import open_store
from tests.ckptcore.support import checkpointer, contents, state, weights
from tests.faults.after import decided, start_again
from tests.faults.disks import disk
from tests.faults.member import BIG, SCRIPT, Act, Plan
from tests.processes import ROOT
from tests.torchckpt.procs import Job

NOBODY = 65534


def save_one(url: Path) -> None:
    with checkpointer(url) as saver:
        saver.save(1, state(1)).result()


def check_refused(url: Path, reason: str) -> None:
    with checkpointer(url) as saver, pytest.raises(StoreError, match=reason) as caught:
        saver.restore_or_init(lambda: state(0), like=state(0))
    assert not isinstance(caught.value, StoreUnavailable | StoreFull | UnsafeStore)
    assert "Check the permissions and the mount" in str(caught.value)


def check_readable(url: Path) -> None:
    found = open_run(url).restore()
    np.testing.assert_array_equal(found["params"]["w"], weights(1))


def test_a_read_only_file_system_refuses_writers_alone() -> None:
    with disk(4 * BIG) as small:
        url = small.path / "run"
        save_one(url)
        small.remount("ro")
        before = contents(url)
        check_refused(url, "Read-only file system")
        check_readable(url)
        assert contents(url) == before
        small.remount("rw")
        save_one_more(url)


def save_one_more(url: Path) -> None:
    with checkpointer(url) as saver:
        assert saver.restore_or_init(lambda: state(0), like=state(0)).step == 1
        saver.save(2, state(2)).result()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may enter and nobody but this user may write; `tmp_path` cannot be entered."""
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


AS_NOBODY = f"""
import os, pathlib, sys
from tests.faults.test_read_only import check_readable, check_refused
url = pathlib.Path(sys.argv[1])
check_readable(url)  # whatever is imported late is imported now: the interpreter may lie where nobody may read
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
check_refused(url, "Permission denied")
check_readable(url)
print("as it should be")
"""


def test_a_directory_of_another_user_refuses_writers_alone(public: Path) -> None:
    """As root no permission binds: a process without privileges tries."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as another user")
    save_one(public / "run")
    before = contents(public / "run")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_NOBODY, str(public / "run")]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "as it should be\n", done.stderr
    assert contents(public / "run") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "ranks", "outcomes"),
    [("staged", [0, 1], ["save-failed", "save-failed"]), ("receipts-complete", [0], ["commit-unknown", "committed"])],
)
def test_a_mount_that_turns_read_only(tmp_path: Path, at: str, ranks: list[int], outcomes: list[str]) -> None:
    """As the kernel does to a file system with errors: no save becomes a broken commit, and after a remount all is decided."""
    with disk(16 * BIG) as small:
        url = small.path / "run"
        acts = [Act(step=2, rank=rank, at=at, do="pause") for rank in ranks]
        plan = Plan(url=str(url), folder=str(tmp_path), steps=[1, 2, 3], acts=acts, hold=[2])
        with Job(SCRIPT, args=[plan.text()]) as job:
            for rank in ranks:
                job.ranks[rank].wait_for(f"at {at}-2")
            small.remount("ro")
            plan.let_go(f"{at}-2")
            told, *_ = [job.ranks[rank].wait_for("step 2:") for rank in ranks]  # each of them while nothing can be written
            small.remount("rw")
            plan.let_go("after-2")
            outputs = job.wait()
        assert "Read-only file system" in told
        for output, outcome in zip(outputs, outcomes, strict=True):
            assert f"step 2: {outcome}" in output
            assert "step 3: committed" in output
        found = decided(open_store(url), GenerationId(1, 2, 1))
        assert found is None or found.committed == ("committed" in outcomes)
        assert start_again(url) == 3
