"""`python -m demo`: play the acts, print what happened, exit 0 only if every check held."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from demo.acts import Act, Play
from demo.options import new_folder
from demo.performing import performed
from demo.processes import Launch
from demo.screen import Screen
from demo.stage import Stage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0, 1 when a check failed, 2 for wrong options, 128 + N for signal N."""
    options = _options(arguments)
    screen = Screen(sys.stderr if options.json else sys.stdout)
    outcome = performed(lambda check_stop: _play(options.dir, screen, check_stop), screen, ended="its training processes")
    if isinstance(outcome, int):
        return outcome
    acts, seconds = outcome
    held = all(check.held for act in acts for check in act.checks)
    if options.json:
        print(json.dumps({"held": held, "seconds": round(seconds, 1), "acts": [asdict(act) for act in acts]}, indent=2))
    else:
        _summary(acts, screen.say, seconds=seconds)
    return 0 if held else 1


def _play(folder: Path | None, screen: Screen, check_stop: Callable[[], None]) -> list[Act]:
    """Play all acts in `folder`, or in one that is removed at the end, however that comes."""

    def watch(launch: Launch) -> None:
        check_stop()
        screen.progress(launch.progress)

    with ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxckpt-demo-")))
        return Play(Stage(folder, screen.say, watch)).acts()


def _summary(acts: Sequence[Act], say: Callable[[str], None], *, seconds: float) -> None:
    say("\nSummary")
    for number, act in enumerate(acts):
        say(f"\n  act {number} ({act.seconds:.0f} s): {act.title}")
        for check in act.checks:
            say(f"    {'ok' if check.held else 'FAILED':6} {check.name:31}  {check.detail}")
    failed = sum(not check.held for act in acts for check in act.checks)
    say(f"\n{f'{failed} checks FAILED' if failed else 'Every check held'}, {seconds:.0f} s.")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Train, kill, restart, compare bit for bit.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; progress goes to standard error")
    parser.add_argument("--dir", type=new_folder, help="keep stores, logs and final states in this new or empty folder")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
