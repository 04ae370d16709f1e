"""Bytes read from the store when many ranks restore one checkpoint, each for itself and with `fetch_once`.

One process saves the state whole. Then jobs of several torch processes restore it: replicated (each rank has all of it, as in
data parallel training), sharded along the first axis (each rank has a part), or as shards of which two ranks have a copy. A state
that as many ranks have saved sharded is restored sharded, too. A chunk is read whole, since only so can it be proven: where ranks
want parts of one chunk, each of them reads all of it.

What a process reads is what it asks for by system calls (`rchar` in `/proc/self/io`); what ranks pass on to each other goes over
sockets, which are not among them. Records and the tree of chunks are read by every rank, and count. Every array is compared with
what was saved.

The store is a local disk, whose page cache is as quick as memory: times show what passing chunks on costs, not what it saves on
a store that many machines share.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import arguments, state

ROOT = Path(__file__).parents[1]
PLACEMENTS = {"replicated": 1, "sharded": 2, "sharded, two copies": 4, "sharded, as saved": 2}
"""How the state lies on the ranks, and the fewest ranks for it."""
AS_SAVED = "sharded, as saved"
MODES = ("each for itself", "fetch_once")
SECONDS = 900.0
"""For one job."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which state, how many ranks, and how often."""
    parser.add_argument("--size", choices=list(state.MODELS), default="small", help="the state that is restored (default: small)")
    ranks = arguments.as_given(arguments.counts)
    parser.add_argument("--ranks", type=ranks, default="1,2,4,8", metavar="N,…", help="processes of a job (default: 1,2,4,8)")
    parser.add_argument(
        "--rounds", type=arguments.count, default=3, metavar="N", help="restores of each kind, interleaved (default: 3)"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every restore of every job, and what follows from them."""
    size, rounds = ("smoke", 1) if options.smoke else (options.size, options.rounds)
    sizes = [2] if options.smoke else arguments.counts(options.ranks)
    kinds = list(_kinds(sizes, smoke=options.smoke))
    saved = {_saved(ranks, placement) for ranks, placement, _ in kinds}
    for name, ranks, placement in sorted(saved):
        _job(ranks, {"do": "save", "size": size, "folder": str(options.dir / name), "placement": placement})
    jobs = []
    for number in range(rounds):
        for ranks, placement, mode in kinds:
            folder = options.dir / _saved(ranks, placement)[0]
            asked = {"do": "restore", "size": size, "folder": str(folder), "placement": placement, "mode": mode}
            jobs.append({"round": number, "ranks": ranks, "placement": placement, "mode": mode, "each": _job(ranks, asked)})
    return {"size": size, "bytes": state.nbytes(size), "rounds": rounds, "jobs": jobs, "rows": derive(state.nbytes(size), jobs)}


def _kinds(sizes: Sequence[int], *, smoke: bool) -> Iterator[tuple[int, str, str]]:
    """Ranks, placement and mode of each job. Alone there is nobody to pass anything on to."""
    for ranks in sizes:
        for placement, fewest in PLACEMENTS.items():
            modes = MODES[:1] if ranks == 1 else MODES[1:] if smoke else MODES
            if ranks >= fewest and (placement == "replicated" or not smoke):
                yield from ((ranks, placement, mode) for mode in modes)


def _saved(ranks: int, placement: str) -> tuple[str, int, str]:
    """The save that is restored: its folder, and on how many ranks the state lay how."""
    return (f"sharded-{ranks}", ranks, placement) if placement == AS_SAVED else ("whole", 1, "replicated")


def derive(nbytes: int, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind of job: medians over the rounds."""
    kinds = dict.fromkeys((job["ranks"], job["placement"], job["mode"]) for job in jobs)
    return [_row(nbytes, kind, [job for job in jobs if (job["ranks"], job["placement"], job["mode"]) == kind]) for kind in kinds]


def _row(nbytes: int, kind: tuple[int, str, str], jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ranks, placement, mode = kind
    return {
        "ranks": ranks,
        "placement": placement,
        "mode": mode,
        "process": median(max(one["read"] / one["needed"] for one in job["each"]) for job in jobs),
        "job": median(sum(one["read"] for one in job["each"]) / nbytes for job in jobs),
        "seconds": median(max(one["seconds"] for one in job["each"]) for job in jobs),
        "over": median(max(one["over"] for one in job["each"]) for job in jobs),
    }


def table(result: Mapping[str, Any]) -> str:
    """One line for each kind of job."""
    titles = [
        *("ranks", "state on the ranks", "how", "process: read ÷ needed", "job: read ÷ state", "seconds"),
        "memory over target and results",
    ]
    rows = [
        [
            *(str(row["ranks"]), row["placement"], row["mode"], f"{row['process']:.2f}", f"{row['job']:.2f}"),
            *(f"{row['seconds']:.2f}", f"{row['over'] / 2**20:.0f} MiB"),
        ]
        for row in result["rows"]
    ]
    lines = [titles, ["---:", "---", "---", "---:", "---:", "---:", "---:"], *rows]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    often = f"medians of {result['rounds']} rounds" if result["rounds"] > 1 else "1 round"
    note = "A chunk is read whole, as only so can it be proven: ranks that want parts of one chunk each read all of it."
    return f"{result['bytes'] / 1e6:,.0f} MB; {often}; of a job's processes the one with the most. {note}\n\n{drawn}"


def _job(ranks: int, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a job to its end; what each of its processes reports, in rank order."""
    port = _free_port()
    with ExitStack() as stack:
        children: list[subprocess.Popen[str]] = []
        for rank in range(ranks):
            children.append(stack.enter_context(_started(rank, ranks, port, asked)))
            stack.callback(children[-1].kill)  # before leaving would wait for it
        outputs = [child.communicate(timeout=SECONDS)[0] for child in children]
    failed = [child.returncode for child in children if child.returncode]
    if failed:
        raise RuntimeError(f"a job of {ranks} processes failed with status {failed[0]}")
    return [json.loads(output) for output in outputs]


def _started(rank: int, ranks: int, port: int, asked: Mapping[str, Any]) -> subprocess.Popen[str]:
    job = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    environment = {**os.environ, **{name: str(value) for name, value in job.items()}}
    command = [sys.executable, "-m", "benchmarks.ranks_child", json.dumps(asked)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return probe.getsockname()[1]
