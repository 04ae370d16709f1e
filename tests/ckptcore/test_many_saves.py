"""Nothing but the records grows with the number of saves: no memory, no file, no thread, and no save reads what others did."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

from ckptcore.channel import LocalChannel
from ckptcore.checkpointer import Checkpointer
from ckptcore.keep import Keep
from tests.ckptcore.support import checkpointer, state
from tests.reading import bytes_read

TURN = 10


def descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0  # noqa: PTH208 - names are enough


def counted(place: Path) -> tuple[int, int]:
    """The generations that have files, and the records beside them."""
    found = [path.relative_to(place).parts for path in place.rglob("*") if path.is_file()]
    records = [parts for parts in found if parts[0] != "generations"]
    return len({parts[1] for parts in found if parts[0] == "generations"}), len(records)


def turn(ckpt: Checkpointer, number: int) -> int:
    """`TURN` saves; the bytes that they read."""
    with bytes_read() as read:
        for step in range(number * TURN, (number + 1) * TURN):
            ckpt.save(step, state(step)).result(30)
        ckpt.wait()  # for the thread, too
    return read.bytes


def test_many_saves(place: Path) -> None:
    with checkpointer(place, LocalChannel(), keep=Keep(last=2)) as ckpt:
        read, taken = [turn(ckpt, 0)], []
        for number in range(1, 4):
            read.append(turn(ckpt, number))
            gc.collect()
            taken.append((len(gc.get_objects()), threading.active_count(), descriptors(), *counted(place)))
        attempts = ckpt._attempts
    objects, threads, open_, generations, records = zip(*taken, strict=True)
    assert len(set(threads)) == 1
    assert len(set(open_)) == 1
    assert len(set(generations)) == 1
    assert records[-1] - records[-2] == 2 * TURN  # a decision and its retirement for each, and nothing else
    assert objects[-1] - objects[-2] <= 5 * TURN  # the names of records and generations
    assert max(read[2:]) <= 1.1 * read[1] + 4096
    assert len(attempts) <= 2
