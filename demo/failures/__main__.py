"""`python -m demo.failures`: everything that goes wrong, and what came of it; exit 0 only if every claim held."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ckptcli.incidents import supervision
from demo.compare import Check
from demo.failures import course, tables
from demo.failures.claims import Claims
from demo.failures.course import Course
from demo.failures.plan import RANKS, TOTAL, Framework
from demo.options import new_folder
from demo.performing import performed
from demo.screen import Screen

FRAMEWORKS: tuple[Framework, ...] = ("jax", "torch")


@dataclass(frozen=True)
class Played:
    """What came of one framework."""

    framework: Framework
    claims: Claims
    checks: list[Check]

    @property
    def held(self) -> bool:
        """Whether every claim did."""
        return all(check.held for check in self.checks)

    def figures(self) -> dict[str, Any]:
        """All of it as JSON has it; `supervision` as in `ckpt status --json`."""
        found = self.claims.account()
        told = None if found is None else msgspec.to_builtins(supervision(found))
        return {"framework": self.framework, "checks": [asdict(check) for check in self.checks], "supervision": told}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0, 1 when a claim did not hold, 2 for wrong options, 128 + N for signal N."""
    options = _options(arguments)
    screen = Screen(sys.stderr if options.json else sys.stdout)
    outcome = performed(
        lambda check_stop: _play(options.dir, options.framework, screen, check_stop), screen, ended="its supervisors and ranks"
    )
    if isinstance(outcome, int):
        return outcome
    played, seconds = outcome
    held = all(each.held for each in played)
    if options.json:
        figures = {"held": held, "seconds": round(seconds, 1), "frameworks": [each.figures() for each in played]}
        print(json.dumps(figures, indent=2))
    else:
        _summary(played, screen, seconds)
    return 0 if held else 1


def _play(folder: Path | None, frameworks: Sequence[Framework], screen: Screen, check_stop: Callable[[], None]) -> list[Played]:
    def watch(progress: Callable[[], str]) -> None:
        check_stop()
        screen.progress(progress)

    with ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxckpt-demo-failures-")))
        screen.say(f"{RANKS} ranks train for {TOTAL} steps under supervision, beside a run to which nothing happens:")
        found = course.run(folder, frameworks, screen.say, watch)
        return [_judged(framework, each) for framework, each in found.items()]


def _judged(framework: Framework, found: Course) -> Played:
    claims = Claims(found)
    return Played(framework, claims, claims.all())


def _summary(played: Sequence[Played], screen: Screen, seconds: float) -> None:
    for each in played:
        found = each.claims.account()
        screen.say(f"\n{each.framework}: attempts\n")
        screen.say(_indented(tables.attempt_table(each.claims.attempts)))
        if found is not None:
            screen.say(f"\n{each.framework}: incidents, and what they cost\n")
            screen.say(_indented(tables.incident_table(found.incidents)))
            screen.say(f"\n  {tables.goodput_line(found)}")
        screen.say(f"\n{each.framework}: what was claimed, and what was found\n")
        for check in each.checks:
            screen.say(f"    {'ok' if check.held else 'FAILED':6} {check.name:40}  {check.detail}")
    failed = sum(not check.held for each in played for check in each.checks)
    screen.say(f"\n{f'{failed} claims FAILED' if failed else 'Every claim held'}, {seconds:.0f} s.")


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.failures", description="Everything that happens to long runs, under supervision."
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; what happens goes to standard error")
    parser.add_argument("--dir", type=new_folder, help="keep stores and logs in this new or empty folder")
    parser.add_argument("--framework", type=_frameworks, default=FRAMEWORKS, help="jax, torch or both (the default)")
    return parser.parse_args(arguments)


def _frameworks(text: str) -> Sequence[Framework]:
    chosen: dict[str, Sequence[Framework]] = {"jax": ("jax",), "torch": ("torch",), "both": FRAMEWORKS}
    if text not in chosen:
        raise argparse.ArgumentTypeError(f"{text!r}: expected jax, torch or both")
    return chosen[text]


if __name__ == "__main__":
    sys.exit(main())
