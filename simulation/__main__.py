"""`python -m simulation`: run many seeds, replay one, or try every moment of a few procedures."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from simulation import exhaustive
from simulation.faults import KINDS
from simulation.run import Outcome, Reduced, run_seed
from simulation.shrink import shrink

SEEDS = range(2000)
BATCH = 25
CUT_OFF = 141
"""The exit status when whoever reads the output has seen enough (`| head`): that of a process which SIGPIPE has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every invariant held, 1 if one did not, `CUT_OFF`. A call that makes no sense exits with 2."""
    options = _options(arguments)
    try:
        held = options.do(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter flushes at its end
        return CUT_OFF
    return int(not held)


def _run(options: argparse.Namespace) -> bool:
    started, told, counts = time.monotonic(), time.monotonic(), Counter[str]()
    number, failed = 0, 0
    for batch in _batches(_seeds(options), options.minutes, options.jobs):
        for seed, clause, what, counted in batch:
            number, counts = number + 1, counts + Counter(counted)
            if clause is not None:
                failed += 1
                print(f"seed {seed}: {what}", flush=True)
                if failed <= options.shrink:
                    _explain(run_seed(seed))
        if time.monotonic() - told > 60 and sys.stderr.isatty():
            told = time.monotonic()
            print(f"{number} seeds, {failed} failed", file=sys.stderr, flush=True)
        if failed >= options.most_failures:
            break
    seconds = time.monotonic() - started
    print(f"{number} seeds in {seconds:.0f} s: " + (f"{failed} failed" if failed else "every invariant held"))
    print("  " + ", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    return failed == 0


def _seeds(options: argparse.Namespace) -> Iterable[int]:
    if options.seeds is not None:
        return options.seeds
    return SEEDS if options.minutes is None else itertools.count()


def _explain(outcome: Outcome) -> None:
    reduced, smallest = shrink(outcome)
    print(f"  {smallest.violation}")
    print(f"  with {len(smallest.faults)} fault(s):")
    for fault in smallest.faults:
        print(f"    {fault}")
    print(f"  python -m simulation replay {outcome.seed} {reduced.arguments()} --trace", flush=True)


def _replay(options: argparse.Namespace) -> bool:
    outcome = run_seed(options.seed, Reduced(without=options.without, only=options.only))
    scenario = outcome.scenario
    if unknown := options.without - {*KINDS, *scenario.everybody}:
        options.refuse(
            f"--without {','.join(sorted(unknown))}: neither a kind of fault ({', '.join(KINDS)}) "
            f"nor somebody in seed {options.seed} ({', '.join(scenario.everybody)})"
        )
    if options.trace:
        print("\n".join(str(line) for line in outcome.trace))
    print(f"seed {outcome.seed}: {scenario.kind}, {'arrays' if scenario.arrays else 'values'}, {', '.join(scenario.everybody)}")
    print(f"{outcome.operations} operations in {outcome.seconds:.0f} simulated seconds, {len(outcome.faults)} fault(s):")
    for fault in outcome.faults:
        print(f"  {fault}")
    if unmet := (options.only or frozenset()) - {fault.number for fault in outcome.faults}:
        print(f"nothing goes wrong at {', '.join(map(str, sorted(unmet)))}, where --only allows it")
    print("every invariant held" if outcome.violation is None else f"violated: {outcome.violation}")
    return outcome.violation is None


def _exhaustive(_: argparse.Namespace) -> bool:
    held = True
    for name, cases in exhaustive.families().items():
        started, number = time.monotonic(), 0
        for case in cases:
            number += 1
            problem = exhaustive.play(case)
            if problem is not None:
                held = False
                print(f"{name}: {case}: {problem}", flush=True)
        print(f"{name}: {number} cases in {time.monotonic() - started:.0f} s", flush=True)
    return held


Told = tuple[int, str | None, str, dict[str, int]]


def _batches(seeds: Iterable[int], minutes: float | None, jobs: int) -> Iterator[list[Told]]:
    """The results of batches of seeds, in any number of processes, until the time is up."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    batches = _batched(seeds)
    until = itertools.takewhile(lambda _: deadline is None or time.monotonic() < deadline, batches)
    if jobs == 1:
        yield from map(_some, until)
        return
    with ProcessPoolExecutor(jobs) as pool:
        while group := list(itertools.islice(until, 4 * jobs)):
            yield from pool.map(_some, group)


def _batched(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    left = iter(seeds)
    while batch := tuple(itertools.islice(left, BATCH)):
        yield batch


def _some(seeds: Sequence[int]) -> list[Told]:
    outcomes = [run_seed(seed) for seed in seeds]
    return [(found.seed, found.clause, str(found.violation), found.counts) for found in outcomes]


def _range(text: str) -> range:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    seeds = range(int(found[1]), int(found[2] or int(found[1]) + 1)) if found else range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B, the seeds from A up to but not B, or one seed")
    return seeds


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="run|replay|exhaustive")
    run = verbs.add_parser("run", help="run many seeds")
    run.add_argument("--seeds", type=_range, metavar="A:B", help="which (default 0:2000; with --minutes all from 0 on)")
    run.add_argument("--minutes", type=_minutes, help="start no more seeds after so long")
    run.add_argument("-j", "--jobs", type=_count, default=1, help="processes")
    run.add_argument("--shrink", type=int, default=3, metavar="N", help="make the first N failures smaller (default 3)")
    run.add_argument("--most-failures", type=int, default=20, metavar="N", help="stop after N (default 20)")
    run.set_defaults(do=_run)
    replay = verbs.add_parser("replay", help="run one seed again")
    replay.add_argument("seed", type=int)
    replay.add_argument("--trace", action="store_true", help="print every operation of the store")
    replay.add_argument(
        "--without", type=_words, default=frozenset(), metavar="WHAT,…", help="kinds of faults, and names, to leave out"
    )
    replay.add_argument("--only", type=_numbers, metavar="N,…", help="operations at which faults may happen ('none' for none)")
    replay.set_defaults(do=_replay, refuse=replay.error)
    verbs.add_parser("exhaustive", help="try every moment").set_defaults(do=_exhaustive)
    return parser.parse_args(arguments)


def _minutes(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text}: expected more than 0")
    return float(text)


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return int(text)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(","))


def _numbers(text: str) -> frozenset[int]:
    if not re.fullmatch(r"none|\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers of operations, as in 3,118, or none")
    return frozenset() if text == "none" else frozenset(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
