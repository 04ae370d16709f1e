"""The floors leave nothing behind, and the page cache is emptied and filled as they need."""

from pathlib import Path

import blake3
import pytest

from benchmarks import floor, page_cache

NBYTES = floor.FILE_BYTES + 12_345


def test_a_save_floor_has_all_ways_and_leaves_nothing(tmp_path: Path) -> None:
    ways = floor.save_floor(tmp_path, 1 << 20)
    assert set(ways) == {"one-file", "files-2", "files-4", "files-8"}
    assert all(seconds > 0 for seconds in ways.values())
    assert list(tmp_path.iterdir()) == []
    assert floor.best(ways) == min(ways.values())


@pytest.mark.parametrize("cached", [True, False])
def test_a_restore_floor_has_all_ways_and_leaves_nothing(tmp_path: Path, *, cached: bool) -> None:
    ways = floor.restore_floor(tmp_path, NBYTES, cached=cached)
    assert set(ways) == {"files-1", "files-2", "files-4", "files-8"}
    assert all(seconds > 0 for seconds in ways.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cached", [True, False])
def test_a_proven_floor_has_all_ways_and_leaves_nothing(tmp_path: Path, *, cached: bool) -> None:
    ways = floor.proven_floor(tmp_path, [floor.FILE_BYTES - 5, 7, 12_343], cached=cached)
    assert set(ways) == {"files-2", "files-4", "files-8"}
    assert all(seconds > 0 for seconds in ways.values())
    assert list(tmp_path.iterdir()) == []


def test_a_proven_floor_reads_and_digests_every_byte(tmp_path: Path) -> None:
    source = floor._noise(NBYTES)
    floor._written(tmp_path, NBYTES, source, floor.FILE_BYTES, 2)
    arrays = [floor._new(nbytes) for nbytes in (floor.FILE_BYTES - 5, 7, 12_343)]
    found = [(start, len(into), floor._prove_chunk(tmp_path, start, into)) for start, into in floor._chunks(arrays)]
    written = source[: floor.FILE_BYTES].tobytes() + source[:12_345].tobytes()
    assert b"".join(array.tobytes() for array in arrays) == written
    assert found == [(at, size, blake3.blake3(written[at : at + size]).digest()) for at, size, _ in found]
    assert sum(size for _, size, _ in found) == NBYTES
    with pytest.raises(EOFError, match="ends before byte"):
        floor._prove_chunk(tmp_path, NBYTES - 1, floor._new(2))


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    source, into = floor._noise(1 << 20), floor._noise(NBYTES) * 0
    floor._written(tmp_path, NBYTES, source, floor.FILE_BYTES, 4)
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [12_345, floor.FILE_BYTES]
    floor._read(tmp_path, into, 2)
    assert into[: 1 << 20].tobytes() == source.tobytes()
    assert into[floor.FILE_BYTES :].tobytes() == source[:12_345].tobytes()


def test_a_short_file_is_no_floor(tmp_path: Path) -> None:
    floor._written(tmp_path, 1000, floor._noise(1000), floor.FILE_BYTES, 1)
    with pytest.raises(EOFError, match="after 1000 bytes"):
        floor._read(tmp_path, floor._noise(1001), 1)


def test_a_copy_takes_time() -> None:
    assert floor.copy_floor(1 << 20) > 0


def test_the_page_cache_is_emptied_and_filled(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "data").write_bytes(bytes(3 << 20))
    (tmp_path / "empty").touch()
    assert page_cache.held(tmp_path) == 1.0
    if page_cache.drop(tmp_path) > 0:
        pytest.skip("the file system of the temporary folder does not drop pages")
    assert page_cache.held(tmp_path) == 0.0
    with (tmp_path / "deep" / "data").open("rb", buffering=0) as file:
        file.read(1)
    assert 0 < page_cache.held(tmp_path) <= 1
    assert page_cache.load(tmp_path) == 1.0


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    assert page_cache.held(tmp_path) == 0.0
