"""`ckpt supervise` as a process, and what it tells."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ckptsupervise import leftovers
from demo.failures.plan import FEWEST, RANKS, Plan
from demo.processes import ROOT, LaunchFailed, environment

TRAIN_DEADLINE = 10.0
"""Seconds of silence after which a rank that trains hangs."""
GROW_AFTER = 15.0
"""Seconds until a slot that was left out is tried again."""
OPTIONS = (
    *("--nproc", str(RANKS), "--min-nproc", str(FEWEST), "--tries", "2"),
    *("--grow-after", f"{GROW_AFTER:g}s", "--grace", "30s"),
    *("--deadline", f"train={TRAIN_DEADLINE:g}s", "--deadline", "init=90s", "--deadline", "restore=60s"),
    *("--deadline", "save=30s", "--deadline", "final=60s"),
)
END_SECONDS = 30.0

Event = dict[str, Any]


class Supervision:
    """The supervisors of one run, one after the other. Use it as a context manager: leaving it ends them, and so their ranks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events: list[Event] = []
        """What all of them have told so far."""
        self.statuses: list[int] = []
        """With what those that have ended did so."""
        self._node = Path(plan.folder) / "node"
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._node.mkdir(parents=True)
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._end(self._process)
        leftovers.end(self._node)

    @property
    def command(self) -> list[str]:
        """As it is called in a shell."""
        program = [sys.executable, "-m", f"demo.failures.train_{self.plan.framework}", self.plan.to_json()]
        return ["ckpt", "supervise", "--json", "--run", self.plan.url, *OPTIONS, "--", *program]

    def start(self) -> None:
        """Start a supervisor; the one before has ended."""
        command = [sys.executable, "-m", "ckptcli", *self.command[1:]]
        place = {**environment(), "TMPDIR": str(self._node)}
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(command, cwd=ROOT, env=place, stdout=subprocess.PIPE, stderr=errors)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor, and to nobody else."""
        if self._process is not None:
            self._process.send_signal(number)

    def ended(self) -> int | None:
        """The exit status of the supervisor, once it has ended and all that it told is read; told once."""
        if self._process is None or self._process.poll() is None:
            return None
        status = self._process.wait()
        if self._reader is not None:
            self._reader.join()
        self._process = None
        self.statuses.append(status)
        return status

    def left(self) -> list[int]:
        """The processes of any attempt that still live."""
        return leftovers.members(self._node)

    def failed(self, what: str) -> LaunchFailed:
        """An error, with the end of what supervisor and ranks have written."""
        tail = self._errors.read_text(errors="replace").strip().splitlines()[-20:]
        told = [f"{event['at'][11:19]} {event['message']}" for event in self.events[-10:]]
        return LaunchFailed("\n    ".join([f"{self.plan.framework}: {what}; see {self._errors}:", *told, "", *tail]))

    @property
    def _errors(self) -> Path:
        return Path(self.plan.folder) / "supervise.err"

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None:
            with process.stdout as stream:
                for line in stream:
                    self.events.append(json.loads(line))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """A first signal asks, a second one kills all ranks; SIGKILL leaves them to the kernel."""
        steps: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)
        for number in steps:
            if process.poll() is None:
                process.send_signal(number)
                _wait(process, 0.5 if number == signal.SIGTERM else END_SECONDS)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
