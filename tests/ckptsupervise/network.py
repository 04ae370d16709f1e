"""Two machines made of network namespaces, with one link between them, and `ckpt supervise` on each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import ckptcore
from ckptcore.attempts import Attempt, Attempts
from ckptsupervise import leftovers
from tests.ckptcore.support import file_store
from tests.processes import ROOT, Rank

INTERFACE = "eth0"


class Unavailable(Exception):
    """This machine, or this user, cannot make network namespaces; the message says why."""


class Machines:
    """The machines `a` and `b`, a run that both reach, and the supervisors that are started on them."""

    def __init__(self, place: Path) -> None:
        self.place, self.run = place, place / "run"
        self.spaces = {name: f"ckpt-{os.getpid()}-{name}" for name in "ab"}
        self.started: list[Rank] = []

    def address(self, name: str) -> str:
        return f"10.93.7.{'ab'.index(name) + 1}"

    def make(self) -> None:
        """Raises `Unavailable`."""
        pair = {name: f"ck{os.getpid()}{name}" for name in "ab"}
        for space in self.spaces.values():
            _ip("netns", "add", space)
        _ip("link", "add", pair["a"], "type", "veth", "peer", "name", pair["b"])
        for name, space in self.spaces.items():
            _ip("link", "set", pair[name], "netns", space, "name", INTERFACE)
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", INTERFACE)
            for device in ("lo", INTERFACE):
                _ip("-n", space, "link", "set", device, "up")

    def link(self, *, up: bool) -> None:
        """Cut the link, or mend it."""
        _ip("-n", self.spaces["a"], "link", "set", INTERFACE, "up" if up else "down")

    def start(self, name: str, program: Sequence[str], *options: str) -> Rank:
        """Start a supervisor of two ranks on a machine."""
        top = self.place / f"tmp-{name}"
        top.mkdir(exist_ok=True)
        given = ["--run", str(self.run), "--nproc", "2", "--nnodes", "2", "--node", name, "--address", self.address(name)]
        command = [sys.executable, "-m", "ckptcli", "--debug", "supervise", *given, *options, "--", sys.executable, *program]
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(top), "GLOO_SOCKET_IFNAME": INTERFACE, "JAX_PLATFORMS": "cpu"}
        environment = {**os.environ, **own}
        process = subprocess.Popen(
            [_program(), "netns", "exec", self.spaces[name], *self._named(name), *command],
            env=environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(Rank(process))
        return self.started[-1]

    def _named(self, name: str) -> list[str]:
        """What makes a machine's address its host name, where gloo under JAX listens; with torch it is told the interface."""
        return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.address(name)]

    @property
    def attempts(self) -> list[Attempt]:
        return Attempts(file_store(self.run)).load()

    def members(self) -> list[list[str]]:
        """The nodes of each attempt."""
        return [[member.node for member in each.plan.members] for each in self.attempts]

    def ranks_of(self, name: str) -> list[int]:
        """Processes of attempts on a machine."""
        return leftovers.members(self.place / f"tmp-{name}")

    def wait_until_none_runs(self, timeout: float = 30.0) -> None:
        """Fails if a rank still runs on any machine after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while any(self.ranks_of(name) for name in "ab"):
            assert time.monotonic() < deadline, "ranks are left"
            time.sleep(0.05)

    def wait_until_both_train(self, timeout: float = 120.0) -> None:
        """Fails if the newest attempt is not of both machines, and trains, after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            newest = [each for each in self.attempts if len(each.plan.members) == 2 and each.resumed and not each.end]
            if newest and newest[-1].number == self.attempts[-1].number:
                return
            assert time.monotonic() < deadline, "\n".join(rank.output for rank in self.started)
            time.sleep(0.1)

    def wait_until_one_trains(self, number: int, timeout: float = 60.0) -> None:
        """Fails if that attempt is not of one machine alone, and trains, after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not any(each.number == number and len(each.plan.members) == 1 and each.resumed for each in self.attempts):
            assert time.monotonic() < deadline, "\n".join(rank.output for rank in self.started)
            time.sleep(0.1)

    def check(self) -> None:
        """What is committed is whole."""
        run = ckptcore.open_run(self.run)
        assert run.head() is not None
        run.verify(deep=True)

    def end(self) -> None:
        for rank in self.started:
            rank.end()
        for name in "ab":
            leftovers.end(self.place / f"tmp-{name}")
        for space in self.spaces.values():
            with suppress(Unavailable):
                _ip("netns", "del", space)


@contextmanager
def machines(place: Path) -> Iterator[Machines]:
    """Nothing outlives this. Raises `Unavailable`."""
    made = Machines(place)
    try:
        made.make()
        yield made
    finally:
        made.end()


def _ip(*arguments: str) -> None:
    done = subprocess.run([_program(), *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _program() -> str:
    found = shutil.which("ip")
    if os.getuid() != 0 or found is None or shutil.which("unshare") is None:
        raise Unavailable("network namespaces need root, iproute2 and util-linux")
    return found
