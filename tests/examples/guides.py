"""The code in the guides, as a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

DOCS = ROOT / "docs"


def blocks(guide: str, language: str = "python") -> list[str]:
    """The code blocks of a guide, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / guide).read_text(), re.DOTALL | re.MULTILINE)


def program(guide: str, folder: Path) -> str:
    """All of a guide's Python, with the guide's own place below `/tmp` replaced by `folder`."""
    return "".join(blocks(guide)).replace(f"/tmp/{guide.removesuffix('.md')}", str(folder))


def run(code: str, *, env: dict[str, str] | None = None) -> str:
    """What a program prints. Fails unless it ends with status 0."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **(env or {})}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
