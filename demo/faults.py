"""How a training process kills itself, without warning, at the worst moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import jaxckpt
from demo.job import Job
from demo.run_log import write_line


def killer(job: Job, rank: int, log: TextIO) -> Callable[[jaxckpt.Event], None]:
    """The event hook that does what `job.kill` says.

    `event` may be any kind of event; the process dies inside the hook. `shard-write` is the time
    between the start of the data write and the receipt: it dies when the first of its data is on
    disk, and when that was too quick to be seen, at `written`, before it signs anything.
    """
    kill = job.kill if job.kill is not None and job.kill.rank == rank else None

    def die(generation: str) -> None:
        write_line(log, killed=generation)
        os.kill(os.getpid(), signal.SIGKILL)

    def on_event(event: jaxckpt.Event) -> None:
        if kill is None or event.generation is None or event.generation.step != kill.step:
            return
        generation = str(event.generation)
        if event.kind == ("written" if kill.event == "shard-write" else kill.event):
            die(generation)
        elif kill.event == "shard-write" and event.kind == "staged":
            folder = Path(job.url) / "generations" / generation / "state" / "ranks"
            threading.Thread(target=lambda: _when_on_disk(folder, rank, lambda: die(generation)), daemon=True).start()

    return on_event


def _when_on_disk(folder: Path, rank: int, act: Callable[[], None]) -> None:
    """Watch without a pause until a file of this rank's database is there. The hook ends the wait at the latest."""
    while not any(folder.glob(f"{rank:05d}-*/d/*")):
        pass
    act()
