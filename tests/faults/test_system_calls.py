"""Every system call of a save fails once, or all do from one on (spec: S-5, S-12, S-13, S-15, P-55).

`walk.py` makes the saves, and asserts after each of them what must hold whatever failed: a commit that was acknowledged is
there and verifies; one that was refused is no commit; one whose outcome was unknown is settled by the next save or the next
start; the job goes on. Here the faults are named, and what may come of them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.ckptcore.support import memory_directory
from tests.faults.interposer import Control
from tests.faults.walk import Fault
from tests.processes import ROOT

pytestmark = pytest.mark.slow

ARRAYS = "*/state/*"
TIMEOUT = 100


def walked(fault: Fault) -> list[dict[str, Any]]:
    """One line a save; the last of them met no fault any more."""
    with memory_directory() as folder:
        control = Control(folder / "control")
        environment = {**os.environ, **control.environment, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.faults.walk", str(folder), str(control.path), json.dumps(asdict(fault))]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0, f"after {lines[-1:]}:\n{done.stderr}"
    assert [line["hits"] > 0 for line in lines] == [True] * (len(lines) - 1) + [False]
    assert lines[-1]["outcome"] == "committed"
    return lines[:-1]


def outcomes(lines: list[dict[str, Any]]) -> set[str]:
    return {line["outcome"] for line in lines}


def places(lines: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Each call that failed, and the folder that it was for, without what differs from save to save."""
    return {(call, re.sub(r"[^/]*[0-9a-f]{10,}[^/]*/?", "", Path(path).parent.as_posix())) for call, path in calls(lines)}


def calls(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call, path) for call, _, path in (line["call"].partition(" ") for line in lines)]


def test_each_call_for_a_record_fails_once() -> None:
    """An I/O error for one call of one put: it is tried again, and the save commits (S-5, S-12)."""
    lines = walked(Fault(unlike=ARRAYS))
    refused = [call for line, call in zip(lines, calls(lines), strict=True) if line["outcome"] != "committed"]
    # The folders of the databases are TensorStore's to make, and to sync in a merge: it does not try again.
    assert {call for call, _ in refused} <= {"mkdir", "fsync"}
    assert all(path.count("/") <= 2 for _, path in refused)
    generation = "generations/"
    for folder in (f"{generation}values", f"{generation}layouts", f"{generation}receipts", f"{generation}index", "ledger"):
        assert {call for call, place in places(lines) if place == folder} >= {"open64", "write", "fsync", "link", "unlink"}, (
            folder
        )


def test_each_call_for_an_array_fails_once() -> None:
    """An I/O error is never lost, of TensorStore's own calls neither: no rank's part is signed off without its data."""
    lines = walked(Fault(files=ARRAYS))
    own = [line for line in lines if re.search(r"^(open64|pwrite64|fsync) .*/state/ranks/[^/]*/(d/|manifest)", line["call"])]
    assert outcomes(own) == {"save-failed"}
    assert {line["call"].split()[0] for line in own} == {"open64", "pwrite64", "fsync"}
    assert all("rank 0 could not write its part" in line["told"] and "Input/output error" in line["told"] for line in own)
    merging = [line for line in lines if re.search(r"(writev|rename) .*/state/(d/|manifest)", line["call"])]
    assert outcomes(merging) == {"commit-unknown"}


STRIDE = 6
"""Sticky faults fail all calls that follow, so that neighbours differ little."""


@pytest.mark.parametrize(
    ("fault", "possible"),
    [
        pytest.param(Fault(sticky=True, stride=STRIDE), {"committed", "save-failed", "commit-unknown"}, id="dead disk"),
        pytest.param(
            Fault(error=errno.ENOSPC, sticky=True, stride=STRIDE), {"committed", "save-failed", "commit-unknown"}, id="full disk"
        ),
        # An abort is small: it is what finds room where the index did not.
        pytest.param(Fault(error=errno.EDQUOT, stride=7), {"committed", "save-failed", "save-aborted"}, id="quota for a moment"),
        pytest.param(Fault(after=True, stride=8), {"committed", "save-failed", "commit-unknown"}, id="lost answer"),
        pytest.param(Fault(error=errno.EINTR, stride=9), {"committed", "save-failed", "commit-unknown"}, id="interrupted"),
        pytest.param(Fault(kinds=("read",), stride=2), {"committed", "save-failed", "commit-unknown"}, id="unreadable"),
    ],
)
def test_what_may_come_of_a_fault(fault: Fault, possible: set[str]) -> None:
    """Whatever fails, the outcome is one of these, and `walk` holds the store to it (S-5, S-15)."""
    lines = walked(fault)
    assert outcomes(lines) <= possible
    assert "committed" in outcomes(lines), "no call failed that a save can do without"
    assert len(outcomes(lines)) > 1, "no call failed that a save cannot do without"


def test_a_ledger_directory_that_cannot_be_synced_leaves_the_outcome_unknown() -> None:
    """The manifest has its name, but a power cut may take it: not acknowledged, and not refused (S-5, S-13)."""
    first, *_ = walked(Fault(files="ledger", kinds=("fsync",), sticky=True))
    assert (first["outcome"], first["decided"]) == ("commit-unknown", "commit")
    assert "may not survive a power cut" in first["told"]


def test_values_that_find_no_room_abort_the_save() -> None:
    """The other ranks and the next start know at once: the abort, in another folder, is recorded (S-15)."""
    lines = walked(Fault(files="*/values/*", kinds=("open", "write", "fsync", "link"), error=errno.ENOSPC, sticky=True))
    assert [(line["outcome"], line["decided"]) for line in lines] == [("save-failed", "abort")] * 4
    assert all("rank 0" in line["told"] and "Make room" in line["told"] for line in lines)


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSPC])
def test_a_temporary_file_that_cannot_be_removed_has_no_part_in_the_outcome(error: int) -> None:
    """It is hidden and no key (S-11); append-only directories refuse its removal, and some file systems need room for it."""
    assert outcomes(walked(Fault(files="*/.tmp-*", kinds=("unlink",), error=error, sticky=True, stride=4))) == {"committed"}
