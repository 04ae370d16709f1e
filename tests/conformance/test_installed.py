"""The suite as somebody else has it: from a wheel, outside of the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel of this project holds."""
    place = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(ROOT)]
    done = subprocess.run([sys.executable, *build], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    return place / "site"


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_that_the_suite_reads_is_in_the_wheel(installed: Path) -> None:
    inside = installed / "ckpt_conformance"
    source = ROOT / "conformance"
    for folder, origin in (("scenarios", source), ("golden", source), ("expected", source), ("schema", ROOT / "spec" / "v1")):
        wanted = {path.relative_to(origin).as_posix() for path in (origin / folder).rglob("*") if path.is_file()}
        found = {path.relative_to(inside).as_posix() for path in (inside / folder).rglob("*") if path.is_file()}
        assert {name for name in wanted if "/." not in name} <= found


def test_every_case_is_listed(installed: Path, tmp_path: Path) -> None:
    here = run(installed, tmp_path, "-m", "ckpt_conformance", "list")
    assert here.returncode == 0, here.stderr
    assert len(here.stdout.splitlines()) >= 150
    module = run(installed, tmp_path, "-c", "import ckpt_conformance; print(ckpt_conformance.__file__)")
    assert Path(module.stdout.strip()).is_relative_to(installed)


@pytest.mark.parametrize("adapter", ["jax", "torch", "minimal"])
def test_cases_pass(installed: Path, tmp_path: Path, adapter: str) -> None:
    """A reading case, on each adapter; the golden files come out of the wheel."""
    done = run(installed, tmp_path, "-m", "ckpt_conformance", "run", "--adapter", adapter, "--only", "golden/read", "-j", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
