"""A cluster for the recipes' scripts: commands that come before the machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
BASH = shutil.which("bash") or "/bin/bash"


class Cluster:
    """A folder with commands that come before the machine's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        (folder / "head").write_text("")
        self.add("scontrol", 'echo "scontrol $*" >> calls')
        self.add("srun", f'exec {sys.executable} {Path(__file__).parent / "fake_srun.py"} "$@"')
        # `ckpt ls` shows one generation, the resume point, and it is what `head` says.
        self.add(
            "ckpt",
            """echo "ckpt $*" >> calls
            if [ "$1" = ls ]; then
                [ -s head ] || exit 5
                echo "    generation    step   state"
                echo "    000000-000000000001-1   1   committed"
                echo "*   $(cat head)   20,000   committed   9 B"
            elif [ "$1" = supervise ]; then exit "$(cat status)"; fi""",
        )

    def add(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        slurm = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2"}
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RUN": "s3://bucket/run", "PAUSE": "0", **slurm, **more}

    def run(self, script: str, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BASH, RECIPES / script, *command],
            cwd=self.folder, env=self.environment(**more), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return [line for line in calls.read_text().splitlines() if not line.startswith("ckpt ls")] if calls.exists() else []
