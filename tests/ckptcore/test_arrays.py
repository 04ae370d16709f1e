"""Chunks in and out: what is written comes back bit for bit, or the damage is named."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptcore import array_ranges, array_reader, array_spec, array_writer, dtypes
from ckptcore.array_results import ALIGNMENT, ChunkRead
from ckptcore.array_spec import MANIFEST, StoredArray, database
from ckptcore.arrays import ArrayReader, DatabaseWriter, merge
from ckptcore.digests import digest
from ckptcore.errors import CallError, Damaged, DamageError, InvalidRecord, StoreError, StoreFull, StoreUnavailable, UnsafeStore
from ckptcore.geometry import Box, Grid
from ckptcore.store import Storage, open_store
from tests.ckptcore.databases import STATE, Database, same, write
from tests.threads import new_threads

PREFIX = f"{STATE}ranks/00000-00000000/"


def noise(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Random bytes of a stored dtype; those that no element has are set right."""
    kind = dtypes.numpy_dtype(dtype)
    raw = np.frombuffer(np.random.default_rng(seed).bytes(int(np.prod(shape)) * kind.itemsize), np.uint8)
    return dtypes.to_stored(raw.view(kind).reshape(shape))


def regular(data: np.ndarray, *chunk: int) -> tuple[np.ndarray, Grid]:
    return data, Grid.regular(data.shape, chunk)


@pytest.mark.parametrize("dtype", sorted(dtypes.STORED))
def test_every_stored_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    data = noise((7, 5), dtype)
    found = write(tmp_path, {"params.w": regular(data, 3, 2)})
    assert same(found.read("params.w")[0], data)


@pytest.mark.parametrize("dtype", sorted(dtypes.LOGICAL))
def test_every_logical_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    data = noise((6, 4), dtypes.stored_name(dtype))
    if dtype not in dtypes.STORED:
        data = dtypes.to_stored(data.view(dtypes.numpy_dtype(dtype)))
    found = write(tmp_path, {"params.w": regular(data, 4, 4)})
    back = dtypes.from_stored(found.read("params.w")[0], dtype)
    assert back.dtype == dtypes.numpy_dtype(dtype)
    assert back.tobytes() == data.tobytes()


def test_digests_are_over_the_clipped_bytes_in_c_order(tmp_path: Path) -> None:
    data = noise((5, 7))
    found = write(tmp_path, {"params.w": regular(data, 3, 4)})
    assert found.digests["params.w"] == [
        digest(part.tobytes()) for part in (data[:3, :4], data[:3, 4:], data[3:, :4], data[3:, 4:])
    ]


@pytest.mark.parametrize(
    ("data", "grid"),
    [
        (np.array(2.5), Grid.regular((), ())),
        (np.array([True])[0:1].reshape(()), Grid.regular((), ())),
        (np.zeros((0,), np.float32), Grid.regular((0,), (1,))),
        (np.zeros((3, 0, 2), np.int16), Grid.regular((3, 0, 2), (1, 1, 1))),
        (np.zeros((6, 6), np.float32), Grid.regular((6, 6), (3, 6))),
        (np.arange(7 * 5 * 3).reshape(7, 5, 3), Grid.regular((7, 5, 3), (4, 5, 2))),
        (np.arange(70.0).reshape(7, 10), Grid.irregular((7, 10), [(0, 1, 7), (0, 4, 5, 10)])),
    ],
    ids=["scalar", "bool scalar", "empty", "empty 3-d", "all zeros", "edges", "irregular"],
)
def test_shapes_and_grids_come_back(tmp_path: Path, data: np.ndarray, grid: Grid) -> None:
    found = write(tmp_path, {"params.w": (data, grid)}, ranks=2)
    assert found.problems() == []
    assert same(found.read("params.w")[0], data)


def test_zeros_are_stored_like_anything_else(tmp_path: Path) -> None:
    found = write(tmp_path, {"optimizer.mu": regular(np.zeros(8, np.float32), 2)})
    root = ts.KvStore.open(database(found.store, STATE)).result()
    assert [len(root.read(f"optimizer.mu/c/{chunk}").result().value) for chunk in range(4)] == [12] * 4


def test_zarr_itself_reads_a_regular_array(tmp_path: Path) -> None:
    data = noise((9, 5), "int32")
    found = write(tmp_path, {"params.ünïcode [0]": regular(data, 4, 2)}, ranks=3)
    spec = {"driver": "zarr3", "kvstore": {**database(found.store, STATE), "path": "params.ünïcode [0]/"}}
    assert same(ts.open(spec).result().read().result(), data)


