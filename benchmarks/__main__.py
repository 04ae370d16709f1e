"""`python -m benchmarks WHAT [options]`: measures one thing, prints it as a table, and with `--json` writes all figures."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import machine, state
from benchmarks.arguments import Refused, folder, output

WHAT = {
    "compare": "saves and restores, beside the peers and the disk's own speed",
    "growth": "time, memory and requests as ranks, arrays, bytes and generations grow",
    "requests": "calls to an object store",
    "cold-start": "from the start of a process to its first restored step",
    "interference": "the step time of a training loop while a save goes on",
    "ranks": "bytes read from the store when many ranks restore",
    "soak": "memory, files and step time over many saves",
    "silent-damage": "what a flipped bit does",
}
"""Name → what is measured. Each is a module of this package with `add_arguments`, `run` and `table`.

What `run` returns may have how much `failed` of what was measured: then the exit status is 1.
"""
TERMINATED = 128 + signal.SIGTERM
"""The exit status of what was told to end, as a shell has it."""


def module_of(what: str) -> Any:
    """The module that measures `what`."""
    return import_module(f"benchmarks.{what.replace('-', '_')}")


def parser_of(what: str) -> argparse.ArgumentParser:
    """The options of one measurement: its own, and those that all have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {what}", description=WHAT[what])
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="only whether it works, in seconds: a tiny size, whatever sizes and numbers are given",
    )
    parser.add_argument(
        "--json",
        type=output,
        metavar="FILE",
        help="write the machine and all figures there; with `all` to a file each, FILE-WHAT",
    )
    parser.add_argument(
        "--dir", type=folder, metavar="DIR", help="the disk to measure: a temporary folder inside it, removed afterwards"
    )
    module_of(what).add_arguments(parser)
    return parser


def measure(what: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one measurement; what `--json` writes."""
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=options.dir) as made:
        return {
            "what": what,
            "machine": machine.describe(Path(made)),
            "arguments": plain(vars(options)),
            "result": module_of(what).run(argparse.Namespace(**{**vars(options), "dir": Path(made)})),
        }


def show(record: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Write and print what was measured, then draw it, if there is a `plot` to draw: what fails loses nothing of the rest."""
    try:
        if options.json is not None:
            options.json.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    finally:
        heading = f"== {record['what']} (smoke: figures mean nothing)\n\n" if options.smoke else ""
        print(f"{heading}{shown(record)}", flush=True)
    if getattr(options, "plot", None) is not None:
        from benchmarks import plot  # noqa: PLC0415 - matplotlib is not needed for anything else

        plot.draw(record["result"], options.plot, record["machine"])


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as given, without paths, which say nothing about the figures, and without what was left out."""
    return {name: value for name, value in options.items() if value is not None and not isinstance(value, Path)}


def shown(record: Mapping[str, Any]) -> str:
    """The table of a record, and the machine below."""
    return f"{module_of(record['what']).table(record['result'])}\n\n{machine.sentence(record['machine'])}"


def main(arguments: Sequence[str]) -> int:
    """Measure what the first argument names, `compare` if none does; `all` is all of them, for `--smoke`."""
    named = bool(arguments) and not arguments[0].startswith("-")
    what, rest = (arguments[0], arguments[1:]) if named else ("compare", arguments)
    if what not in WHAT and (what != "all" or "--smoke" not in rest):
        print(f"{what!r}: one of {', '.join(WHAT)}, or all --smoke", file=sys.stderr)
        return 2
    asked = {name: _parsed(name, rest, alone=what != "all") for name in (WHAT if what == "all" else (what,))}
    return max([2 if options is None else _done(name, options) for name, options in asked.items()])


def _parsed(what: str, arguments: Sequence[str], *, alone: bool) -> argparse.Namespace | None:
    """The options of one measurement, of several each with a file of its own; None where something is not installed."""
    try:
        options = parser_of(what).parse_args(arguments)
    except ImportError as error:
        _told(2, f"{what}: {error}: is it installed?")
        return None
    if options.json is not None and not alone:
        options.json = options.json.with_stem(f"{options.json.stem}-{what}")
    return options


def _done(what: str, options: argparse.Namespace) -> int:
    """Measure and show; the exit status: 1 if it failed, 2 if it cannot be. What lies outside of this program is one line."""
    try:
        record = measure(what, options)
        show(record, options)
    except Refused as error:
        return _told(2, f"{what}: {error}")
    except subprocess.SubprocessError:
        return _told(1, f"{what}: a process failed, see above")
    except OSError as error:
        return _told(1, f"{what}: {str(error)[:400]}{_room(error, options)}")
    return 1 if record["result"].get("failed") else 0


def _room(error: OSError, options: argparse.Namespace) -> str:
    """Where there was no room: how much there is, and how much is needed."""
    if os.strerror(errno.ENOSPC) not in str(error):
        return ""
    place = options.dir or Path(tempfile.gettempdir())
    free = f"; {shutil.disk_usage(place).free / 1e9:.1f} GB are free in {place}"
    size = getattr(options, "size", None)
    return free if size is None else f"{free}, the state has {state.nbytes(size) / 1e9:.1f} GB: benchmarks/README.md has the room"


def _told(status: int, line: str) -> int:
    print(line, file=sys.stderr, flush=True)
    return status


def process(arguments: Sequence[str]) -> NoReturn:
    """`main` as a process: interrupted or told to end, it cleans up and does, whatever its threads still wait for.

    A save waits for ranks that are gone: by itself its thread would end in minutes.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main(arguments))
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except SystemExit as ended:
        if ended.code == TERMINATED:
            os._exit(TERMINATED)
        raise


def _terminate(number: int, _: object) -> NoReturn:
    """End as by an interrupt, once: a second signal does not break off the cleaning."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(TERMINATED)


if __name__ == "__main__":
    process(sys.argv[1:])
