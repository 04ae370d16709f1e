"""Jobs of the real frameworks under supervision: any rank may be killed, and who failed first is told from who followed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptcore
from ckptcore.attempts import Attempts
from ckptsupervise import leftovers
from tests.ckptcore.support import file_store
from tests.processes import ROOT, Rank

pytestmark = [pytest.mark.whole, pytest.mark.timeout(180)]


def supervise(
    place: Path, framework: str, steps: int, faults: dict[str, str], *options: str, nodes: dict[str, Any] | None = None
) -> Rank:
    (place / "tmp").mkdir(exist_ok=True)
    program = ROOT / "tests" / "ckptsupervise" / f"train_{framework}.py"
    job = [sys.executable, str(program), str(place / "run"), str(steps), json.dumps(faults), json.dumps(nodes or {})]
    command = [sys.executable, "-m", "ckptcli", "supervise", "--run", str(place / "run"), "--nproc", "3", *options, "--", *job]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place / "tmp"), "JAX_PLATFORMS": "cpu"}
    return Rank(subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_killed_ranks_and_a_smaller_job(tmp_path: Path, framework: str) -> None:
    """Rank 0, which others cannot do without; then another one, twice: its slot is left out."""
    faults = {"1:0:15": "SIGKILL", "2:2:13": "SIGKILL", "3:2:14": "SIGKILL"}
    ckpt = supervise(tmp_path, framework, 40, faults, "--min-nproc", "2", "--grow-after", "1h")
    try:
        assert ckpt.wait(timeout=150) == 0, ckpt.output
    finally:
        ckpt.end()
        leftovers.end(tmp_path / "tmp")
    attempts = Attempts(file_store(tmp_path / "run")).load()
    assert [each.plan.slots for each in attempts] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1]]
    incidents = [each.end.incident for each in attempts if each.end is not None]
    blamed = [(each.kind, each.rank, each.status) for each in incidents if each is not None]
    assert blamed == [("signal", rank, -signal.SIGKILL) for rank in (0, 2, 2)]
    run = ckptcore.open_run(tmp_path / "run")
    last = run.status().starts[-1]
    assert (last.before, last.participants, last.guarantee) == (3, 2, "coverage"), "recorded in the incarnation"
    head = run.head()
    assert head is not None
    assert head.step == 40
    run.verify(deep=True)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_preemption(tmp_path: Path, framework: str) -> None:
    ckpt = supervise(tmp_path, framework, 10**6, {})
    try:
        ckpt.wait_for("training is at step", timeout=100)
        ckpt.send(signal.SIGTERM)
        assert ckpt.wait(timeout=60) == 143, ckpt.output
    finally:
        ckpt.end()
        leftovers.end(tmp_path / "tmp")
    (attempt,) = Attempts(file_store(tmp_path / "run")).load()
    assert attempt.end is not None
    assert (attempt.end.outcome, attempt.end.incident) == ("preempted", None)
    run = ckptcore.open_run(tmp_path / "run")
    head = run.head()
    assert head is not None
    assert str(head.generation) == attempt.end.committed
    run.verify(deep=True)


@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize(
    ("lost", "copies", "step"),
    [("process", 0, 20), ("node", 1, 20), ("node", 0, 10)],
)
def test_a_crash_during_an_upload(tmp_path: Path, framework: str, lost: str, copies: int, step: int) -> None:
    """Each slot is a node. A dead process restores from its own, while the data in the run's store is away; what a lost node had
    is uploaded from its neighbour.
    """
    nodes = {"folder": str(tmp_path / "nodes"), "copies": copies, "kill": 20, "lost": lost == "node"}
    ckpt = supervise(tmp_path, framework, 30, {}, nodes=nodes)
    try:
        assert ckpt.wait(timeout=150) == 0, ckpt.output
    finally:
        ckpt.end()
        leftovers.end(tmp_path / "tmp")
    reason = "rolled-forward" if step == 20 else "newest"
    assert f"attempt 2 restored step {step}: {reason}" in ckpt.output, ckpt.output
    assert "passed over" not in ckpt.output
    first, _ = Attempts(file_store(tmp_path / "run")).load()
    assert first.end is not None
    assert first.end.incident is not None
    assert (first.end.incident.kind, first.end.incident.rank) == ("signal", 0)
    run = ckptcore.open_run(tmp_path / "run")
    head = run.head()
    assert head is not None
    assert head.step == 30
    run.verify(deep=True)
