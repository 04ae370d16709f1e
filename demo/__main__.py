"""`python -m demo`: play the acts, print what happened, exit 0 only if every check held."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from demo.acts import Act, Play
from demo.processes import LaunchFailed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = _options(arguments)
    started = time.monotonic()
    with ExitStack() as stack:
        folder = options.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxckpt-demo-")))
        try:
            acts = _play(folder, quiet=options.json)
        except LaunchFailed as failure:
            print(f"\nThe demo failed: {failure}", file=sys.stderr)
            return 1
    seconds = time.monotonic() - started
    held = all(check.held for act in acts for check in act.checks)
    if options.json:
        print(json.dumps({"held": held, "seconds": round(seconds, 1), "acts": [asdict(act) for act in acts]}, indent=2))
    else:
        _summary(acts, seconds=seconds, held=held)
    return 0 if held else 1


def _play(folder: Path, *, quiet: bool) -> list[Act]:
    """All acts in order. With `quiet`, progress goes to standard error."""

    def say(line: str) -> None:
        indent = "" if line.startswith("\nAct") else "  "
        print(f"{indent}{line}", file=sys.stderr if quiet else sys.stdout, flush=True)

    play = Play(folder, say)
    first, reference = play.reference()
    return [first, play.killed_in_write(reference), play.killed_before_commit(reference), play.other_hardware(reference)]


def _summary(acts: Sequence[Act], *, seconds: float, held: bool) -> None:
    print("\nSummary")
    for number, act in enumerate(acts):
        print(f"\n  act {number} ({act.seconds:.0f} s): {act.title}")
        for check in act.checks:
            print(f"    {'ok' if check.held else 'FAILED':6}  {check.name:32}  {check.detail}")
    failed = sum(not check.held for act in acts for check in act.checks)
    verdict = "Every check held" if held else f"{failed} checks FAILED"
    print(f"\n{verdict}, {seconds:.0f} s.")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Train, kill, restart, compare bit for bit.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; progress goes to standard error")
    parser.add_argument("--dir", type=_new_folder, help="keep stores, logs and final states in this new or empty folder")
    return parser.parse_args(arguments)


def _new_folder(text: str) -> Path:
    folder = Path(text).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise argparse.ArgumentTypeError(f"{folder} is not empty")
    return folder


if __name__ == "__main__":
    sys.exit(main())
