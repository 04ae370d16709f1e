"""The step time of a training loop while a save goes on in the background, beside its step time without one.

One process a framework, with one thread that computes: a second core is spare for the save. Blocks of steps with and without a
save alternate; those without lie on both sides of each save. A step is a chain of matrix products, which need no lock of the
interpreter, then a while of plain Python, which needs it all the time: they are timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import state
from benchmarks.arguments import count

FRAMEWORKS = ("jax", "torch")
BUDGET = 1.15
SECONDS = 1800.0
"""For one process."""
ONE_THREAD = {
    "NPROC": "1",  # of XLA's pools, for which its flags do nothing
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}
PERCENTILES = {"median": 50, "p90": 90, "p99": 99}
Steps = Sequence[Sequence[float]]
"""Seconds of each step: of its matrix products, and of its Python."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which state, whose loop, and how often."""
    parser.add_argument(
        "--size", choices=list(state.MODELS), default="reference", help="the state that is saved (default: reference)"
    )
    parser.add_argument("--framework", choices=(*FRAMEWORKS, "both"), default="both", help="whose loop runs (default: both)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="saves that are measured (default: 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure. Every step, and what was derived from them."""
    frameworks = FRAMEWORKS if options.framework == "both" else (options.framework,)
    if options.smoke:
        frameworks = frameworks[:1]
    size, rounds = ("smoke", 1) if options.smoke else (options.size, options.rounds)
    measured = {name: _measure(name, size, rounds, options.dir / name, smoke=options.smoke) for name in frameworks}
    derived = {name: derive(blocks) for name, blocks in measured.items()}
    return {"size": size, "bytes": state.nbytes(size), "rounds": rounds, "blocks": measured, "derived": derived}


def table(result: Mapping[str, Any]) -> str:
    """One row a framework and percentile, then what a save costs."""
    lines = [
        "| step time | without | during a save | ratio | matrix products | Python |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for framework, found in result["derived"].items():
        for name in PERCENTILES:
            one = found["steps"][name]
            times = f"{one['without'] * 1e3:.1f} ms | {one['during'] * 1e3:.1f} ms"
            lines.append(
                f"| {framework}, {name} | {times} | {one['ratio']:.2f} | {one['compute_ratio']:.2f} | {one['python_ratio']:.2f} |"
            )
    judged = result["size"] != "smoke"
    notes = [_note(framework, found, judged=judged) for framework, found in result["derived"].items()]
    heading = f"{result['bytes'] / 1e6:,.0f} MB, {result['rounds']} saves{f'; budget of the median: {BUDGET}' if judged else ''}"
    return "\n".join([heading, "", *lines, "", *notes])


def derive(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Percentiles, their ratios, the ratio of each round, and the processor time of a save."""
    without, during = _pooled(blocks["without"]), _pooled(blocks["during"])
    rounds = [
        _median(save["steps"]) / _median([*before["steps"], *after["steps"]])
        for before, save, after in zip(blocks["without"], blocks["during"], blocks["without"][1:], strict=False)
    ]
    halves = [_pooled(blocks["without"][half::2]) for half in (0, 1)]
    per_step = sum(block["cpu"] for block in blocks["without"]) / len(without)
    extra = [block["cpu"] - per_step * len(block["steps"]) for block in blocks["during"]]
    return {
        "steps": {name: _compared(without, during, percent) for name, percent in PERCENTILES.items()},
        "rounds": rounds,
        "within_budget": statistics.median(rounds) <= BUDGET,
        "noise": _median(halves[1]) / _median(halves[0]),
        "save_cpu_seconds": statistics.median(extra),
        "save_seconds": statistics.median(block["seconds"] for block in blocks["during"]),
        "blocked_seconds": statistics.median(block["blocked"] for block in blocks["during"]),
    }


def _compared(without: Steps, during: Steps, percent: int) -> dict[str, float]:
    def at(steps: Steps, part: slice) -> float:
        return percentile([sum(step[part]) for step in steps], percent)

    whole, compute, python = slice(None), slice(0, 1), slice(1, 2)
    return {
        "without": at(without, whole),
        "during": at(during, whole),
        "ratio": at(during, whole) / at(without, whole),
        "compute_ratio": at(during, compute) / at(without, compute),
        "python_ratio": at(during, python) / at(without, python),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """The least of the values that at least so many percent of them do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def _median(steps: Steps) -> float:
    return percentile([sum(step) for step in steps], 50)


def _pooled(blocks: Sequence[Mapping[str, Any]]) -> list[Sequence[float]]:
    return [step for block in blocks for step in block["steps"]]


def _note(framework: str, found: Mapping[str, Any], *, judged: bool) -> str:
    rounds = ", ".join(f"{ratio:.2f}" for ratio in found["rounds"])
    cost = f"a save takes {found['save_seconds']:.2f} s and {found['save_cpu_seconds']:.2f} s of processor time"
    verdict = f", {'within' if found['within_budget'] else 'over'} budget" if judged else ""
    return f"- {framework}: {rounds} in the rounds{verdict}; without a save, half to half: {found['noise']:.2f}; {cost}."


def _measure(framework: str, size: str, rounds: int, folder: Path, *, smoke: bool) -> dict[str, Any]:
    """The blocks of one process."""
    folder.mkdir()
    least = "3" if smoke else "40"
    command = [sys.executable, "-m", "benchmarks.interference_child", framework, size, str(rounds), least, str(folder)]
    subprocess.run(command, env=os.environ | ONE_THREAD, timeout=SECONDS, check=True, cwd=Path(__file__).parents[1])
    return json.loads((folder / "blocks.json").read_text())
