"""What a record says of the machine: enough, and nothing that names it."""

import json
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import machine
from tests.benchmarks.results import MACHINE


def test_describes_hardware_and_versions(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    assert found["cores"] >= 1
    assert found["memory_gib"] > 0
    assert found["versions"]["numpy"]
    assert found["file_system"] != ""


def test_names_no_host_and_no_path(tmp_path: Path) -> None:
    text = json.dumps(machine.describe(tmp_path))
    assert str(tmp_path) not in text
    assert platform.node() not in text or len(platform.node()) < 4


def test_the_file_system_is_that_of_the_folder() -> None:
    if not Path("/proc/self/mountinfo").exists():
        assert machine.mounted(Path("/")) == ("unknown", "")
        return
    assert machine.mounted(Path("/proc/self"))[0] == "proc"
    assert machine.mounted(Path("/"))[0] != "proc"


def test_what_is_no_block_device_says_so() -> None:
    assert machine.device("") == "no block device"
    assert machine.device("0:999999") == "no block device"


def test_only_what_is_installed_has_a_version() -> None:
    assert list(machine.versions(("numpy", "no-such-package"))) == ["numpy"]


def test_the_sentence_has_everything(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    text = machine.sentence(found)
    assert f"{found['cores']} cores" in text
    assert f"numpy {found['versions']['numpy']}" in text
    assert text.endswith(f"; {found['date']}, commit {found['commit']}.")


def test_a_record_has_its_day_and_its_commit(tmp_path: Path) -> None:
    before = f"{datetime.now(UTC):%Y-%m-%d}"
    found = machine.describe(tmp_path)
    assert before <= found["date"] <= f"{datetime.now(UTC):%Y-%m-%d}"
    assert found["commit"] == "unknown" or re.fullmatch(r"\S+", found["commit"])


def test_the_commit_says_what_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.commit(tmp_path) == "unknown"
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)  # noqa: S607 - git is found on PATH
    first = machine.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", first)
    (tmp_path / "file").write_text("2")
    assert machine.commit(tmp_path) == f"{first}-dirty"
    monkeypatch.setenv("PATH", "")
    assert machine.commit(tmp_path) == "unknown"


def test_an_older_record_has_neither() -> None:
    assert "commit" not in machine.sentence(MACHINE)
    assert machine.sentence({**MACHINE, "date": "2026-11-30", "commit": "abc"}).endswith("; 2026-11-30, commit abc.")
