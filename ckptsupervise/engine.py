"""One attempt: all ranks of a job, started, told signals, and ended, by torch.distributed.elastic.

Process management and rendezvous are the engine's: an `elastic_launch` without restarts of its own, in a thread, so that signals
stay the supervisor's. When a rank fails the engine sends SIGTERM to the others and waits; whoever watches may end them sooner.
A rank's parent is that thread, which lives as long as any rank: the kernel kills ranks whose supervisor has died.

Of a job of several nodes the engine of each starts its own ranks and knows nothing of the others: which there are is agreed
before (`ckptsupervise.rendezvous`), and one of its own rendezvous over all nodes could only say the same, or hang.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ckptcore import heartbeat
from ckptcore.errors import CallError
from ckptsupervise import leftovers, procfs
from ckptsupervise.orders import Order, environment
from ckptsupervise.outputs import Errors

SHUTDOWN = 1
"""Seconds that the engine itself gives ranks after SIGTERM at the very end: by then the supervisor has ended them."""


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A rank has ended. `status` as `subprocess` has it: negative for a signal; None while only the engine knows it."""

    rank: int
    status: int | None
    at: float
    """When it was seen, seconds of `CLOCK_MONOTONIC`."""


class Running(Protocol):
    """An attempt under way."""

    @property
    def launched(self) -> float:
        """When it was started, seconds of `CLOCK_MONOTONIC`."""
        ...

    @property
    def over(self) -> bool:
        """Whether all ranks have ended, and the engine has."""
        ...

    @property
    def error(self) -> str:
        """Why the engine could not start ranks; empty if it could."""
        ...

    def processes(self) -> dict[int, int]:
        """Rank → the process that was started for it."""
        ...

    def gone(self) -> list[Gone]:
        """The ranks that have ended, in the order in which that was seen."""
        ...

    def words(self, rank: int) -> str:
        """The end of what a rank has written to standard error."""
        ...

    def send(self, number: int, ranks: Sequence[int]) -> None:
        """Send a signal to ranks: to the process that writes heartbeats, which may be a child of the one that was started."""
        ...

    def kill(self, ranks: Sequence[int] | None = None) -> None:
        """SIGKILL ranks, or all of them, with what they have started."""
        ...

    def finish(self, timeout: float) -> list[int]:
        """Wait for the end, and end what ranks have left; returns processes that could not be ended in `timeout` seconds."""
        ...


class Engine(Protocol):
    """Starts attempts on this node."""

    def start(self, order: Order) -> Running:
        """Start all ranks."""
        ...


@dataclass
class Elastic:
    """`Running`, on torch.distributed.elastic."""

    order: Order
    apart: bool = False
    launched: float = field(default_factory=time.monotonic)
    error: str = ""
    _processes: dict[int, int] = field(default_factory=dict)
    _gone: dict[int, Gone] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._errors = Errors(self.order.folder, len(self.order.slots))
        self._launched = threading.Event()
        self._thread = self._start(self._run)

    @property
    def over(self) -> bool:
        """Whether the engine's thread has ended: then no rank is left."""
        return not self._thread.is_alive()

    def processes(self) -> dict[int, int]:
        """As far as they were found among this process's own children."""
        return dict(self._processes)

    def gone(self) -> list[Gone]:
        """As the threads that wait for them have it; of who ended before one waited the engine tells the status, at its end."""
        return sorted(list(self._gone.values()), key=lambda each: each.at)  # noqa: C414 - a copy: threads add to it

    def words(self, rank: int) -> str:
        """As far as they were kept."""
        return self._errors.words(rank - self.order.ranks.start)

    def send(self, number: int, ranks: Sequence[int]) -> None:
        """To the process that beats, unless it has gone, or is none of this attempt's."""
        ours = set(self._members())
        for rank in ranks:
            beat = heartbeat.read_one(self.order.folder, rank)
            pid = beat.pid if beat is not None and beat.pid in ours else self.processes().get(rank)
            if pid in ours:
                procfs.send(pid, number)

    def kill(self, ranks: Sequence[int] | None = None) -> None:
        """All members of the attempt, or of the ranks' sessions."""
        if ranks is None:
            pids = self._members()
        else:
            sessions = {pid for rank, pid in self.processes().items() if rank in ranks}
            found = map(procfs.look, self._members())
            pids = [each.pid for each in found if each is not None and each.session in sessions]
        for pid in pids:
            procfs.kill(pid)

    def finish(self, timeout: float) -> list[int]:
        """The engine first, which waits for its ranks; then what these have left."""
        self._thread.join(timeout)
        left = leftovers.end(self.order.folder, timeout=timeout)
        self._errors.close()
        return left

    def _members(self) -> list[int]:
        """All processes of the attempt. A rank that runs is a child of ours, whose ID nobody else gets."""
        return leftovers.members(self.order.folder, [pid for rank, pid in self.processes().items() if rank not in self._gone])

    def _run(self) -> None:
        finding = self._start(self._find)
        try:
            self._errors.start()
            failures = _launch(self.order, self._errors, apart=self.apart)
        except Exception as error:  # noqa: BLE001 - told to the supervisor, which records it
            self.error = f"{type(error).__name__}: {error}"
            return
        finally:
            self._launched.set()
        finding.join()
        for local, rank in enumerate(self.order.ranks):
            seen = self._gone.get(rank)
            if seen is None or seen.status is None:
                self._gone[rank] = Gone(rank=rank, status=failures.get(local, 0), at=seen.at if seen else time.monotonic())

    def _find(self) -> None:
        """Find the ranks' processes, wait for each in a thread of its own, and for these: what they saw is known then."""
        waiting: list[threading.Thread] = []
        while len(self._processes) < len(self.order.slots) and not self._launched.wait(0.02):
            for rank, pid in _children(self.order.folder):
                if rank not in self._processes:
                    self._processes[rank] = pid
                    waiting.append(self._start(self._wait, rank, pid))
        for thread in waiting:
            thread.join()

    def _wait(self, rank: int, pid: int) -> None:
        gone = Gone(rank=rank, status=ended(pid), at=time.monotonic())
        if gone.status is None:
            self._gone.setdefault(rank, gone)  # the engine was quicker, and may have told already
        else:
            self._gone[rank] = gone

    def _start(self, work: Callable[..., None], *arguments: int) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name=f"attempt-{self.order.attempt}", daemon=True)
        thread.start()
        return thread


