"""How many threads one checkpointer uses, and how many bytes are on their way: what was asked for, or what suits the machine.

Every store carries its limits. The default number of threads is that of the cores this process may use: those of its
affinity mask, or fewer where a control group (cgroup v2) grants less time than that; at least 2, so that reading and digesting
overlap on one core, and at most 32, beyond which memory or the disk is the bound. What mostly waits for an answer takes no core:
there are at least 16 requests at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckptcore.errors import CallError

BYTES_IN_FLIGHT = 256 << 20
"""Memory for chunks on their way, beyond snapshots and results, unless somebody asks for another number."""

FEWEST_THREADS = 2
MOST_THREADS = 32
"""By default. More help where they wait for a store."""
LARGEST_POOL = 1024
"""Threads that somebody may ask for: with more a machine is busy with starting them, for every restore anew."""
REQUESTS = 16
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one checkpointer may use at a time, for one save or one restore.

    `threads` read, write or digest; `requests` wait for a store's answer; `bytes_in_flight` is the memory for chunks on their
    way, beyond the snapshot and the results (one chunk always has room).
    """

    threads: int
    requests: int
    bytes_in_flight: int


def limits(threads: int | None = None, bytes_in_flight: int | None = None) -> Limits:
    """The limits asked for; for each that was not, the default of this machine. Raises `CallError` for what is none."""
    _check("threads", threads, f"a number of threads up to {LARGEST_POOL}, such as 8", LARGEST_POOL)
    _check("bytes_in_flight", bytes_in_flight, "a number of bytes, such as 256 << 20")
    chosen = threads or min(max(usable_cores(), FEWEST_THREADS), MOST_THREADS)
    return Limits(
        threads=chosen,
        requests=threads or max(chosen, REQUESTS),
        bytes_in_flight=bytes_in_flight or BYTES_IN_FLIGHT,
    )


def _check(name: str, value: int | None, expected: str, most: float = math.inf) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise CallError(f"Storage({name}={value!r}): expected {expected}, or None for what suits the machine")


def usable_cores() -> int:
    """The cores that this process may use: its affinity mask, less what a control group withholds."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _quotas() -> Iterator[int]:
    """The cores whose time each control group above this process grants; nothing where there are none, or of version 1."""
    with suppress(OSError, ValueError, IndexError, ZeroDivisionError):
        own = next(line for line in [*_CGROUP.read_text().splitlines(), "0::/"] if line.startswith("0::"))
        place = _CGROUPS / own.removeprefix("0::").lstrip("/")
        for folder in [place, *(parent for parent in place.parents if parent.is_relative_to(_CGROUPS))]:
            with suppress(FileNotFoundError):
                quota, period = (folder / "cpu.max").read_text().split()
                if quota != "max":
                    yield math.ceil(int(quota) / int(period))
