"""The folder of a run, and those that killed runs left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ckpt_conformance import work
from ckpt_conformance.work import PREFIX, remove_left, work_folder


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders are made."""
    monkeypatch.setattr(work, "_SHM", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_removed_however_the_run_ends(parent: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(parent)
    assert list(parent.iterdir()) == []


def _interrupted(parent: Path) -> None:
    with work_folder() as folder:
        assert folder.parent == parent
        assert folder.name.startswith(f"{PREFIX}{os.getpid()}-")
        (folder / "cells").mkdir()
        raise KeyboardInterrupt


def test_those_of_killed_runs_are_removed_by_the_next(parent: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        names = [f"{PREFIX}{process.pid}-abc_1", f"{PREFIX}{os.getpid()}-abc", f"{PREFIX}words", "other"]
        for name in names:
            (parent / name / "cells").mkdir(parents=True)
        remove_left(parent)
        assert sorted(path.name for path in parent.iterdir()) == sorted(names)
        process.kill()
    with work_folder():
        pass
    assert sorted(path.name for path in parent.iterdir()) == sorted(names[1:])
