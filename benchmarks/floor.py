"""What the machine itself can do: the least time in which so many bytes can be saved, restored or copied.

A ratio to the floor of the same round says something on another machine too; seconds do not.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import blake3
import numpy as np

from benchmarks import page_cache

FILE_BYTES = 64 << 20
"""Of each file, where there are several."""
PIECE_BYTES = 4 << 20
"""Of one system call."""
CHUNK_BYTES = 16 << 20
"""Of each digest."""
DIGESTED_BYTES = 1 << 20
"""Of one system call whose bytes are digested at once, while they are in the processor's cache."""
LARGE_BYTES = 4 << 20
"""From here on numpy asks for large pages."""
THREADS = (2, 4, 8)

Result = TypeVar("Result")


def save_floor(folder: Path, nbytes: int) -> dict[str, float]:
    """Seconds to write so many bytes and flush them to the disk, in the ways that are fast.

    `one-file`: one file and one fsync at its end. `files-N`: files of 64 MiB, each with its own fsync, N at a time.
    Afterwards the folder is as it was.
    """
    source = _noise(min(nbytes, 4 * FILE_BYTES))
    ways = {"one-file": (nbytes, 1)} | {f"files-{threads}": (FILE_BYTES, threads) for threads in THREADS}
    return {name: _in_scratch(folder, lambda place, way=way: _written(place, nbytes, source, *way)) for name, way in ways.items()}


def restore_floor(folder: Path, nbytes: int, *, cached: bool) -> dict[str, float]:
    """Seconds to read so many bytes into memory that is ready, from files of 64 MiB, N at a time (`files-N`).

    The files are written first, and are in the page cache, or not.
    """
    into = np.ones(nbytes, np.uint8)
    return _restored(folder, nbytes, (1, *THREADS), lambda place, threads: _read(place, into, threads), cached=cached)


def proven_floor(folder: Path, sizes: Sequence[int], *, cached: bool) -> dict[str, float]:
    """As `restore_floor`, into new memory, an array of each of these sizes, with a digest of every 16 MiB.

    It is what a restore costs that gives new arrays and proves them, whatever the format.
    """
    return _restored(folder, sum(sizes), THREADS, lambda place, threads: _prove(place, sizes, threads), cached=cached)


def copy_floor(nbytes: int) -> float:
    """Seconds to copy so many bytes in memory, both sides ready, in one thread."""
    source, into = _noise(nbytes), np.ones(nbytes, np.uint8)
    started = time.perf_counter()
    np.copyto(into, source)
    return time.perf_counter() - started


def best(ways: dict[str, float]) -> float:
    """The fastest of several ways."""
    return min(ways.values())


def _restored(
    folder: Path, nbytes: int, threads: Sequence[int], read: Callable[[Path, int], float], *, cached: bool
) -> dict[str, float]:
    source = _noise(min(nbytes, 4 * FILE_BYTES))

    def measure(place: Path) -> dict[str, float]:
        _written(place, nbytes, source, FILE_BYTES, max(THREADS))
        seconds: dict[str, float] = {}
        for count in threads:
            (page_cache.load if cached else page_cache.drop)(place)
            seconds[f"files-{count}"] = read(place, count)
        return seconds

    return _in_scratch(folder, measure)


def _in_scratch(folder: Path, measure: Callable[[Path], Result]) -> Result:
    """What `measure` returns of a new folder, which is removed; before it the disk is given nothing else to do."""
    place = folder / "floor"
    place.mkdir()
    os.sync()
    try:
        return measure(place)
    finally:
        shutil.rmtree(place)


def _written(place: Path, nbytes: int, source: np.ndarray, file_bytes: int, threads: int) -> float:
    """Seconds to write and flush `nbytes`, repeating the bytes of `source`, and the folder they are in."""
    sizes = _cut(nbytes, file_bytes)
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: _write(place / str(number), sizes[number], source), range(len(sizes))))
    handle = os.open(place, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    return time.perf_counter() - started


def _write(path: Path, nbytes: int, source: np.ndarray) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        at = 0
        while at < nbytes:
            start = at % len(source)
            length = min(PIECE_BYTES, nbytes - at, len(source) - start)
            at += os.pwrite(handle, source[start : start + length].data, at)
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(place: Path, into: np.ndarray, threads: int) -> float:
    """Seconds to read the files that `_written` made."""
    sizes = _cut(len(into), FILE_BYTES)
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        parts = [into[number * FILE_BYTES :][:size] for number, size in enumerate(sizes)]
        list(pool.map(lambda number: _read_file(place / str(number), parts[number]), range(len(sizes))))
    return time.perf_counter() - started


def _read_file(path: Path, into: np.ndarray) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while at < len(into):
            count = os.preadv(handle, [into[at : at + PIECE_BYTES].data], at)
            if count == 0:
                raise EOFError(f"{path.name} ends after {at} bytes, not {len(into)}")
            at += count
    finally:
        os.close(handle)


def _prove(place: Path, sizes: Sequence[int], threads: int) -> float:
    """Seconds to read the files that `_written` made into new arrays, with a digest of each chunk."""
    started = time.perf_counter()
    arrays = [_new(nbytes) for nbytes in sizes]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda chunk: _prove_chunk(place, *chunk), _chunks(arrays)))
    return time.perf_counter() - started


def _new(nbytes: int) -> np.ndarray:
    """Memory that nobody has used yet, as `numpy.empty` would ask for."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= LARGE_BYTES:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _chunks(arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """Each chunk of the arrays, and at which byte of all of them it begins."""
    at = 0
    for array in arrays:
        for start in range(0, len(array), CHUNK_BYTES):
            yield at + start, array[start : start + CHUNK_BYTES]
        at += len(array)


def _prove_chunk(place: Path, start: int, into: np.ndarray) -> bytes:
    hasher, at = blake3.blake3(), 0
    while at < len(into):
        number, offset = divmod(start + at, FILE_BYTES)
        part = into[at : at + min(DIGESTED_BYTES, FILE_BYTES - offset)]
        handle = os.open(place / str(number), os.O_RDONLY)
        try:
            count = os.preadv(handle, [part.data], offset)
        finally:
            os.close(handle)
        if count == 0:
            raise EOFError(f"file {number} ends before byte {offset}")
        hasher.update(part[:count].data)
        at += count
    return hasher.digest()


def _cut(nbytes: int, file_bytes: int) -> list[int]:
    """The sizes of the files of so many bytes."""
    return [min(file_bytes, nbytes - at) for at in range(0, nbytes, file_bytes)]


def _noise(nbytes: int) -> np.ndarray:
    """Bytes that no compressor makes smaller."""
    return np.random.SFC64(0).random_raw(nbytes // 8 + 1).view(np.uint8)[:nbytes]
