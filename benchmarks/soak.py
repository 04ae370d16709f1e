"""Whether anything grows with the number of saves: memory, descriptors, threads, files, the time of a step and of a save.

A training loop of a few arrays saves after each step and keeps the last three checkpoints, in JAX and in torch, each in a process
of its own. It is sampled after every 50 saves: times are medians over these, what is read is the mean of one save.

A figure is *flat* if a straight line through its samples, without the first (what is made once is made by then), rises over the
whole run by no more than a stated share of its median, or than a stated amount. What grows by design is not judged: two small
records stay of each checkpoint that was retired, its decision and the record that it is gone, and the process remembers their
names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from benchmarks.arguments import Refused, count

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ("jax", "torch")
SAMPLES = 3
"""The fewest: the first does not count, and a line needs two."""
SECONDS = 7200.0
"""For one process."""


@dataclass(frozen=True)
class Figure:
    """What is sampled, how it is shown, and by how much it may rise over the run: a share of its median, or an amount."""

    name: str
    title: str
    unit: float = 1.0
    digits: int = 0
    share: float = 0.0
    amount: float = 0.0
    designed: bool = False


FIGURES = (
    Figure("resident_bytes", "resident memory, MiB", unit=2**20, digits=1, share=0.02),
    Figure("descriptors", "open descriptors", amount=1.0),
    Figure("threads", "threads of Python", amount=1.0),
    Figure("system_threads", "threads of the process", amount=3.0),
    Figure("data_files", "files below `generations/`", amount=6.0),
    Figure("step_seconds", "step, ms", unit=1e-3, digits=2, share=0.25),
    Figure("blocked_seconds", "blocked by a save, ms", unit=1e-3, digits=2, share=0.25),
    Figure("save_seconds", "save until committed, ms", unit=1e-3, digits=1, share=0.25),
    Figure("cpu_seconds", "processor time of a step and a save, ms", unit=1e-3, digits=1, share=0.15),
    Figure("bytes_read", "bytes read by a save, KiB", unit=2**10, digits=1, share=0.1),
    Figure("reads", "reads of a save", digits=1, share=0.1),
    Figure("record_files", "records (ledger, claims, notes)", designed=True),
    Figure("objects", "objects of Python", designed=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long, and for whom."""
    parser.add_argument("--saves", type=count, default=500, metavar="N", help="saves of each process (default: 500)")
    parser.add_argument("--every", type=count, default=50, metavar="N", help="saves between two samples (default: 50)")
    parser.add_argument("--framework", choices=(*FRAMEWORKS, "both"), default="both", help="whose loop (default: both)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All samples, and what they say."""
    saves, every = (8, 2) if options.smoke else (options.saves, options.every)
    if -(-saves // every) < SAMPLES:
        raise Refused(f"{saves} saves with a sample after every {every}: expected {SAMPLES} samples or more")
    wanted = FRAMEWORKS if options.framework == "both" else (options.framework,)
    frameworks = wanted[:1] if options.smoke else wanted
    samples = {framework: _samples(framework, options.dir / framework, saves, every) for framework in frameworks}
    return {
        "smoke": options.smoke,
        "saves": saves,
        "every": every,
        "samples": samples,
        "rows": {framework: rows(found) for framework, found in samples.items()},
    }


def rows(samples: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """For each figure its first, middle and last sample, how it rises, and whether it is flat (None where it grows by design)."""
    return [_row(figure, samples) for figure in FIGURES]


def _row(figure: Figure, samples: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    values = [sample[figure.name] for sample in samples]
    settled = samples[1:]
    slope = linear_regression([sample["saves"] for sample in settled], values[1:]).slope
    rise = slope * (settled[-1]["saves"] - settled[0]["saves"])
    allowed = max(figure.amount, figure.share * median(values[1:]))
    return {
        "figure": figure.name,
        "first": values[0],
        "middle": values[len(values) // 2],
        "last": values[-1],
        "per_100_saves": 100 * slope,
        "rise": rise,
        "allowed": None if figure.designed else allowed,
        "flat": None if figure.designed else rise <= allowed,
    }


def table(result: Mapping[str, Any]) -> str:
    """One table a framework."""
    return "\n\n".join(_table(framework, result) for framework in result["rows"])


def _table(framework: str, result: Mapping[str, Any]) -> str:
    judged = 8 if not result.get("smoke") else 6  # columns: what may be, and whether it is, say nothing of a smoke
    titles = ["", "first", "middle", "last", "per 100 saves", "rise", "may rise by", "flat"]
    known = {figure.name: figure for figure in FIGURES}
    lines = [_line(known[row["figure"]], row) for row in result["rows"][framework]]
    drawn = "\n".join(f"| {' | '.join(line[:judged])} |" for line in [titles, ["---", *["---:"] * 6, "---"], *lines])
    return f"{framework}: {result['saves']} saves, a sample after every {result['every']}.\n\n{drawn}"


def _line(figure: Figure, row: Mapping[str, Any]) -> list[str]:
    def shown(value: float | None, *, sign: str = "") -> str:
        return "–" if value is None else f"{value / figure.unit:{sign}.{figure.digits}f}"

    slope = f"{row['per_100_saves'] / figure.unit:+.{figure.digits + 1}f}"
    flat = {None: "grows by design", True: "yes", False: "**no**"}[row["flat"]]
    values = [shown(row[name]) for name in ("first", "middle", "last")]
    return [figure.title, *values, slope, shown(row["rise"], sign="+"), shown(row["allowed"]), flat]


def _samples(framework: str, folder: Path, saves: int, every: int) -> list[dict[str, float]]:
    """Run one loop to its end."""
    folder.mkdir()
    asked = json.dumps({"framework": framework, "folder": str(folder), "saves": saves, "every": every})
    command = [sys.executable, "-m", "benchmarks.soak_child", asked]
    done = subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return [json.loads(line) for line in done.stdout.splitlines()]