def test_chunks_that_are_not_contiguous_or_too_many_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_writer, "DATA_FILE_BYTES", 1 << 10)
    monkeypatch.setattr(array_writer, "LANE_BYTES", 1 << 11)
    storage = Storage(bytes_in_flight=2 << 10)
    data = noise((64, 96)).T
    found = write(tmp_path, {f"params.{name}": regular(data, 32, 16) for name in "abc"}, ranks=2, storage=storage)
    assert all(same(found.read(name)[0], np.ascontiguousarray(data)) for name in found.arrays)


def test_chunks_of_several_steps(tmp_path: Path) -> None:
    width = array_writer.STEP // 4 * 2 + 3
    data = noise((3, width))
    found = write(tmp_path, {"params.w": regular(data, 1, width)})
    assert found.digests["params.w"] == [digest(row) for row in data]
    assert same(found.read("params.w")[0], data)


def test_thousands_of_arrays_take_a_handful_of_files(tmp_path: Path) -> None:
    arrays = {f"params.{number}": regular(np.full(number % 7 + 1, number, np.int32), 8) for number in range(2000)}
    found = write(tmp_path, arrays)
    assert len(list(found.store.list(PREFIX))) == 2
    requests = [(found.arrays[name], [Box.whole(data.shape)], found.digests[name]) for name, (data, _) in arrays.items()]
    read = ArrayReader(found.store, STATE).read_many(requests)
    assert all(same(boxes[0], data) for boxes, (data, _) in zip(read, arrays.values(), strict=True))


def test_finish_lists_the_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    writer = DatabaseWriter(store, PREFIX)
    writer.add(StoredArray("params.w", "float32", (4,), Grid.regular((4,), (4,))), {0: np.ones(4, np.float32)})
    files = writer.finish()
    on_disk = {str(path.relative_to(tmp_path / PREFIX)): path for path in (tmp_path / PREFIX).rglob("*") if path.is_file()}
    assert {file.path: file.size for file in files} == {name: path.stat().st_size for name, path in on_disk.items()}
    assert {file.path: file.digest for file in files if file.digest} == {
        "manifest.ocdbt": digest(on_disk["manifest.ocdbt"].read_bytes())
    }


def test_a_database_without_arrays_has_no_files(tmp_path: Path) -> None:
    assert DatabaseWriter(open_store(tmp_path), PREFIX).finish() == []
    assert list(tmp_path.iterdir()) == []


def test_a_finished_database_takes_nothing_more(tmp_path: Path) -> None:
    writer = DatabaseWriter(open_store(tmp_path), PREFIX)
    writer.finish()
    with pytest.raises(CallError, match="finished"):
        writer.add(StoredArray("params.w", "int8", (), Grid.regular((), ())), {0: np.array(1, np.int8)})
    with pytest.raises(CallError, match="finished"):
        writer.finish()


@pytest.mark.parametrize("staged", [np.ones(3, np.float32), np.ones(4, np.float64)], ids=["shape", "dtype"])
def test_a_chunk_that_its_layout_does_not_describe_is_refused(tmp_path: Path, staged: np.ndarray) -> None:
    writer = DatabaseWriter(open_store(tmp_path), PREFIX)
    with pytest.raises(CallError, match=r"chunk 0 of array 'params.w'.*staged as"):
        writer.add(StoredArray("params.w", "float32", (4,), Grid.regular((4,), (4,))), {0: staged})
    writer.close()


def test_memory_stores_work_too() -> None:
    store = open_store("memory://run", Storage(context=ts.Context()))
    array = StoredArray("params.w", "int64", (6,), Grid.regular((6,), (4,)))
    writer = DatabaseWriter(store, PREFIX)
    digests = writer.add(array, {0: np.arange(4), 1: np.arange(4, 6)})
    assert {file.path for file in writer.finish()} > {"manifest.ocdbt"}
    merge(store, STATE, [PREFIX])
    assert ArrayReader(store, STATE).read(array, [Box.whole((6,))], [digests[0].result(), digests[1].result()])[0].tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]


def test_sha256_is_accepted(tmp_path: Path) -> None:
    data = noise((4,))
    found = write(tmp_path, {"params.w": regular(data, 4)})
    found.digests["params.w"] = [f"sha256:{hashlib.sha256(data.tobytes()).hexdigest()}"]
    assert same(found.read("params.w")[0], data)
    found.digests["params.w"] = [f"sha256:{'0' * 64}"]
    with pytest.raises(Damaged, match=r"chunk 0 of array 'params.w'"):
        found.read("params.w")


# Boxes


