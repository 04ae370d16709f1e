"""How many threads and bytes one checkpointer uses: what was asked for, else what suits the machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from ckptcore import array_writer
from ckptcore import limits as module
from ckptcore.array_reader import ArrayReader
from ckptcore.array_sinks import FileSink
from ckptcore.array_spec import StoredArray
from ckptcore.array_writer import DatabaseWriter
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.geometry import Box, Grid
from ckptcore.limits import BYTES_IN_FLIGHT, Limits, limits, usable_cores
from ckptcore.operate import transfer
from ckptcore.operate.transfer import Item, Pace, Transfer
from ckptcore.store import Storage, open_store
from ckptcore.workers import Workers
from tests.ckptcore.databases import STATE, write
from tests.threads import new_threads


def test_what_is_asked_for_counts() -> None:
    assert limits(3, 1 << 20) == Limits(threads=3, requests=3, bytes_in_flight=1 << 20)
    assert Storage(threads=1).limits() == Limits(threads=1, requests=1, bytes_in_flight=BYTES_IN_FLIGHT)


@pytest.mark.parametrize(("cores", "threads", "requests"), [(1, 2, 16), (2, 2, 16), (8, 8, 16), (24, 24, 24), (100, 32, 32)])
def test_the_default_goes_by_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, requests: int) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    assert limits() == Limits(threads=threads, requests=requests, bytes_in_flight=256 << 20)


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", True])
@pytest.mark.parametrize("name", ["threads", "bytes_in_flight"])
def test_a_limit_is_a_positive_integer(name: str, value: Any) -> None:
    with pytest.raises(CallError, match=rf"Storage\({name}={value!r}\): expected a number of"):
        Storage(**{name: value})


def test_more_threads_than_any_machine_wants_are_a_mistake() -> None:
    assert Storage(threads=1024).limits().threads == 1024
    with pytest.raises(CallError, match=r"Storage\(threads=1000000\): expected a number of threads up to 1024, such as 8"):
        Storage(threads=10**6)
    assert Storage(bytes_in_flight=1 << 40).limits().bytes_in_flight == 1 << 40


# The cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty-four cores in the affinity mask, and the control group `/jobs/one`."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (tmp_path / "self").write_text("4:memory:/elsewhere\n0::/jobs/one\n")
    (tmp_path / "groups/jobs/one").mkdir(parents=True)
    monkeypatch.setattr(module, "_CGROUP", tmp_path / "self")
    monkeypatch.setattr(module, "_CGROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def test_without_quotas_the_affinity_mask_counts(machine: Path) -> None:
    assert usable_cores() == 64
    (machine / "jobs/cpu.max").write_text("max 100000\n")
    assert usable_cores() == 64


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000\n", 2), ("50000 100000", 1), ("9900000 100000", 64)])
def test_a_quota_is_rounded_up(machine: Path, quota: str, cores: int) -> None:
    (machine / "jobs/one/cpu.max").write_text(quota)
    assert usable_cores() == cores


def test_the_least_quota_of_all_groups_above_counts(machine: Path) -> None:
    (machine / "jobs/one/cpu.max").write_text("800000 100000")
    (machine / "jobs/cpu.max").write_text("400000 100000")
    assert usable_cores() == 4


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "100000 0"])
def test_what_cannot_be_read_limits_nothing(machine: Path, text: str) -> None:
    (machine / "jobs/one/cpu.max").write_text(text)
    assert usable_cores() == 64


def test_a_system_without_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CGROUP", tmp_path / "absent")
    monkeypatch.delattr(module.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 5)
    assert usable_cores() == 5


# TensorStore's own limits


def limit_of(context: ts.Context, name: str) -> Any:
    return context[name].to_json()["limit"]


@pytest.mark.parametrize("url", ["/tmp/limits/run", "s3://bucket/run", "gs://bucket/run", "memory://run"])
def test_tensorstore_gets_them_too(url: str) -> None:
    store = open_store(url, Storage(threads=3))
    assert store.limits.threads == 3
    assert limit_of(store.context, "file_io_concurrency") == limit_of(store.context, "data_copy_concurrency") == 3
    if "bucket" in url:
        driver = "s3" if url.startswith("s3") else "gcs"
        assert limit_of(store.context, f"{driver}_request_concurrency") == 3
        both = open_store(url, Storage(threads=3, concurrency=7))
        assert limit_of(both.context, f"{driver}_request_concurrency") == 7


def test_a_context_of_the_caller_keeps_its_limits_unless_others_are_asked_for() -> None:
    own = ts.Context({"file_io_concurrency": {"limit": 11}})
    assert limit_of(open_store("/tmp/limits/run", Storage(context=own)).context, "file_io_concurrency") == 11
    assert limit_of(open_store("/tmp/limits/run", Storage(context=own, threads=3)).context, "file_io_concurrency") == 3


def test_by_default_tensorstore_goes_by_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    assert limit_of(open_store("/tmp/limits/run").context, "file_io_concurrency") == 4
    monkeypatch.setattr(module, "usable_cores", lambda: 12)
    assert limit_of(open_store("/tmp/limits/run").context, "data_copy_concurrency") == 12


# The bounds hold


def columns(count: int, nbytes: int) -> StoredArray:
    return StoredArray("params.w", "uint8", (nbytes, count), Grid.regular((nbytes, count), (nbytes, 1)))


def test_what_a_save_copies_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are no memory in one piece: each is copied before it can be written, to a disk that is slower than the copies."""
    write = FileSink.write
    monkeypatch.setattr(FileSink, "write", lambda sink, data: (time.sleep(0.001), write(sink, data))[1])
    most, size = 1 << 16, 1 << 12
    writer = DatabaseWriter(open_store(tmp_path, Storage(bytes_in_flight=most)), "state/")
    data = np.ones((size, 64), np.uint8)
    held = []
    for number in range(64):
        writer.add(columns(64, size), {number: data[:, number : number + 1]})
        held.append(sum(nbytes for _, nbytes in writer._held))
    writer.finish()
    assert max(held) <= most // 2