class ElasticEngine:
    """`Engine`, on torch.distributed.elastic. Raises `CallError` where that is not installed.

    `apart`: what ranks print goes to standard error.
    """

    def __init__(self, *, apart: bool = False) -> None:
        if not sys.platform.startswith("linux"):
            raise CallError(f"supervision works on Linux only, and this is {sys.platform}")
        try:
            importlib.import_module("torch.distributed.launcher.api")  # takes seconds: not in the first attempt's time
        except ImportError as error:
            raise CallError(f"supervision needs PyTorch: pip install 'jaxckpt[supervise]' ({error})") from error
        self._apart = apart

    def start(self, order: Order) -> Running:
        """Start all ranks of `order`."""
        return Elastic(order, apart=self._apart)


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` that nobody listens on at the moment."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _launch(order: Order, errors: Errors, *, apart: bool) -> dict[int, int]:
    """Run all ranks to their end; the statuses of those that failed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415 - seconds, when it is needed
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    coordinator = order.group.coordinator if order.group else f"127.0.0.1:{free_port()}"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(order.slots),
        run_id=f"attempt-{order.attempt}-{os.getpid()}",
        role="rank",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=SHUTDOWN,
        logs_specs=_outputs(errors, environment(order, coordinator, os.environ), apart=apart),
    )
    command = [each.replace("$", "$$") for each in order.command]  # the engine takes `${…}` for variables of its own
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "ckptsupervise.rank", "--", *command)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def _outputs(errors: Errors, environments: Sequence[Mapping[str, str]], *, apart: bool) -> Any:
    """The engine's own way to be told where output goes; it is also where each rank's environment can be added to."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest  # noqa: PLC0415

    class Outputs(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            for local_rank, own in enumerate(environments):
                envs[local_rank].update(own)
            found = super().reify(envs)
            paths = {local_rank: str(errors.path(local_rank)) for local_rank in envs}
            found.stderrs.update(paths)
            if apart:
                found.stdouts.update(paths)
            return found

    return Outputs(os.devnull)


def _children(folder: Path) -> list[tuple[int, int]]:
    """Rank → process, of our own children that belong to the attempt."""
    own = [seen.pid for seen in procfs.processes() if seen.parent == os.getpid()]
    found = [(procfs.environment(pid), pid) for pid in own]
    mark = os.fsencode(folder)
    return [(int(each[heartbeat.RANK.encode()]), pid) for each, pid in found if each.get(heartbeat.FOLDER.encode()) == mark]


def ended(pid: int) -> int | None:
    """Wait until a child of ours has ended; its exit status, which is left for the engine to take. None if that was quicker."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
