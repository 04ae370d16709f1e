"""The measurements of a comparison, one record each: floors, saves and restores. What fails gives a record that says so.

Every operation has new processes. All figures of one are of the slowest of its processes (seconds) or of all together (bytes).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import floor, page_cache, state
from benchmarks.child import STEPS
from benchmarks.job import Failed, Job
from benchmarks.subject import Mesh

Record = dict[str, Any]

SAVED_ON: Mesh = "1d"
"""The mesh of the save that is restored on others."""


@dataclass(frozen=True)
class Plan:
    """What is measured, of each subject and in each round."""

    size: str
    caches: tuple[str, ...] = ("cold", "cached")
    others: tuple[Mesh, ...] = ("2d", "transposed")
    """The meshes on which a save from `SAVED_ON` is restored."""


def describe(subject: str) -> Record:
    """What a subject says of itself, or why it cannot be used."""
    return _tried({}, lambda: _run({"operation": "describe", "subject": subject}, 1, _only_report))


def floors(plan: Plan, folder: Path) -> Record:
    """What the machine can do with as many bytes: seconds, by way."""
    nbytes, sizes = state.nbytes(plan.size), state.sizes(plan.size)
    return {
        "save": floor.save_floor(folder, nbytes),
        "restore": {cache: floor.restore_floor(folder, nbytes, cached=cache == "cached") for cache in plan.caches},
        "proven": {cache: floor.proven_floor(folder, sizes, cached=cache == "cached") for cache in plan.caches},
        "copy": {"one-thread": floor.copy_floor(nbytes)},
    }


def home_of(processes: Mapping[Mesh, int]) -> Mesh:
    """The mesh of the save that is restored as it was: one device, or what comes nearest."""
    return "one" if "one" in processes else SAVED_ON


@dataclass(frozen=True)
class Trial:
    """One subject in one round. `processes`: how many it has on each mesh that it can do."""

    plan: Plan
    subject: str
    processes: Mapping[Mesh, int]

    def records(self, folder: Path) -> Iterator[Record]:
        """A save and its restores as it was, then a sharded save and its restores on other meshes."""
        home = home_of(self.processes)
        yield from self._saved_on(home, (home,), folder / "home")
        others: tuple[Mesh, ...] = tuple(mesh for mesh in self.plan.others if mesh in self.processes)
        if SAVED_ON in self.processes and others:
            yield from self._saved_on(SAVED_ON, others, folder / "other")

    def _saved_on(self, saved: Mesh, meshes: tuple[Mesh, ...], folder: Path) -> Iterator[Record]:
        folder.mkdir(parents=True)
        what: Record = {"subject": self.subject, "operation": "save", "mesh": saved, "ranks": self.processes[saved]}
        record = _told(_tried(what, lambda: self._run("save", saved, folder, self._saves)))
        yield record
        for mesh in meshes if "error" not in record else ():
            for cache in self.plan.caches:
                what = {"subject": self.subject, "operation": "restore", "saved": saved, "mesh": mesh, "cache": cache}
                what |= {"ranks": self.processes[mesh]}
                talk = self._restored_cached if cache == "cached" else self._restored_cold
                yield _told(_tried(what, lambda mesh=mesh, talk=talk: self._run("restore", mesh, folder, talk)))
        shutil.rmtree(folder)

    def _run(self, operation: str, mesh: Mesh, folder: Path, talk: Callable[[Job, Path], Record]) -> Record:
        what = {"operation": operation, "subject": self.subject, "size": self.plan.size, "mesh": mesh, "folder": str(folder)}
        return _run(what, self.processes[mesh], lambda job: talk(job, folder))

    def _saves(self, job: Job, folder: Path) -> Record:
        done = []
        for _ in STEPS:
            job.reports()
            files, stored = _stored(folder)
            os.sync()  # nobody else's bytes are flushed in the time that is measured
            job.go()
            reports = job.reports()
            figures = {kind: max(report[kind] for report in reports) for kind in ("blocked", "total")}
            now_files, now_stored = _stored(folder)
            done.append({**figures, "over": self._over(reports), "files": now_files - files, "bytes": now_stored - stored})
        return {"saves": done}

    def _restored_cold(self, job: Job, folder: Path) -> Record:
        job.reports()
        return self._restored(job, page_cache.drop(folder))

    def _restored_cached(self, job: Job, folder: Path) -> Record:
        job.reports()
        return self._restored(job, page_cache.load(folder))

    def _restored(self, job: Job, held: float) -> Record:
        job.go()
        reports = job.reports()
        read = {kind: sum(report[kind] for report in reports) for kind in ("asked", "disk")}
        return {"held": held, "seconds": max(report["seconds"] for report in reports), "over": self._over(reports), **read}

    def _over(self, reports: list[Record]) -> int:
        """Most resident bytes of all processes together, over what they had before the state was made and over the state."""
        return sum(report["peak"] for report in reports) - state.nbytes(self.plan.size)


def _run(request: Record, ranks: int, talk: Callable[[Job], Record]) -> Record:
    with Job(request, ranks) as job:
        record = talk(job)
        job.end()
    return record


def _only_report(job: Job) -> Record:
    return job.reports()[0]


def _tried(what: Record, measure: Callable[[], Record]) -> Record:
    """The record, or one that says why there is none."""
    try:
        return {**what, **measure()}
    except Failed as error:
        return {**what, "error": str(error)}


def _stored(folder: Path) -> tuple[int, int]:
    """The number of files below a folder, and their bytes."""
    sizes = [path.stat().st_size for path in page_cache.files_in(folder)]
    return len(sizes), sum(sizes)


def _told(record: Record) -> Record:
    """The same, and a line for who waits."""
    place = f"{record['mesh']}, {record['cache']}" if record["operation"] == "restore" else record["mesh"]
    said = record.get("error") or f"{record.get('seconds') or record['saves'][-1]['total']:.3f} s"
    print(f"  {record['subject']}, {record['operation']} on {place}: {said}", file=sys.stderr, flush=True)
    return record