@st.composite
def boxes_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    bounds = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in shape]
    return Box(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    if draw(st.booleans()):
        return Grid.regular(shape, [draw(st.integers(1, extent)) for extent in shape])
    inner = [draw(st.sets(st.integers(1, max(1, extent - 1)))) for extent in shape]
    return Grid.irregular(shape, [sorted({0, extent, *cuts}) for extent, cuts in zip(shape, inner, strict=True)])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), grid=grids())
def test_any_boxes_equal_numpy(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, grid: Grid) -> None:
    whole = np.arange(int(np.prod(grid.shape)), dtype=np.int16).reshape(grid.shape)
    boxes = data.draw(st.lists(boxes_of(grid.shape), min_size=1, max_size=4))
    found = write(tmp_path_factory.mktemp("run"), {"params.w": (whole, grid)}, ranks=2)
    for box, read in zip(boxes, found.read("params.w", boxes), strict=True):
        assert same(read, np.ascontiguousarray(whole[box.slices()]))


def test_each_chunk_is_fetched_once_however_many_boxes_and_requests_meet_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise((8, 8))
    found = write(tmp_path, {"params.w": regular(data, 4, 4)})
    fetched: list[str] = []
    accept = ChunkRead.accept
    monkeypatch.setattr(ChunkRead, "accept", lambda read, *data: (fetched.append(read.key), accept(read, *data)))
    request = (found.arrays["params.w"], [Box((0, 0), (3, 8)), Box((2, 2), (4, 6))], found.digests["params.w"])
    first, second = ArrayReader(found.store, STATE).read_many([request, request])
    assert sorted(fetched) == ["params.w/c/0/0", "params.w/c/0/1"]
    for boxes in (first, second):
        assert same(boxes[0], np.ascontiguousarray(data[0:3, 0:8]))
        assert same(boxes[1], np.ascontiguousarray(data[2:4, 2:6]))


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few hundred bytes, which lie outside of the tree, go straight to their place, in steps of a few bytes."""
    monkeypatch.setattr(array_reader, "SMALL_BYTES", 0)
    monkeypatch.setattr(array_ranges, "STEP", 77)


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("columns", [900, 400], ids=["whole rows", "parts of rows"])
@pytest.mark.parametrize("url", ["{}", "memory://run"], ids=["file", "object"])
def test_chunks_go_straight_to_their_place(tmp_path: Path, url: str, columns: int) -> None:
    """Alone, as an edge with padding, for several boxes at a time, and where a box has only a part of them."""
    data = noise((7, 900))
    found = write(url.format(tmp_path), {"params.w": regular(data, 2, columns)}, storage=Storage(context=ts.Context()))
    rows = [Box((start, 0), (stop, 900)) for start, stop in ((0, 7), (2, 6), (1, 7), (6, 7))]
    boxes = [*rows, Box((0, 3), (4, 800)), Box((0, 400), (7, 800))]
    for box, read in zip(boxes, found.read("params.w", boxes), strict=True):
        assert same(read, np.ascontiguousarray(data[box.slices()]))


@pytest.mark.usefixtures("everything_is_large")
def test_a_flipped_bit_is_found_on_the_way_to_its_place(tmp_path: Path) -> None:
    data = noise((6, 400))
    found = write(tmp_path, {"params.w": regular(data, 2, 400)})
    (file,) = [path for path in (tmp_path / PREFIX / "d").iterdir() if data[2:4].tobytes() in path.read_bytes()]
    content = bytearray(file.read_bytes())
    content[content.index(data[2:4].tobytes()) + 5] ^= 4
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"chunk 1 of array 'params\.w'.*key params\.w/c/1/0.*digest"):
        found.read("params.w")


def test_large_results_are_aligned(tmp_path: Path) -> None:
    """JAX on CPUs uses such memory in place."""
    data = noise((300, 1000))
    found = write(tmp_path, {"params.w": regular(data, 100, 1000)})
    assert all(read.ctypes.data % ALIGNMENT == 0 for read in found.read("params.w", [Box.whole(data.shape)] * 5))


@pytest.mark.parametrize("columns", [1 << 16, 1 << 15], ids=["straight to their place", "copied"])
def test_memory_on_the_way_is_bounded(tmp_path: Path, columns: int) -> None:
    data = noise((64, 1 << 16))
    found = write(tmp_path, {"params.w": regular(data, 2, columns)})
    store = open_store(tmp_path, Storage(bytes_in_flight=1 << 20))
    tracemalloc.start()
    try:
        (read,) = ArrayReader(store, STATE).read(found.arrays["params.w"], [Box.whole(data.shape)], found.digests["params.w"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert same(read, data)
    assert peak - data.nbytes < 2 << 20


def test_a_box_outside_is_refused(tmp_path: Path) -> None:
    found = write(tmp_path, {"params.w": regular(noise((4,)), 4)})
    for box in (Box((0,), (5,)), Box((0, 0), (1, 1))):
        with pytest.raises(CallError, match=r"params\.w"):
            found.read("params.w", [box])


def test_digests_that_do_not_fit_the_grid_are_refused(tmp_path: Path) -> None:
    found = write(tmp_path, {"params.w": regular(noise((4,)), 2)})
    found.digests["params.w"].pop()
    with pytest.raises(InvalidRecord, match="1 digests for 2 chunks"):
        found.read("params.w")


# Damage


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Database, list[Path]]:
    found = write(tmp_path, {"params.a": regular(noise((64, 16)), 16, 16), "params.b": regular(noise((3,)), 3)}, ranks=2)
    return found, sorted(path for path in tmp_path.rglob("*") if path.is_file())


def read_all(found: Database) -> list[np.ndarray]:
    return [found.read(name)[0] for name in found.arrays]


def test_a_flipped_bit_anywhere_is_damage_or_harmless(damaged: tuple[Database, list[Path]]) -> None:
    """Never other values: what no reader goes by (an old tree node) may be flipped, everything else is found out."""
    found, files = damaged
    good = read_all(found)
    caught: list[str] = []
    for path in files:
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
            try:
                assert all(same(one, other) for one, other in zip(read_all(found), good, strict=True))
            except Damaged as error:
                caught.append(str(error))
        path.write_bytes(content)
    assert len(caught) > 50
    assert all("params." in text and STATE in text for text in caught)


def test_every_byte_of_a_chunk_is_covered(tmp_path: Path) -> None:
    data = noise((1024,))
    found = write(tmp_path, {"params.w": regular(data, 1024)})
    path, place = next(
        (path, path.read_bytes().find(data.tobytes())) for path in tmp_path.rglob("d/*") if data.tobytes() in path.read_bytes()
    )
    content = path.read_bytes()
    for offset in range(0, data.nbytes, 97):
        path.write_bytes(content[: place + offset] + bytes([content[place + offset] ^ 1]) + content[place + offset + 1 :])
        with pytest.raises(
            Damaged, match=r"chunk 0 of array 'params\.w' \(float32, elements \(0,\) to \(1024,\)\), key params\.w/c/0 in"
        ):
            found.read("params.w")


@pytest.mark.parametrize("what", ["truncated", "empty", "missing"])
def test_a_data_file_that_is_short_or_gone_is_damage(damaged: tuple[Database, list[Path]], what: str) -> None:
    found, files = damaged
    caught = []
    for path in files:
        content = path.read_bytes()
        path.unlink()
        if what != "missing":
            path.write_bytes(content[: len(content) // 2 if what == "truncated" else 0])
        try:
            read_all(found)
        except Damaged:
            caught.append(path.parent.parent.name)
        path.write_bytes(content)
    assert {"00000-00000000", "00001-00000001", "state"} <= set(caught), "the chunks of both ranks and the merged root"


def test_a_missing_chunk_is_damage_never_zeros(tmp_path: Path) -> None:
    found = write(tmp_path, {"params.w": regular(np.zeros(4, np.float32), 2)})
    ts.KvStore.open(database(found.store, STATE)).result().write("params.w/c/1", None).result()
    with pytest.raises(Damaged, match=r"chunk 1 of array 'params\.w'.*key params\.w/c/1.*missing"):
        found.read("params.w")
    assert same(found.read("params.w", [Box((0,), (2,))])[0], np.zeros(2, np.float32))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[" * 100_000, b'{"zarr_format":3,"shape":[1000000000000]}', b" " * (1 << 17)],
    ids=["empty", "cut off", "null", "nested", "other", "long"],
)
def test_foreign_metadata_is_damage(tmp_path: Path, content: bytes) -> None:
    found = write(tmp_path, {"params.w": regular(noise((4,)), 2)})
    ts.KvStore.open(database(found.store, STATE)).result().write("params.w/zarr.json", content).result()
    with pytest.raises(Damaged, match=r"zarr\.json does not describe float32\[4\] in chunks of \[2\]"):
        found.read("params.w")
    assert len(found.problems()) == 1


@pytest.mark.parametrize("value", [b"", b"short", b"x" * 1000])
def test_a_chunk_of_another_length_is_damage(tmp_path: Path, value: bytes) -> None:
    found = write(tmp_path, {"params.w": regular(noise((4,)), 4)})
    ts.KvStore.open(database(found.store, STATE)).result().write("params.w/c/0", value).result()
    with pytest.raises(Damaged, match="chunk 0"):
        found.read("params.w")


def test_a_record_cannot_make_us_allocate(tmp_path: Path) -> None:
    """A hostile layout with an astronomic shape meets the bytes that are there before memory is asked for."""
    found = write(tmp_path, {"params.w": regular(noise((4,)), 4)})
    huge = StoredArray("params.w", "float32", (1 << 50,), Grid.regular((1 << 50,), (1 << 50,)))
    with pytest.raises(DamageError):
        ArrayReader(found.store, STATE).read(huge, [Box.whole((1 << 50,))], found.digests["params.w"])


# Errors of the store


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files may not grow beyond 64 KiB: what a full disk does, without one."""
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_a_full_store_is_said_by_name(tmp_path: Path) -> None:
    writer = DatabaseWriter(open_store(tmp_path), PREFIX)
    writer.add(
        StoredArray("params.big", "uint8", (1 << 20,), Grid.regular((1 << 20,), (1 << 20,))), {0: noise((1 << 20,), "uint8")}
    )
    with pytest.raises(StoreFull, match=r"params\.big.*Make room"):
        writer.finish()


