"""The merged root: exactly what the layouts ask for, made again at any time, and what is wrong with it is said."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from ckptcore.array_spec import OCDBT_CONFIG, StoredArray
from ckptcore.arrays import ArrayReader, check_merged, merge, merged_keys
from ckptcore.errors import CallError, Damaged
from ckptcore.geometry import Box, Grid
from ckptcore.store import open_store
from tests.ckptcore.databases import STATE, Database, same, write


def some_arrays(count: int = 3, rows: int = 8) -> dict[str, tuple[np.ndarray, Grid]]:
    data = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
    return {f"params.{number}": (data + number, Grid.regular((rows, 6), (1, 6))) for number in range(count)}


def check_reads(found: Database, arrays: dict[str, tuple[np.ndarray, Grid]]) -> None:
    assert found.problems() == []
    assert all(same(found.read(name)[0], data) for name, (data, _) in arrays.items())


def test_the_keys_are_those_of_the_layouts(tmp_path: Path) -> None:
    irregular = (np.zeros((3, 2), np.int8), Grid.irregular((3, 2), [(0, 1, 3), (0, 2)]))
    empty = (np.zeros((0, 2), np.int8), Grid.regular((0, 2), (1, 1)))
    scalar = (np.array(1.0), Grid.regular((), ()))
    found = write(tmp_path, {"params.w": some_arrays()["params.0"], "i": irregular, "e": empty, "s": scalar}, ranks=3)
    assert merged_keys(found.store, STATE) == {
        "params.w/zarr.json",
        *(f"params.w/c/{row}/0" for row in range(8)),
        *("i/0.0/zarr.json", "i/0.0/c/0/0", "i/1.0/zarr.json", "i/1.0/c/0/0"),
        *("e/zarr.json", "s/zarr.json", "s/c"),
    }
    assert found.problems() == []


def test_merging_again_changes_nothing_that_is_seen(tmp_path: Path) -> None:
    arrays = some_arrays()
    found = write(tmp_path, arrays, ranks=2)
    for _ in range(2):
        merge(found.store, STATE, found.prefixes)
        check_reads(found, arrays)


def test_a_merge_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    """What a killed coordinator leaves: a root of some databases only."""
    arrays = some_arrays()
    found = write(tmp_path, arrays, ranks=4, merged=False)
    merge(found.store, STATE, found.prefixes[:2])
    assert len(found.problems()) == 1
    merge(found.store, STATE, found.prefixes)
    check_reads(found, arrays)


def test_coordinators_may_merge_at_the_same_time(tmp_path: Path) -> None:
    arrays = some_arrays(20)
    found = write(tmp_path, arrays, ranks=4, merged=False)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: merge(open_store(tmp_path), STATE, found.prefixes), range(4)))
    check_reads(found, arrays)


def test_a_copied_folder_is_whole(tmp_path: Path) -> None:
    arrays = some_arrays()
    found = write(tmp_path / "here", arrays, ranks=2)
    shutil.move(tmp_path / "here", tmp_path / "there")
    found.store = open_store(tmp_path / "there")
    check_reads(found, arrays)


def test_a_missing_database_is_found(tmp_path: Path) -> None:
    found = write(tmp_path, some_arrays(), ranks=4, merged=False)
    shutil.rmtree(tmp_path / found.prefixes[1])
    merge(found.store, STATE, found.prefixes)
    (problem,) = found.problems()
    assert "lacks params.0/c/1/0, params.0/c/5/0" in problem


def test_keys_of_no_layout_are_found(tmp_path: Path) -> None:
    found = write(tmp_path, some_arrays(12))
    expected = {name: array for name, array in found.arrays.items() if name < "params.2"}
    (problem,) = check_merged(found.store, STATE, expected)
    assert "keys that no layout asks for: params.2/c/0/0" in problem
    assert " more" in problem
    assert len(problem) < 1000


def test_nothing_was_merged(tmp_path: Path) -> None:
    found = write(tmp_path, some_arrays(1), merged=False)
    assert "lacks" in found.problems()[0]
    assert check_merged(found.store, STATE, {}) == []
    merge(found.store, STATE, [])
    assert merged_keys(found.store, STATE) == set()


def test_metadata_that_disagrees_with_the_layout_is_found(tmp_path: Path) -> None:
    found = write(tmp_path, some_arrays(1))
    array = found.arrays["params.0"]
    found.arrays["params.0"] = StoredArray("params.0", "int32", array.shape, array.grid)
    (problem,) = found.problems()
    assert problem == "params.0/zarr.json does not describe int32[8, 6] in chunks of [1, 6]"


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    found = write(tmp_path, some_arrays(), ranks=2, merged=False)
    (tmp_path / found.prefixes[1] / "manifest.ocdbt").write_bytes(b"no manifest")
    with pytest.raises(Damaged, match=found.prefixes[1]):
        merge(found.store, STATE, found.prefixes)


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="below"):
        merge(open_store(tmp_path), STATE, ["generations/000009-000000000001-1/state/ranks/00000-aaaaaaaa/"])


def test_every_database_has_the_pinned_configuration(tmp_path: Path) -> None:
    found = write(tmp_path, some_arrays(), ranks=2)
    for prefix in [*found.prefixes, STATE]:
        spec = {"driver": "ocdbt", "base": found.store.kvstore(prefix)}
        opened = ts.KvStore.open(spec).result()
        opened.list().result()  # reads the manifest
        config = opened.spec().to_json()["config"]
        assert {name: config[name] for name in OCDBT_CONFIG} == OCDBT_CONFIG


def test_zarr_metadata_is_what_tensorstore_writes_itself(tmp_path: Path) -> None:
    found = write(tmp_path, {"w": (np.zeros((3, 4), np.complex64), Grid.regular((3, 4), (2, 4)))})
    piece = next(iter(found.arrays["w"].pieces()))
    context = ts.Context()
    ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": piece.metadata, "create": True}, context=context).result()
    own = ts.KvStore.open("memory://", context=context).result().read("zarr.json").result().value
    assert json.loads(own) == json.loads(piece.metadata_bytes) == piece.metadata
    assert own == piece.metadata_bytes


def test_many_databases_merge_quickly_and_take_little_room(tmp_path: Path) -> None:
    """64 ranks, each with a chunk of 50 arrays: references only are copied."""
    data = np.zeros((64, 1024), np.float32)
    arrays = {f"params.{number}": (data, Grid.regular(data.shape, (1, 1024))) for number in range(50)}
    found = write(tmp_path, arrays, ranks=64)
    assert found.problems() == []
    root = [path for path in (tmp_path / STATE).rglob("*") if path.is_file() and "ranks" not in path.parts]
    assert len(root) < 8
    assert sum(path.stat().st_size for path in root) < 1 << 20
    one = ArrayReader(found.store, STATE).read(found.arrays["params.7"], [Box((5, 0), (6, 1024))], found.digests["params.7"])
    assert same(one[0], data[5:6])
