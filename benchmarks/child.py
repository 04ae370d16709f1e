"""One process of one operation: `python -m benchmarks.child REQUEST`, started by `benchmarks.job`.

It writes one JSON object a line to the file descriptor that the request names. After each that says `ready` it waits for a
line on its standard input: the parent starts all processes of a job at one time, and prepares the page cache before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine, memory
from benchmarks.subject import Mesh, Subject, load, processes

STEPS = (1, 2)
"""The saves of one process: the second one finds buffers and compiled code."""


@dataclass(frozen=True)
class Request:
    """What a child is asked to do."""

    operation: str
    """`describe`, `save` or `restore`."""
    subject: str
    report: int
    """The file descriptor for reports."""
    size: str = "smoke"
    mesh: Mesh = "one"
    folder: str = ""


Report = Callable[..., None]


def describe(subject: Subject, report: Report) -> None:
    """Report what the subject says of itself."""
    report(
        title=subject.title,
        settings=subject.settings,
        versions=machine.versions(subject.packages),
        processes={mesh: processes(subject.packages, mesh) for mesh in sorted(subject.meshes)},
    )


def save(subject: Subject, request: Request, report: Report) -> None:
    """Save twice, and report each save."""
    base = memory.resident()
    subject.prepare(request.size, request.mesh)
    for step in STEPS:
        _wait(report)
        with memory.Peak(base) as peak:
            saved = subject.save(Path(request.folder), step)
        report(**asdict(saved), peak=peak.bytes)


def restore(subject: Subject, request: Request, report: Report) -> None:
    """Restore once, check what came, and report."""
    base = memory.resident()
    subject.prepare(request.size, request.mesh, zeros=True)
    _wait(report)
    before = read_so_far()
    with memory.Peak(base) as peak:
        started = time.perf_counter()
        subject.restore(Path(request.folder))
        seconds = time.perf_counter() - started
    after = read_so_far()
    subject.check()
    report(seconds=seconds, peak=peak.bytes, **{kind: after[kind] - before[kind] for kind in after})


def read_so_far() -> dict[str, int]:
    """Bytes that this process has read by now: by system calls (`asked`, which memory maps are not), and from disks (`disk`)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return {"asked": counts["rchar"], "disk": counts["read_bytes"]}


def _wait(report: Report) -> None:
    report(ready=True)
    if not sys.stdin.readline():
        raise EOFError("the parent has gone away")


def _warmed(subject: Subject) -> Subject:
    """JAX makes its devices when they are first used: before anybody looks at the memory."""
    if "jax" in subject.packages:
        import jax  # noqa: PLC0415 - only where the subject has it already

        jax.block_until_ready(jax.numpy.zeros(8))
    return subject


def run(request: Request, report: Report) -> None:
    """Do what is asked; what fails is reported, and raised."""
    try:
        subject = _warmed(load(request.subject))
        if request.operation == "describe":
            describe(subject, report)
            return
        (save if request.operation == "save" else restore)(subject, request, report)
        subject.close()
    except BaseException as error:
        report(error=f"{type(error).__name__}: {error}")
        raise


def main(text: str) -> None:
    """Do what the request says, in JSON."""
    request = Request(**json.loads(text))
    with os.fdopen(request.report, "w") as file:
        run(request, lambda **figures: print(json.dumps(figures), file=file, flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
