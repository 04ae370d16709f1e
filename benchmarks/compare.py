"""Saves and restores of this project and of its peers, beside what the disk itself can do, in interleaved rounds."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import arguments, measuring, state, summary, tables
from benchmarks.measuring import Plan, Record, Trial
from benchmarks.peers import SUBJECTS

SMOKE = Plan(size="smoke", caches=("cached",), others=())
SMOKED = ("jax", "torch")
"""The subjects of a smoke, if no others are named: it has to end soon."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which state, how often, of what, and a plot."""
    parser.add_argument(
        "--size", choices=list(state.MODELS), default="reference", help="the state that is saved (default: reference)"
    )
    parser.add_argument(
        "--rounds", type=arguments.count, default=3, metavar="N", help="of each subject, interleaved (default: 3)"
    )
    parser.add_argument("--only", type=_names, metavar="NAME,…", help=f"some of {', '.join(SUBJECTS)}, or module:class")
    parser.add_argument("--plot", type=_drawing, metavar="FILE", help="draw the ratios there: .png or .svg")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure. Everything that was measured, and what was derived from it."""
    plan, rounds = (SMOKE, 1) if options.smoke else (Plan(options.size), options.rounds)
    names = options.only or (SMOKED if options.smoke else tuple(SUBJECTS))
    described = {name: measuring.describe(name) for name in names}
    usable = any("error" not in description for description in described.values())
    measured = [_round(plan, described, number, rounds, options.dir) for number in range(rounds if usable else 0)]
    result = {
        "size": plan.size,
        "arrays": len(state.COMPONENTS) * len(state.shapes(plan.size)),
        "bytes": state.nbytes(plan.size),
        "subjects": described,
        "rounds": measured,
    }
    return result | {"derived": summary.derive(result), "failed": len(tables.failures(result))}


def table(result: Mapping[str, Any]) -> str:
    """Saves, restores, and what was set."""
    return tables.full(result)


def short(result: Mapping[str, Any]) -> str:
    """The few figures that matter most."""
    return tables.short(result)


def _round(plan: Plan, described: Mapping[str, Record], number: int, rounds: int, folder: Path) -> dict[str, list[Record]]:
    """One round: floors before, between and after the subjects, which start with another one in each round."""
    floors, records = [], []
    names = _rotated([name for name, description in described.items() if "error" not in description], number)
    for index, name in enumerate(names):
        print(f"Round {number + 1} of {rounds}, {name}", file=sys.stderr, flush=True)
        if index % 2 == 0:
            floors.append(measuring.floors(plan, folder))
        place = folder / "subject"
        records += Trial(plan, name, described[name]["processes"]).records(place)
        shutil.rmtree(place)
    floors.append(measuring.floors(plan, folder))
    return {"floors": floors, "records": records}


def _rotated(names: Sequence[str], number: int) -> list[str]:
    start = number % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SUBJECTS and ":" not in name]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(SUBJECTS)}")
    for name in names:
        if name not in SUBJECTS:
            _look_up(name)
    return names


def _look_up(name: str) -> None:
    """Find the class of a subject that has no name here, before anything is measured."""
    module, _, kind = name.partition(":")
    try:
        getattr(import_module(module), kind)
    except (ImportError, ValueError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def _drawing(text: str) -> Path:
    """A file to draw to, by what can draw it."""
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text}: expected .png or .svg")
    try:
        import_module("benchmarks.plot")
    except ImportError as error:
        raise argparse.ArgumentTypeError(f"nothing can be drawn: {error}") from None
    return arguments.output(text)
