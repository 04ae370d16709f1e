"""One rank of a real job of several processes, which does as a plan says. A script of `tests.torchckpt.procs` runs it.

The state is plain numpy arrays (`HostBackend`), so that nothing but the protocol is at work. What happens is printed: a line
`at POINT` where the rank waits for the test, and `step N: OUTCOME …` after each save.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ckptcore import saving
from ckptcore.channel import Channel
from ckptcore.errors import SaveError, Superseded
from ckptcore.events import Event
from ckptcore.keep import Keep
from ckptcore.store import Storage
from tests.ckptcore.support import Sharded, checkpointer, same, state

BIG = 1 << 20
"""Bytes of the large array in each rank's part of the state."""
PATIENCE = 60.0
"""Seconds that a rank waits for the test."""
SCRIPT = """
from tests.faults.member import main
from torchckpt.channel import open_channel
main(ARGS[0], open_channel("faults"))
"""


@dataclass(frozen=True, kw_only=True)
class Act:
    """What a rank does in the midst of a save, at an event: before anything that comes after it."""

    step: int
    rank: int
    at: str
    do: Literal["pause", "stop", "kill", "limit"]
    limit: int = 0
    """For `limit`: the most bytes of a file, until the end of the save."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job: restore or begin, then a save of each of `steps`. It waits for the test after those of `hold`."""

    url: str
    folder: str
    steps: list[int]
    acts: list[Act] = field(default_factory=list)
    hold: list[int] = field(default_factory=list)
    timeout: float = 2.0
    """Seconds to wait for every rank's receipt, at a step at which something happens to a rank."""
    grace: float = 60.0
    """Seconds for which the others wait for the coordinator after its own deadline."""
    metadata: str | None = None
    keep: int | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The plan as an argument of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        """The plan from the argument."""
        fields = json.loads(text)
        return cls(**{**fields, "acts": [Act(**act) for act in fields["acts"]]})

    def let_go(self, point: str) -> None:
        """Called by the test: nobody waits at `point` any more."""
        Path(self.folder, point).touch()


def large(step: int, rank: int, size: int) -> dict[str, Any]:
    """The state after a step: everything that `exact` needs, and an array of `BIG` bytes for each rank."""
    whole = np.arange(size * BIG // 4, dtype=np.float32).reshape(size, -1) + step
    small = state(step, rank, size)
    return {**small, "params": {**small["params"], "big": Sharded.of(whole, rank, size)}}


def main(text: str, link: Channel) -> None:
    """Do as the plan says, then end without waiting for anybody."""
    plan = Plan.of(text)
    saving.GRACE = plan.grace
    storage = Storage(**plan.storage)
    keep = None if plan.keep is None else Keep(last=plan.keep)
    how = {"coordinator_timeout": plan.timeout, "storage": storage, "keep": keep, "on_preemption": "ignore"}
    saver = checkpointer(plan.url, link, on_event=lambda event: _act(plan, event), **how)
    begin = large(0, link.rank, link.size)
    restored = saver.restore_or_init(lambda: begin, like=begin)
    assert same(restored.components, large(restored.step, link.rank, link.size))
    _say(f"restored: {restored.step} {restored.reason}")
    for step in plan.steps:
        saver._timeout = plan.timeout if any(act.step == step for act in plan.acts) else PATIENCE
        try:
            saver.save(step, large(step, link.rank, link.size), metadata=plan.metadata).result()
            _say(f"step {step}: committed")
        except (SaveError, Superseded) as error:
            _say(f"step {step}: {error.kind} {getattr(error, 'missing', ())} {error}")
            if isinstance(error, Superseded):
                break
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if step in plan.hold:
            _pause(plan, f"after-{step}")
    _say("done")
    os._exit(0)


def _act(plan: Plan, event: Event) -> None:
    for act in plan.acts:
        found = (event.kind, event.rank, event.generation.step if event.generation else 0)
        if found == (act.at, act.rank, act.step):
            _say(f"doing {act.do} at {act.at}")
            if act.do == "pause":
                _pause(plan, f"{act.at}-{act.step}")
            elif act.do == "limit":
                resource.setrlimit(resource.RLIMIT_FSIZE, (act.limit, resource.RLIM_INFINITY))
            else:
                # To this very thread: it takes not a step more.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if act.do == "stop" else signal.SIGKILL)


def _pause(plan: Plan, point: str) -> None:
    _say(f"at {point}")
    deadline = time.monotonic() + PATIENCE
    while not Path(plan.folder, point).exists():
        if time.monotonic() > deadline:
            os._exit(3)
        time.sleep(0.005)


def _say(line: str) -> None:
    print(line.replace("\n", " "), flush=True)  # noqa: T201 -- read by the test
