"""What is compared between processes: a state of plain containers and numpy arrays, described as JSON.

Imports no framework: readers without one use it too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]

_SCRIPT = """\
import json, sys
import ckptcore
from tests.jaxckpt.plain import describe
restored = ckptcore.open_run(sys.argv[1]).restore()
assert not {"jax", "flax", "torch"} & set(sys.modules), "a framework was imported"
print(json.dumps(describe(restored)))
"""


def describe(value: Any) -> Any:
    """Types, dtypes, shapes and bytes; equal descriptions mean equal states."""
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), value.tobytes().hex()]
    if isinstance(value, dict):
        return ["dict", sorted(([repr(key), describe(child)] for key, child in value.items()), key=lambda pair: pair[0])]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [describe(child) for child in value]]
    return [type(value).__name__, repr(value)]


def restored_without_jax(url: str | Path) -> Any:
    """The description of a run's head, restored in a process that imports no framework."""
    command = [sys.executable, "-W", "error", "-c", _SCRIPT, str(url)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