@pytest.mark.usefixtures("small_files")
def test_a_full_store_is_noticed_while_adding(tmp_path: Path) -> None:
    writer = DatabaseWriter(open_store(tmp_path, Storage(bytes_in_flight=1)), PREFIX)
    array = StoredArray("params.big", "uint8", (2, 1 << 20), Grid.irregular((2, 1 << 20), [(0, 1, 2), (0, 1 << 20)]))
    with pytest.raises(StoreFull, match=r"params\.big"):
        writer.add(array, {0: noise((1 << 20, 2), "uint8").T[:1], 1: noise((1 << 20, 2), "uint8").T[1:]})
    with pytest.raises(CallError):
        writer.finish()


def test_a_store_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "generations").write_text("a file where a directory belongs")
    writer = DatabaseWriter(open_store(tmp_path), PREFIX)
    writer.add(StoredArray("params.w", "int8", (2,), Grid.regular((2,), (2,))), {0: np.ones(2, np.int8)})
    with pytest.raises(StoreError, match=r"params\.w.*Check the permissions and the mount"):
        writer.finish()


# Stores that give no answer, and directories that hold something else


def test_no_answer_is_an_error_of_the_store_that_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(tmp_path, {"params.w": regular(noise((8,)), 8)})
    monkeypatch.setattr(array_spec, "ANSWER_TIMEOUT", 0.01)
    promises = []

    def silent(*_: Any, **__: Any) -> ts.Future[Any]:
        promise, future = ts.Promise.new()
        promises.append(promise)  # while it lives, the future is pending
        return future

    memory = open_store("memory://silent", Storage(context=ts.Context()))
    with monkeypatch.context() as patch:
        patch.setattr(ts.KvStore, "open", silent)
        with pytest.raises(StoreUnavailable, match=rf"merged root of {STATE}.*no answer within 0.01 s"):
            written.read("params.w")
        with pytest.raises(StoreUnavailable, match=f"database {STATE}"):
            written.problems()
        other = DatabaseWriter(memory, PREFIX)
        other.add(written.arrays["params.w"], {0: noise((8,))})
        with pytest.raises(StoreUnavailable, match=r"d/0+: no answer within 0.01 s"):
            other.finish()
    assert len(promises) == 3


def test_a_writer_that_fails_ends_its_threads(tmp_path: Path) -> None:
    started = new_threads()
    writer = DatabaseWriter(open_store(tmp_path), PREFIX)
    array = StoredArray("params.w", "int8", (4,), Grid.regular((4,), (2,)))
    writer.add(array, {0: np.ones(2, np.int8)})
    assert started()
    with pytest.raises(CallError, match="was staged as"):
        writer.add(array, {1: np.ones(3, np.int8)})
    assert started() == set()


@pytest.mark.parametrize("place", [MANIFEST, "d/0123", "ranks/00000-00000000/d/0123"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_is_no_file_is_neither_followed_nor_waited_for(tmp_path: Path, kind: str, place: str) -> None:
    written = write(tmp_path / "run", {"params.w": regular(noise((8,)), 8)})
    path = tmp_path / "run" / STATE / place
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(tmp_path / "elsewhere")
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    for use in (lambda: written.read("params.w"), written.problems, lambda: merge(written.store, STATE, written.prefixes)):
        with pytest.raises(UnsafeStore, match=re.escape(f"{STATE}{place}")):
            use()
