"""Databases as `ckptcore.ocdbt` makes them, read by TensorStore."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import ocdbt
from ckptcore.array_spec import MANIFEST, OCDBT_CONFIG
from ckptcore.ocdbt import Entry, Place
from tests.ckptcore.support import memory_directory

FILES = ("d/" + "0" * 32, "d/" + "1" * 32, "elsewhere/x")
IDENTITY = bytes(range(16))


def make(folder: Path, values: Mapping[bytes, tuple[bytes, int | None]]) -> ocdbt.Root:
    """A database of `values`: key → value, and the number of the file that it lies in, None for the tree itself."""
    files = {path: bytearray() for path in FILES}

    def store(data: bytes, path: str = FILES[0]) -> Place:
        place = Place(path, len(files[path]), len(data))
        files[path] += data
        return place

    entries = [Entry(key, data if file is None else store(data, FILES[file])) for key, (data, file) in sorted(values.items())]
    root = ocdbt.tree(entries, store)
    for path, data in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / MANIFEST).write_bytes(ocdbt.manifest(root, OCDBT_CONFIG, IDENTITY))
    return root


def opened(folder: Path) -> ts.KvStore:
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "config": OCDBT_CONFIG}
    return ts.KvStore.open(spec).result()


def read(folder: Path) -> dict[bytes, bytes]:
    store = opened(folder)
    return {key: bytes(store.read(key).result().value) for key in store.list().result()}


KEYS = st.binary(min_size=1, max_size=12) | st.from_regex(rb"params\.[ab]{1,9}/c/[0-9]", fullmatch=True)
VALUES = st.tuples(st.binary(max_size=40), st.none() | st.integers(0, len(FILES) - 1))


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=60), st.sampled_from([1, 120, 400, ocdbt.NODE_BYTES]))
def test_tensorstore_reads_what_was_put(values: dict[bytes, tuple[bytes, int | None]], node_bytes: int) -> None:
    with memory_directory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ocdbt, "NODE_BYTES", node_bytes)
        root = make(folder, values)
        assert read(folder) == {key: data for key, (data, _) in values.items()}
        assert root.height > 0 or node_bytes > 1 or len(values) <= 2


def test_what_tensorstore_says_of_the_tree(tmp_path: Path) -> None:
    values = {f"params.layer-{number}.w/c/0".encode(): (bytes(600), number % 2) for number in range(20_000)}
    root = make(tmp_path, values)
    base = ts.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    dumped = ts.ocdbt.dump(base).result()
    assert dumped["config"] == {**OCDBT_CONFIG, "uuid": IDENTITY.hex()}
    (version,) = dumped["versions"]
    assert version["root_height"] == root.height == 1
    statistics = version["root"]["statistics"]
    assert statistics["num_keys"] == 20_000
    assert statistics["num_indirect_value_bytes"] == 20_000 * 600
    assert statistics["num_tree_bytes"] == (tmp_path / FILES[0]).stat().st_size - 10_000 * 600
    top = ts.ocdbt.dump(base, version["root"]["location"]).result()
    assert sum(entry["statistics"]["num_keys"] for entry in top["entries"]) == 20_000


def test_it_can_be_copied_into_another_database(tmp_path: Path) -> None:
    """What a coordinator does with it: no data is copied, and what was there stays."""
    values = {f"params.{number}/c/0".encode(): (bytes([number]) * 600, 0) for number in range(100)}
    (tmp_path / "ranks").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ocdbt, "NODE_BYTES", 500)
        make(tmp_path / "ranks", values)
    context = ts.Context()
    transaction = ts.Transaction(atomic=False)
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{tmp_path}/"}, "config": OCDBT_CONFIG}
    root = ts.KvStore.open(spec, context=context).result()
    source = {**spec, "base": {"driver": "file", "path": f"{tmp_path}/ranks/"}}
    copying = ts.KvStore.open(source, context=context).result().experimental_copy_range_to(root.with_transaction(transaction))
    copying.result()
    transaction.commit_async().result()
    root["other"] = b"x"
    assert read(tmp_path) == {b"other": b"x"} | {key: data for key, (data, _) in values.items()}


def test_the_same_entries_make_the_same_bytes(tmp_path: Path) -> None:
    values = {b"a": (b"1", None), b"b": (b"2", 1), b"c": (b"3", 0)}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        make(tmp_path / name, values)
    for path in (MANIFEST, *FILES):
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "other" / path).read_bytes()


@pytest.mark.parametrize("position", [0, 5, 20, -1])
def test_a_flipped_bit_of_the_tree_is_noticed(tmp_path: Path, position: int) -> None:
    make(tmp_path, {b"a": (b"value", None)})
    for path in (MANIFEST, FILES[0]):
        data = bytearray((tmp_path / path).read_bytes())
        data[position] ^= 1
        (tmp_path / path).write_bytes(data)
        with pytest.raises(ValueError, match=r"DATA_LOSS|OUT_OF_RANGE|FAILED_PRECONDITION|CRC|magic"):
            read(tmp_path)
        data[position] ^= 1
        (tmp_path / path).write_bytes(data)