@pytest.mark.parametrize("threads", [1, 5])
def test_a_save_writes_in_as_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(array_writer, "LANE_BYTES", 10)
    started = new_threads()
    writer = DatabaseWriter(open_store(tmp_path, Storage(threads=threads)), "state/")
    writer.add(columns(8, 100), {number: np.ones((100, 1), np.uint8) for number in range(8)})
    assert len(started()) == threads
    writer.close()
    assert started() == set()


def test_a_copy_keeps_both_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_store(tmp_path / "source")
    items = [Item(f"object-{number}", 100) for number in range(12)]
    for item in items:
        source.put_if_absent(item.key, bytes(item.size))
    sizes: list[int] = []

    class Counted(Workers):
        def __init__(self, count: int, name: str) -> None:
            assert count == 3
            super().__init__(count, name)

        def map(self, call: Any, items: Any) -> list[Any]:
            sizes.append(sum(item.size for item in items))
            return super().map(call, items)

    monkeypatch.setattr(transfer, "Workers", Counted)
    target = open_store(tmp_path / "target", Storage(threads=3, bytes_in_flight=350))
    assert Transfer(source, target, Pace(Clock())).send(items) == 1200
    assert sizes == [300, 300, 300, 300]


@pytest.mark.parametrize(("most", "at_a_time"), [(1 << 30, 4), (3 << 20, 3), (1 << 20, 1), (1, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_restore_keeps_both_bounds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    at_a_time: int,
    transposed: bool,  # noqa: FBT001
) -> None:
    """Chunks of 1 MiB, read to their places or, where those are not in one piece, on a detour."""
    data = np.random.default_rng(0).integers(0, 255, (16, 1 << 20), np.uint8)
    stored = data.T if transposed else data
    found = write(tmp_path, {"params.w": (stored, Grid.regular(stored.shape, (1 << 20, 1) if transposed else (1, 1 << 20)))})
    store = open_store(found.store.url, Storage(threads=4, bytes_in_flight=most))
    held, peak, lock = [0], [0], threading.Lock()
    real = ArrayReader._fetch

    def counted(self: ArrayReader, run: Any) -> None:
        with lock:
            held[0] += run.nbytes
            peak[0] = max(peak[0], held[0])
        real(self, run)
        with lock:
            held[0] -= run.nbytes

    monkeypatch.setattr(ArrayReader, "_fetch", counted)
    reader = ArrayReader(store, STATE)
    (read,) = reader.read(found.arrays["params.w"], [Box.whole(stored.shape)], found.digests["params.w"])
    assert np.array_equal(read, stored)
    assert peak[0] <= at_a_time * ((1 << 20) + 4)
