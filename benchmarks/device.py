"""Checkpoints on an accelerator, in one run of under four minutes: the speed of the copies, and whether the bits are right.

    python benchmarks/device.py [--framework jax|torch|both] [--json FILE] [--limit-seconds 230]

Each framework runs in a process of its own, so that neither takes the other's device memory, and a crash ends one of them only.
Without an accelerator everything that can runs on the CPU, at a small size: a dry run. docs/device.md says how to read it.
The exit status is 1 if a section failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("torch", "jax")
LEAST = 5.0
"""Seconds below which a framework is not even started."""


def main(arguments: Sequence[str]) -> int:
    """Run the sections of the frameworks that are asked for, one framework after the other."""
    options = _parser().parse_args(arguments)
    if options.into is not None:
        return _child(options.framework, options.limit_seconds, options.into)
    started = time.monotonic()
    chosen = FRAMEWORKS if options.framework == "both" else (options.framework,)
    results: dict[str, Any] = {}
    for number, framework in enumerate(chosen):
        left = started + options.limit_seconds - time.monotonic()
        results[framework] = _framework(framework, left / (len(chosen) - number))
    failed = [name for name, result in results.items() if result.get("failed")]
    print(f"\n{time.monotonic() - started:.0f} s in all; " + (f"FAILED: {', '.join(failed)}" if failed else "nothing failed"))
    if options.json is not None:
        options.json.write_text(json.dumps({"what": "device", "result": results}, indent=1) + "\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    from benchmarks.arguments import output  # noqa: PLC0415 - when `sys.path` is right

    parser = argparse.ArgumentParser(
        description="Checkpoints on an accelerator: speed of the copies, and bits that must be right."
    )
    parser.add_argument("--framework", choices=("jax", "torch", "both"), default="both")
    parser.add_argument("--json", type=output, metavar="FILE", help="write all figures there")
    parser.add_argument("--limit-seconds", type=float, default=230.0, help="sections that would begin later are left out")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # one framework, in this process; its figures go there
    return parser


def _framework(name: str, seconds: float) -> dict[str, Any]:
    """Run one framework in a process of its own, for at most so many seconds."""
    if find_spec(name) is None:
        print(f"\n## {name}\nskipped: {name} is not installed", flush=True)
        return {"skipped": "not installed"}
    if seconds < LEAST:
        print(f"\n## {name}\nskipped: out of time", flush=True)
        return {"skipped": "out of time"}
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "result.json"
        limit = ["--limit-seconds", str(seconds)]
        command = [sys.executable, str(Path(__file__).resolve()), "--framework", name, "--into", str(into), *limit]
        # JAX takes most of the device's memory at its first use unless it is told not to.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
        try:
            status = subprocess.run(command, env=environment, timeout=seconds + LEAST, check=False).returncode
        except subprocess.TimeoutExpired:
            status = "out of time: a section did not end"
        found = json.loads(into.read_text()) if into.exists() else {}
    if not found or status not in (0, 1):
        print(f"FAILED: {name} ended with {status}", flush=True)
        found |= {"failed": True, "status": status}
    return found


def _child(framework: str, seconds: float, into: Path) -> int:
    """Run the sections of one framework here. What is known so far is written after each: a crash keeps it."""
    from benchmarks import device_sections, machine  # noqa: PLC0415 - when `sys.path` is right

    clock = device_sections.Clock(seconds)
    device = import_module(f"benchmarks.device_{framework}").open_device()
    print(f"\n## {framework}: {device.title}{'' if device.accelerated else ' -- dry run on cpu'}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {
            "device": device.title,
            "dry_run": not device.accelerated,
            "machine": machine.describe(Path(folder)),
            "sections": {},
            "failed": False,
        }
        for name, outcome in device_sections.run(device, Path(folder), clock):
            result["sections"][name] = outcome
            result["failed"] |= "error" in outcome
            into.write_text(json.dumps(result))
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    # In the place of this folder, in which modules have the names of packages (`requests`).
    sys.path[0] = str(ROOT)
    sys.exit(main(sys.argv[1:]))
