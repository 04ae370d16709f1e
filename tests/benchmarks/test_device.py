"""`benchmarks/device.py`: dry, on a CPU, and that what goes wrong is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from benchmarks import device, device_sections
from benchmarks.device_sections import Bench, Clock, Figures, Skipped, Wrong

ROOT = Path(__file__).parents[2]
NAMES = ["donation", "random state", "pinned", "staging", "blocking", "restore", "overlap", "several devices"]


@pytest.mark.whole
@pytest.mark.parametrize(("framework", "skipped"), [("torch", {"pinned", "several devices"}), ("jax", set())])
def test_a_dry_run(tmp_path: Path, framework: str, skipped: set[str]) -> None:
    into = tmp_path / "device.json"
    command = [sys.executable, "benchmarks/device.py", "--framework", framework, "--json", str(into), "--limit-seconds", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dry run on cpu" in done.stdout
    assert "nothing failed" in done.stdout
    found = json.loads(into.read_text())["result"][framework]
    assert found["dry_run"]
    assert list(found["sections"]) == NAMES
    assert {name for name, section in found["sections"].items() if "skipped" in section} == skipped
    assert all(found["sections"][name]["skipped"] == "no CUDA device" for name in skipped)
    assert found["sections"]["donation"]["rounds"] == 3
    assert "skipped: no CUDA device" in done.stdout or framework == "jax"


class Fake:
    """As much of a device as the sections below use."""

    accelerated = False


def outcomes(monkeypatch: pytest.MonkeyPatch, folder: Path, *sections: Callable[[Bench], Figures], left: float = 60.0) -> Figures:
    monkeypatch.setattr(device_sections, "SECTIONS", dict.fromkeys(sections, 0.0))
    fake: Any = Fake()
    return dict(device_sections.run(fake, folder, Clock(left)))


def good(_: Bench) -> Figures:
    return {"seconds": 1.0}


def bad(_: Bench) -> Figures:
    raise Wrong("other bits")


def not_here(_: Bench) -> Figures:
    raise Skipped("no CUDA device")


def test_a_section_that_fails_is_shown_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = outcomes(monkeypatch, tmp_path, bad, not_here, good)
    assert found["bad"]["error"] == "Wrong: other bits"
    assert found["not here"] == {"skipped": "no CUDA device"}
    assert found["good"]["seconds"] == 1.0
    told = capsys.readouterr().out
    assert "FAILED: Wrong: other bits" in told
    assert "in bad" in told  # the traceback
    assert "skipped: no CUDA device" in told


@pytest.mark.parametrize("accelerated", [False, True])
def test_a_dry_run_prints_no_ratios(
    accelerated: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {
        "floor_seconds": 0.0,
        "floor_gb_per_s": 70.0,
        "to_device_seconds": 1.0,
        "placing_ratio_to_floor": 583.0,
        "ratio": 2.0,
    }

    def restore(_: Bench) -> Figures:
        return figures

    monkeypatch.setattr(Fake, "accelerated", accelerated)
    found = outcomes(monkeypatch, tmp_path, restore)
    assert figures.items() <= found["restore"].items()
    told = capsys.readouterr().out
    assert "to device seconds 1.000" in told
    assert ("583" in told, "floor" in told, "ratio 2.00" in told) == (accelerated,) * 3


def test_sections_without_time_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert outcomes(monkeypatch, tmp_path, bad, good, left=0.5) == {name: {"skipped": "out of time"} for name in ("bad", "good")}


class Leaky:
    """A device whose snapshots are views: what is written later gets into the checkpoint."""

    accelerated = False

    def __init__(self) -> None:
        self.saved: dict[int, dict[str, np.ndarray]] = {}

    def state(self, nbytes: int) -> dict[str, np.ndarray]:
        return {"w": np.arange(nbytes // 4, dtype=np.float32)}

    def host(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array.copy().view(np.uint32) for name, array in state.items()}

    def overwrite(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        state["w"] += 1
        return state

    def checkpointer(self, _: str) -> Leaky:
        return self

    open_run = checkpointer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def save(self, step: int, components: dict[str, Any], **_: Any) -> Leaky:
        self.saved[step] = components["params"]
        return self

    def result(self, _: float) -> None:
        """At once."""

    def restore(self, *, components: str, step: int) -> dict[str, np.ndarray]:
        assert components == "params"
        return self.saved[step]


def test_a_snapshot_that_later_steps_reach_is_found_out(tmp_path: Path) -> None:
    leaky: Any = Leaky()
    with pytest.raises(Wrong, match="1 of 1 arrays have other bits: w"):
        device_sections.donation(Bench(leaky, tmp_path, Clock(60), 1 << 10))


def test_a_framework_that_fails_makes_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"torch": {"failed": True}, "jax": {"failed": False}}
    monkeypatch.setattr(device, "_framework", lambda name, _: results[name])
    assert device.main([]) == 1
    assert "FAILED: torch" in capsys.readouterr().out
    assert device.main(["--framework", "jax"]) == 0


def test_a_framework_that_is_not_installed_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    assert device.main([]) == 0
    assert "skipped: jax is not installed" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_framework", lambda *_: pytest.fail("it measures"))
    with pytest.raises(SystemExit):
        device.main(["--json", str(tmp_path / "none" / "device.json")])
