"""Checks the protocol model with spin: every configuration holds, every variant is caught.

    python spec/v1/model/check.py [--only NAME …] [--list] [--trail] [--large]

Exit codes: 0 all is as it should be; 1 something is not; 77 spin or a C compiler is not installed.
A search that was cut short, by depth or by memory, proves nothing and counts as a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import model_cases as cases
from model_cases import Case

MODEL = Path(__file__).parent
MISSING_TOOL = 77
TIMEOUT = 1800.0  # seconds, of one search
DEPTH = 200_000
MEMORY = 6_000  # MB, of one search


# The source: one text without includes, so that spin's line numbers are unique


@dataclass(frozen=True)
class Source:
    """The text that spin gets, and where each of its lines comes from."""

    lines: tuple[str, ...]
    origins: tuple[str, ...]
    """`file:line` of each line."""

    def where(self, line: int) -> str:
        """The origin of a line, which is counted from 1."""
        return self.origins[line - 1]

    def text(self, line: int) -> str:
        """The line without indentation and comment."""
        return re.sub(r"/\*.*?\*/", "", self.lines[line - 1]).strip()


def source(case: Case, folder: Path = MODEL) -> Source:
    """The model with the macros of a case."""
    head = [f"#define {name} {value}" for name, value in case.defines.items()] + [f"#define START {case.start}"]
    pairs = [(line, f"{case.name}:{number}") for number, line in enumerate(head, 1)] + list(_flat(folder / "protocol.pml"))
    return Source(tuple(line for line, _ in pairs), tuple(origin for _, origin in pairs))


def _flat(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        included = re.fullmatch(r'#include "(.+)"', line)
        if included:
            yield from _flat(path.parent / included[1])
        else:
            yield line, f"{path.name}:{number}"


# What spin's verifier says


@dataclass(frozen=True, kw_only=True)
class Search:
    """The outcome of one search."""

    states: int = 0
    depth: int = 0
    megabytes: float = 0.0
    broken: str | None = None
    """The invariant that a counterexample breaks."""
    cut_short: str | None = None
    """Why the search proves nothing."""
    unreached: frozenset[tuple[str, int]] = frozenset()
    """`(process, state)` of the statements that were never executed."""


def read_search(output: str) -> Search:
    """Read what the verifier printed."""
    states = re.search(r"(\d+) states, stored", output)
    depth = re.search(r"depth reached (\d+)", output)
    memory = re.search(r"([\d.]+)\s+total actual memory usage", output)
    broken = _broken(output)
    return Search(
        states=int(states[1]) if states else 0,
        depth=int(depth[1]) if depth else 0,
        megabytes=float(memory[1]) if memory else 0.0,
        broken=broken,
        cut_short=_cut_short(output, found=broken is not None),
        unreached=frozenset(_unreached(output)),
    )


def _broken(output: str) -> str | None:
    told = re.search(r"^pan:\d+: (assertion violated|acceptance cycle|invalid end state)(?: \W*(\w+))?", output, re.MULTILINE)
    if told is None:
        return None
    names = {"acceptance cycle": "P55_decided", "invalid end state": "P2_nobody_waits_for_ever"}
    return names.get(told[1]) or told[2]


def _cut_short(output: str, *, found: bool) -> str | None:
    for sign in ("max search depth too small", "out of memory", "reached -DMEMLIM bound"):
        if sign in output:
            return sign
    if "Full statespace search for:" not in output:
        return "it was no full search"
    errors = re.search(r"errors: (\d+)", output)
    if errors is None or "states, stored" not in output:
        return "it did not end"
    if not found and (errors[1] != "0" or "Search not completed" in output):
        return "it was not completed"
    return None


def _unreached(output: str) -> Iterator[tuple[str, int]]:
    process = ""
    for line in output.splitlines():
        heading = re.match(r"unreached in (?:proctype|init|claim) ?(\S*)", line)
        process = (heading[1] or "init") if heading else process
        statement = re.match(r"\t\S+:\d+, state (\d+), ", line)
        if statement:
            yield process, int(statement[1])


def read_table(output: str) -> dict[tuple[str, int], int]:
    """Every statement of the model (`pan -d -d`, before statements are merged): `(process, state)` → its line."""
    process, found = "", {}
    for line in output.splitlines():
        heading = re.match(r"(?:STEP \d+|proctype|init|claim) ?(\S*)", line)
        process = (heading[1].strip(":") or "init") if heading else process
        statement = re.match(r"\s+state\s+(\d+) -\(tr .* \S+?:(\d+) => ", line)
        if statement:
            found[process, int(statement[1])] = int(statement[2])
    return found


# Judging


@dataclass(frozen=True, kw_only=True)
class Result:
    """A case, what its search found, and which lines of the model it executed."""

    case: Case
    search: Search
    seconds: float = 0.0
    lines: Mapping[str, bool] = field(default_factory=dict)
    """`file:line` → whether it was executed; of the lines that this configuration has."""
    trail: Sequence[str] = ()

    @property
    def problem(self) -> str | None:
        """What is wrong; None: the result is the expected one."""
        return judge(self.case, self.search)


def judge(case: Case, search: Search) -> str | None:
    """Compare what was found with what the case expects."""
    if search.cut_short:
        return f"proves nothing: {search.cut_short}"
    if case.breaks is None:
        return f"breaks {search.broken}" if search.broken else None
    if search.broken is None:
        return "not caught"
    return None if search.broken == case.breaks else f"caught by {search.broken}, expected {case.breaks}"


def dead_lines(results: Iterable[Result], allowed: Mapping[str, str] = cases.UNREACHED) -> list[str]:
    """The lines of the correct model that no configuration executes. `allowed`: text of a line → why it is there."""
    executed: dict[str, bool] = {}
    for result in results:
        if result.case.breaks is None:
            for where, reached in result.lines.items():
                executed[where] = executed.get(where, False) or reached
    texts = {where: _text(where) for where, reached in executed.items() if not reached}
    return sorted(f"{where}: {text}" for where, text in texts.items() if text not in allowed)


def _text(where: str) -> str:
    name, _, number = where.partition(":")
    path = MODEL / name
    return (
        re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8").splitlines()[int(number) - 1]).strip()
        if path.exists()
        else where
    )


# Running


def missing_tools() -> list[str]:
    """The programs that are needed and not installed."""
    return [name for name in ("spin", "gcc") if shutil.which(name) is None]


def search(case: Case, *, with_trail: bool = False) -> Result:
    """Build and run one case in a temporary folder. Raises `RuntimeError` if it cannot be built."""
    text = source(case)
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        (Path(folder) / "model.pml").write_text("\n".join(text.lines) + "\n", encoding="utf-8")
        started = time.monotonic()
        _build(case, folder)
        options = ["-a", "-f", "-A"] if case.liveness else []
        found = read_search(_run(["./pan", *options, f"-m{DEPTH}", "-w22"], folder))
        seconds = time.monotonic() - started
        table = read_table(_run(["./pan", "-d", "-d"], folder))
        trail = list(_trail(case, text, folder)) if with_trail and found.broken else []
    lines: dict[str, bool] = {}
    for state, line in table.items():
        lines[text.where(line)] = lines.get(text.where(line), False) or state not in found.unreached
    return Result(case=case, search=found, seconds=seconds, lines=lines, trail=trail)


def _trail(case: Case, text: Source, folder: str) -> Iterator[str]:
    return read_trail(_run(["spin", "-t", "-p", "-g", "model.pml"], folder), text, key_names(case.defines))


def _build(case: Case, folder: str) -> None:
    told = _run(["spin", "-a", "model.pml"], folder)
    if not (Path(folder) / "pan.c").exists() or "Error" in told:
        raise RuntimeError(f"{case.name}: spin refuses the model:\n{told}")
    kind = ["-DNFAIR=3"] if case.liveness else ["-DSAFETY", "-DNOFAIR"]
    flags = ["-w", "-O2" if case.optimize else "-O0", *kind, "-DVECTORSZ=2048", f"-DMEMLIM={MEMORY}"]
    told = _run(["gcc", *flags, "-o", "pan", "pan.c"], folder)
    if not (Path(folder) / "pan").exists():
        raise RuntimeError(f"{case.name}: gcc refuses the verifier:\n{told}")


def _run(command: Sequence[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    return done.stdout + done.stderr


def read_trail(output: str, text: Source, names: Mapping[str, str]) -> Iterator[str]:
    """A counterexample, a step a line: the process, the place, the line of the model, and what it changed in the store."""
    head, step, values = "", "", dict[str, str]()
    for line in output.splitlines():
        told = re.match(r"\s*\d+:\s+proc\s+(\d+) \((\S+?):\d+\) model\.pml:(\d+) \(state \d+\)\s+\[", line)
        changed = re.match(r"\t\t(\w+(?:\[\d+\])?) = (\S+)$", line)
        if told:
            before, head = head, f"{told[2].strip(':')}#{told[1]:<3} {text.where(int(told[3])):20} {text.text(int(told[3]))}"
            if head != before:
                if _worth_showing(step):
                    yield step
                step = head
        elif changed and changed[2] != values.get(changed[1], "0"):
            values[changed[1]] = changed[2]
            step += f"   → {names.get(changed[1], changed[1])} = {changed[2]}"
    if _worth_showing(step):
        yield step


def _worth_showing(step: str) -> bool:
    return bool(step) and not step.startswith("init") and "CHECK(" not in step


def key_names(defines: Mapping[str, int]) -> dict[str, str]:
    """The keys of store.pml, as spin prints them: `obj[0]` → `LEDGER(0)`."""
    ranks, incarnations = defines.get("RANKS", 2), defines.get("INCS", 2)
    generations = range(defines.get("GEN_INCS", 1) * defines.get("SAVES", 1))
    keys = [f"{kind}({g})" for kind in ("LEDGER", "RETIRED", "LAYOUT", "INDEX", "PIN") for g in generations]
    keys += [f"RECEIPT({g}, {rank})" for g in generations for rank in range(ranks)]
    keys += [f"DATA({g}, {writer})" for g in generations for writer in range(defines.get("WRITERS", ranks))]
    keys += [f"CLAIM({n})" for n in range(1, incarnations + 2)] + [f"BASE({n})" for n in range(1, incarnations + 1)]
    keys += [f"STAGED({g}, {rank})" for g in generations for rank in range(ranks)] + [f"ON_NODES({g})" for g in generations]
    return {f"obj[{number}]": key for number, key in enumerate(keys)}


# The command


def report(result: Result) -> str:
    """One line of the table."""
    case, found = result.case, result.search
    outcome = result.problem or ("holds" if case.breaks is None else f"caught: {found.broken}")
    mark = "FAIL " if result.problem else ""
    return f"{case.name:26} {found.states:>10,} {found.depth:>7,} {result.seconds:>6.1f} {found.megabytes:>6.0f}  {mark}{outcome}"


def listing() -> Iterator[str]:
    """The cases, group by group."""
    groups = [
        ("Configurations: nothing may break", cases.CORRECT),
        ("Variants: each has to break the invariant that is named", cases.VARIANTS),
        ("Larger configurations, with --large or by name", cases.LARGE),
    ]
    for heading, found in groups:
        lines = [f"{case.name:26} {case.what}" + (f" (breaks {case.breaks})" if case.breaks else "") for case in found]
        yield "\n".join([heading, *(f"  {line}" for line in lines)])


def chosen(names: Sequence[str], *, large: bool) -> list[Case]:
    """The cases to run. Raises `ValueError` for a name that none has."""
    every = [*cases.CORRECT, *cases.VARIANTS, *cases.LARGE]
    unknown = set(names) - {case.name for case in every}
    if unknown:
        raise ValueError(f"no case is called {', '.join(sorted(unknown))}; --list shows them")
    if names:
        return [case for case in every if case.name in names]
    return [*cases.LARGE] if large else [*cases.CORRECT, *cases.VARIANTS]


def check(wanted: Sequence[Case], *, with_trail: bool) -> int:
    """Run the cases, two at a time, and print the table; the exit code."""
    print(f"{'configuration':26} {'states':>10} {'depth':>7} {'s':>6} {'MB':>6}  result", flush=True)
    results: list[Result] = []
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for result in pool.map(lambda case: search(case, with_trail=with_trail), wanted):
            results.append(result)
            print(report(result), flush=True)
            print("".join(f"    {step}\n" for step in result.trail), end="")
    failed = sum(result.problem is not None for result in results)
    dead = dead_lines(results) if all(case in wanted for case in cases.CORRECT) else []
    for line in dead:
        print(f"FAIL no configuration executes {line}")
    print(f"{len(results)} searches, {failed} not as expected, {len(dead)} lines that nothing executes")
    return 1 if failed or dead else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Check the protocol model with spin.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run these cases")
    parser.add_argument("--list", action="store_true", help="list the cases and what each is about")
    parser.add_argument("--trail", action="store_true", help="print each counterexample, step by step")
    parser.add_argument("--large", action="store_true", help="run the searches that take minutes and gigabytes instead")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n\n".join(listing()))
        return 0
    missing = missing_tools()
    if missing:
        print(
            f"The model was not checked: {' and '.join(missing)} not found. On Debian: apt-get install spin gcc", file=sys.stderr
        )
        return MISSING_TOOL
    try:
        wanted = chosen(options.only, large=options.large)
    except ValueError as error:
        parser.error(str(error))
    return check(wanted, with_trail=options.trail)


if __name__ == "__main__":
    sys.exit(main())
