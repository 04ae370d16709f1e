"""From the start of a process to its first restored step, and where the time goes.

A process is started that does what a training job does: it imports its framework and this project, restores a checkpoint, and
makes one step. The time is the parent's, from before the process exists; phases follow each other without a gap, so that they add
up to it. Each framework starts `warm`, with everything in the page cache, and `cold`, after the cache has dropped the checkpoint,
Python and all packages (what other processes use stays). Of several rounds the one with the median total is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from sysconfig import get_paths
from typing import Any

from benchmarks import page_cache, state
from benchmarks.arguments import count

FRAMEWORKS = ("jax", "torch")
ROOT = Path(__file__).parents[1]
SECONDS = 900.0
"""For one process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which state, and how often."""
    parser.add_argument(
        "--size", choices=list(state.MODELS), default="reference", help="the state that is restored (default: reference)"
    )
    parser.add_argument("--framework", choices=(*FRAMEWORKS, "both"), default="both", help="whose job starts (default: both)")
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="starts of each kind, interleaved (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure. Every start, and which of them is shown."""
    size, rounds, caches = ("smoke", 1, ("warm",)) if options.smoke else (options.size, options.rounds, ("warm", "cold"))
    frameworks = FRAMEWORKS if options.framework == "both" else (options.framework,)
    runs = {framework: options.dir / framework for framework in frameworks[: 1 if options.smoke else None]}
    for framework, folder in runs.items():
        _child("write", framework, size, str(folder))
    starts: dict[str, list[dict[str, Any]]] = {f"{name}, {cache}": [] for name in runs for cache in caches}
    for number in range(rounds):
        for framework, folder in runs.items():
            for cache in caches:
                copy = options.dir / f"{framework}-{number}-{cache}"  # a restore claims the run: each has one of its own
                shutil.copytree(folder, copy)
                held = _prepare(copy, cache)
                starts[f"{framework}, {cache}"].append({**_start(framework, size, copy), "held": held})
                shutil.rmtree(copy)
    shown = {name: _median(found) for name, found in starts.items()}
    return {"size": size, "bytes": state.nbytes(size), "starts": starts, "shown": shown}


def table(result: Mapping[str, Any]) -> str:
    """One column a kind of start, one row a phase."""
    shown: Mapping[str, Any] = result["shown"]
    phases = list(dict.fromkeys(phase for start in shown.values() for phase in start["phases"]))
    phases.sort(key=lambda phase: phase == "the rest")  # what is left over comes last
    rows = [[phase, *(_seconds(start["phases"].get(phase)) for start in shown.values())] for phase in phases]
    total = ["**total**", *(f"**{start['total']:.2f}**" for start in shown.values())]
    digests = ["of “chunks”: digests, CPU time of all threads", *(_seconds(_digests(start)) for start in shown.values())]
    lines = [["seconds", *shown], ["---", *("---:" for _ in shown)], *rows, total, digests]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    often = max(len(found) for found in result["starts"].values())
    return f"{result['bytes'] / 1e6:,.0f} MB; of {often} starts each the one with the median total.\n\n{drawn}"


def _start(framework: str, size: str, folder: Path) -> dict[str, Any]:
    """One start. Raises if the phases do not add up to what has passed since before the process was made."""
    receiving, sending = os.pipe()
    began = time.monotonic()
    with os.fdopen(receiving) as reports:
        _child("read", framework, size, str(folder), str(sending), str(began), pipe=sending)
        found = json.loads(reports.read())
    total = found["ended"] - began
    if abs(sum(found["phases"].values()) - total) > 1e-3:
        raise ValueError(f"phases of {sum(found['phases'].values())} s in {total} s")
    return {"total": total, "phases": found["phases"], "threads": found["threads"]}


def _child(*arguments: str, pipe: int | None = None) -> None:
    command = [sys.executable, "-m", "benchmarks.cold_start_child", *arguments]
    passed = () if pipe is None else (pipe,)
    try:
        subprocess.run(command, check=True, timeout=SECONDS, pass_fds=passed, cwd=ROOT, env=_environment())
    finally:
        if pipe is not None:
            os.close(pipe)


def _environment() -> dict[str, str]:
    """Compiled modules are kept, as those of an installed package are: the first process, which only saves, makes them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _prepare(folder: Path, cache: str) -> float:
    """Fill the page cache with the checkpoint, or make it drop that and the packages; the share of the former that it holds."""
    if cache == "warm":
        return page_cache.load(folder)
    for place in ("stdlib", "purelib"):
        page_cache.drop(Path(get_paths()[place]))
    for package in ("ckptcore", "jaxckpt", "torchckpt"):
        page_cache.drop(ROOT / package)
    return page_cache.drop(folder)


def _median(starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The start with the median total, of two in the middle the faster one."""
    return sorted(starts, key=lambda start: start["total"])[(len(starts) - 1) // 2]


def _digests(start: Mapping[str, Any]) -> float:
    return start["threads"]["digests"]["seconds"]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
