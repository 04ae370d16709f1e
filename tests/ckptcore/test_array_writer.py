"""What a database takes while it is written, and leaves when that fails: threads, files, memory, descriptors, modes."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import array_sinks, array_spec, array_writer, ocdbt
from ckptcore.array_spec import MANIFEST, StoredArray
from ckptcore.arrays import ArrayReader, DatabaseWriter
from ckptcore.errors import Damaged, StoreFull
from ckptcore.geometry import Box, Grid
from ckptcore.store import Storage, open_store
from ckptcore.workers import NICENESS
from tests.ckptcore.databases import STATE, write

PREFIX = f"{STATE}ranks/00000-00000000/"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
@pytest.mark.parametrize("objects", [False, True])
def test_only_threads_that_start_no_others_stand_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, objects: bool
) -> None:
    found, real = [], array_writer._write

    def write(*args: Any) -> None:
        found.append((threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        real(*args)

    monkeypatch.setattr(array_writer, "_write", write)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    writer = DatabaseWriter(open_store("memory://nice" if objects else str(tmp_path)), PREFIX)
    data = np.zeros(4, np.float32)
    writer.add(StoredArray("w", "float32", data.shape, Grid.regular((4,), (4,))), {0: data})
    writer.finish()
    nices = {nice for name, nice in found if name.startswith("write-")}
    assert nices == {own if objects else min(19, own + NICENESS)}


def test_a_whole_number_of_chunks_fills_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_writer, "DATA_FILE_BYTES", 2 << 16)
    data = np.zeros((8, 1 << 14), np.float32)
    writer = DatabaseWriter(open_store(tmp_path), PREFIX)
    array = StoredArray("w", "float32", data.shape, Grid.regular(data.shape, (1, 1 << 14)))
    writer.add(array, {row: data[row : row + 1] for row in range(8)})
    assert len([file for file in writer.finish() if file.path != MANIFEST]) == 4


def test_a_failed_database_leaves_the_disk_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_writer, "DATA_FILE_BYTES", 1 << 16)
    real, left = os.pwrite, iter(range(9))

    def pwrite(*args: Any) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", pwrite)
    data = np.zeros((8, 1 << 14), np.float32)
    writer = DatabaseWriter(open_store(tmp_path / "run"), PREFIX)
    array = StoredArray("w", "float32", data.shape, Grid.regular(data.shape, (1, 1 << 14)))
    writer.add(array, {row: data[row : row + 1] for row in range(8)})
    with pytest.raises(StoreFull):
        writer.finish()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_failed_database_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_writer, "DATA_FILE_BYTES", 1 << 16)
    real, opened, closed = (os.open, os.close), list[int](), list[int]()

    def fails(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(array_sinks.os, "open", lambda *args: opened.append(real[0](*args)) or opened[-1])
    monkeypatch.setattr(array_sinks.os, "close", lambda descriptor: closed.append(descriptor) or real[1](descriptor))
    monkeypatch.setattr(array_sinks.os, "pwrite", fails)
    data = np.zeros((8, 1 << 14), np.float32)
    writer = DatabaseWriter(open_store(tmp_path / "run"), PREFIX)
    array = StoredArray("w", "float32", data.shape, Grid.regular(data.shape, (1, 1 << 14)))
    writer.add(array, {row: data[row : row + 1] for row in range(8)})
    with pytest.raises(StoreFull):
        writer.finish()
    assert sorted(opened) == sorted(closed)


def test_a_database_and_its_merged_root_have_the_modes_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        data = np.ones((4, 4), np.float32)
        write(
            tmp_path / "run",
            {"w": (data, Grid.regular((4, 4), (2, 2)))},
            ranks=2,
            storage=Storage(file_mode=0o640, dir_mode=0o750),
        )
    finally:
        os.umask(before)
    below = list((tmp_path / "run").rglob("*"))
    found = {(path.is_dir(), oct(path.stat().st_mode & 0o777)) for path in below}
    assert found == {(True, "0o750"), (False, "0o640")}


@pytest.mark.parametrize("memory", [1, 4 << 20])
def test_however_many_threads_objects_under_way_fit_into_the_memory(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk, threads, sent = 1 << 18, set[str](), []
    monkeypatch.setattr(array_writer, "LANE_BYTES", chunk)

    class Counting:
        def __init__(self) -> None:
            self.nbytes = 0

        def write(self, data: memoryview) -> None:
            threads.add(threading.current_thread().name)
            self.nbytes += len(data)

        def finish(self) -> None:
            sent.append(self.nbytes)

        def abandon(self) -> None: ...

    monkeypatch.setattr(array_writer, "opener", lambda *_: lambda _: Counting())
    store = open_store("memory://bounded", Storage(threads=32, bytes_in_flight=memory))
    data = np.zeros((64, chunk // 4), np.float32)
    array = StoredArray("w", "float32", data.shape, Grid.regular(data.shape, (1, chunk // 4)))
    writer = DatabaseWriter(store, PREFIX)
    writer.add(array, {row: data[row : row + 1] for row in range(64)})
    writer.finish()
    lanes = len({name for name in threads if name.startswith("write-")})
    assert lanes == 1 or 2 * lanes * max(sent) <= memory


def test_metadata_of_no_bytes_in_a_data_file_is_damage(tmp_path: Path) -> None:
    array = StoredArray("w", "float32", (0,), Grid.regular((0,), (1,)))
    folder = tmp_path / "run" / "state"
    (folder / "d").mkdir(parents=True)
    nodes = bytearray()

    def store(node: bytes) -> ocdbt.Place:
        nodes.extend(node)
        return ocdbt.Place("d/x", len(nodes) - len(node), len(node))

    root = ocdbt.tree([ocdbt.Entry(b"w/zarr.json", ocdbt.Place("d/x", 0, 0))], store)
    (folder / "d" / "x").write_bytes(nodes)
    (folder / MANIFEST).write_bytes(ocdbt.manifest(root, array_spec.OCDBT_CONFIG, bytes(16)))
    with pytest.raises(Damaged, match=r"w/zarr\.json does not describe"):
        ArrayReader(open_store(tmp_path / "run"), "state/").read(array, [Box.whole((0,))], [])
