"""When a job is told to stop (SIGTERM): one step that all ranks agree on, then a way out.

On every rank a Python handler sets a flag (`ckptcore.signals`). The ranks agree through one value in the process
group's store, without a collective and without ever waiting for each other:

- `"7"`: some rank has made its 7th call of `reached` and was told to go on;
- `"stop 8"`: every rank stops at its 8th call.

Only `compare_set` changes the value, so changes come one after the other: `"n"` to `"n+1"`, by the first rank to
make its call n+1, or `"n"` to `"stop n+1"`, by a rank that was told to stop. `"stop …"` never changes.

Why all ranks stop at the same call, however far apart they are: a rank goes on from its call n only when it has
read a value of n or more, or a stop at a later call. When `"stop n+1"` was written the value was n, so no rank
had gone on from call n+1 or a later one; and from then on a rank that makes its call n+1 finds no value
that lets it go on. So every rank stops at that call, and goes on from each before it.

A rank that is the slowest of all still gets its stop in: it asks for the call after the newest, at once.
"""

from __future__ import annotations

import signal

from ckptcore.signals import Watch
from torchckpt.channel import asking, open_store, world

_KEY = "agreed"
_STOP = b"stop "


def ignore_sigterm(worker: int) -> None:  # noqa: ARG001 -- what a DataLoader calls it with
    """A `worker_init_fn` for loaders with workers: what tells the job to stop must not end them before its last save.

    `torchrun` and most schedulers send SIGTERM to all processes of a job. Workers end with the process that started them.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Preemption(Watch):
    """Watches for SIGTERM. Make it in the main thread, after `torch.distributed.init_process_group`.

    `label` tells the watches of several runs apart; ranks make those of one label in the same order. A call of `reached`
    is one request to the store at most: 0.04 ms on one host, else a round trip. Raises `CallError`
    when there are several processes without a process group.
    """

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._store = open_store("preemption", label) if world()[1] > 1 else None
        self._calls = 0
        self._read = b""
        self.handler.listen()

    def agreed(self, step: int) -> bool:  # noqa: ARG002 -- calls are what ranks have in common, also after a restore of an earlier step
        """By the value in the store, or in a job of one process as soon as the signal has come."""
        if self._store is None:
            return self.handler.asked
        self._calls += 1
        while True:
            asked = self.handler.asked
            stop, newest = _parse(self._read)
            if stop is not None:
                return self._calls >= stop
            if self._calls <= newest and not asked:
                return False
            wanted = b"%b%d" % (_STOP if asked else b"", newest + 1)
            with asking("preemption"):
                self._read = self._store.compare_set(_KEY, self._read, wanted)


def _parse(value: bytes) -> tuple[int | None, int]:
    """The call to stop at, if there is one, and the newest call from which a rank has gone on."""
    if value.startswith(_STOP):
        stop = int(value.removeprefix(_STOP))
        return stop, stop - 1
    return None, int(value or b"0")
