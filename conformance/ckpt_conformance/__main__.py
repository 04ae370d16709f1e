"""`python -m ckpt_conformance`: list the cases of the suite, or run them against an implementation."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ckpt_conformance import data
from ckpt_conformance.asked import Asked, CallError
from ckpt_conformance.cases.corpus import load_corpus
from ckpt_conformance.cases.scenario import select
from ckpt_conformance.cases.texts import ScenarioError
from ckpt_conformance.jobs.adapter import SHORT_NAMES, AdapterError
from ckpt_conformance.running import INTERRUPTED, run


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 if all is as expected, 1 if not, 2 for a call that makes no sense, 130 for an interrupted run."""
    chosen = _parser().parse_args(arguments)
    try:
        return _list(chosen) if chosen.command == "list" else run(_asked(chosen))
    except (ScenarioError, AdapterError, CallError, FileNotFoundError) as error:
        print(f"ckpt_conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the first cell, or after the last
        print("ckpt_conformance: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ckpt_conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_list(commands.add_parser("list", help="a line a case: its ID, the clauses it tests, its title"))
    _add_run(commands.add_parser("run", help="run the cases against an adapter, or two"))
    return parser


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="only the cases of the quick subset")
    parser.add_argument("--family", help="only the cases of this family")


def _add_run(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(SHORT_NAMES)
    add = parser.add_argument
    adapter = f"the command that starts the adapter, or one of {names}"
    add("--adapter", action=_Once, required=True, metavar="CMD", help=adapter)
    add(
        "--cross",
        action=_Once,
        metavar="CMD",
        help="a second adapter: every case runs on both, and those of two roles in both directions",
    )
    add("--quick", action="store_true", help="only the cases of the quick subset")
    add(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="only this case: its ID, the beginning of it, or a pattern; repeatable",
    )
    add("-j", dest="jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="cells at a time (default: one a core)")
    add("--store", default="file", metavar="URL", help="where runs lie: file (default), or s3://bucket/prefix")
    add("--endpoint", metavar="URL", help="address of the S3 server, where it is not Amazon's")
    add("--region", help="region of the bucket")
    add("--expected", type=Path, metavar="DIR", help="known failures: <column>.toml in this folder, a line a case")
    add("--dir", type=Path, help="keep what the store held and the logs of failed cells in this new or empty folder")
    add("--keep", action="store_true", help="with --dir: keep those of all cells")
    add("--json", type=Path, metavar="FILE", help="write the results as JSON")
    add("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML")
    add("--html", type=Path, metavar="FILE", help="write the results as one HTML page")


class _Once(argparse.Action):
    """An option that is refused when it is given again: the last of two adapters would be tested, the other one silently not."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice: --adapter takes one adapter, and --cross a second one to test beside it")
        setattr(namespace, self.dest, values)


def _asked(chosen: argparse.Namespace) -> Asked:
    return Asked(**{name: value for name, value in vars(chosen).items() if name != "command"})


def _list(chosen: argparse.Namespace) -> int:
    corpus = load_corpus(data.folder("scenarios"))
    only = [f"{chosen.family}/"] if chosen.family else []
    found = select(corpus.cases.values(), only, quick=chosen.quick)
    if not found:
        families = sorted({case.family for case in corpus.cases.values()})
        raise CallError(f"--family {chosen.family}: no such case; the families are {', '.join(families)}")
    _print(f"{case.id}  {','.join(case.clauses)}  {case.title}" for case in found)
    return 0


def _print(lines: Iterable[str]) -> None:
    """Print lines; a reader that has seen enough (`| head`) is no error."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
