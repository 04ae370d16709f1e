"""Add a golden checkpoint: the run of the case `golden/write`, as an adapter writes it now. What is there is never changed.

python conformance/make_golden.py jax
"""

# ruff: noqa: INP001 - a script beside the package

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from ckpt_conformance.__main__ import main
from ckpt_conformance.results import Column, from_json

CASE = "golden/write.all"
GOLDEN = Path(__file__).parent / "golden"


def write(adapter: str) -> Path:
    """Run the case and keep what the store held. Raises `FileExistsError` if this version has its golden checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        if main(["run", "--adapter", adapter, "--only", CASE, "--dir", folder, "--keep", "-j", "1", "--json", str(results)]):
            raise SystemExit(f"{CASE} fails: what it left is no golden checkpoint")
        target = GOLDEN / name(from_json(results.read_text(encoding="utf-8")).columns[0])
        (stored,) = Path(folder).glob("*/*/store/main")
        shutil.copytree(stored, target, ignore=shutil.ignore_patterns("probe"))
    return target


def name(column: Column) -> str:
    """`1.0-by-jax-0.1.0`."""
    return f"{column.describe['format']}-by-{column.name}-{column.describe['version']}"


if __name__ == "__main__":
    print(write(sys.argv[1]))
