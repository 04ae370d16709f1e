"""Where a database keeps its values: everything that it holds is found, nothing else, and a broken tree is damage."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from ckptcore import array_locations
from ckptcore.array_locations import Locations, Place
from ckptcore.errors import Damaged

KEYS = [f"params.layer%:{layer:03d}.ü/{end}" for layer in range(400) for end in ("c/0", "zarr.json")]


def value(key: str) -> bytes:
    """Too large for the tree, or small enough."""
    return (key.encode() * 100)[: 600 if key.endswith("c/0") else 20]


def database(path: Path, **settings: Any) -> ts.KvStore:
    config = {"compression": None, "max_inline_value_bytes": 512, "version_tree_arity_log2": 4}
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}, "config": config | settings.pop("config", {})}
    return ts.KvStore.open({**spec, **settings}).result()


def fill(store: ts.KvStore) -> Locations:
    with ts.Transaction(atomic=False) as transaction:
        writing = [store.with_transaction(transaction).write(key, value(key)) for key in KEYS]
    assert len(writing) == len(KEYS)
    return locations(store)


def locations(store: ts.KvStore) -> Locations:
    assert store.base is not None
    return Locations(store.base, ts.Context(), "database here")


def content(folder: Path, found: Place | bytes) -> bytes:
    if isinstance(found, bytes):
        return found
    return (folder / found.path).read_bytes()[found.start : found.start + found.nbytes]


@pytest.mark.parametrize("node_bytes", [1 << 20, 4000, 400], ids=["one node", "two levels", "many levels"])
def test_every_key_is_found_with_its_value(tmp_path: Path, node_bytes: int) -> None:
    found = fill(database(tmp_path, config={"max_decoded_node_bytes": node_bytes})).find(KEYS)
    assert {key: content(tmp_path, place) for key, place in found.items()} == {key: value(key) for key in KEYS}


@pytest.mark.parametrize("kept", [0, 1, 1000])
def test_some_keys_are_found_and_absent_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(array_locations, "KEPT_NODES", kept)
    places = fill(database(tmp_path, config={"max_decoded_node_bytes": 1000}))
    chance = random.Random(0)
    absent = ["", "a", "zzz", "params.layer%:", "params.layer%:0", KEYS[7] + "/", KEYS[7][:-1]]
    for _ in range(100):
        wanted = chance.sample(KEYS, chance.randint(0, 9))
        found = places.find([*wanted, *chance.sample(absent, 3)])
        assert {key: content(tmp_path, place) for key, place in found.items()} == {key: value(key) for key in wanted}


def test_few_nodes_are_read_for_few_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = fill(database(tmp_path, config={"max_decoded_node_bytes": 1000}))
    read: list[str | None] = []
    dump = ts.ocdbt.dump
    monkeypatch.setattr(ts.ocdbt, "dump", lambda base, node=None, **how: (read.append(node), dump(base, node, **how))[1])
    assert len(places.find(KEYS[100:101])) == 1
    few = len(read)
    places.find(KEYS[100:101])
    assert len(read) == few
    assert few < len(fill(database(tmp_path / "other", config={"max_decoded_node_bytes": 1000})).find(KEYS)) / 100


def test_paths_of_any_characters(tmp_path: Path) -> None:
    store = database(tmp_path, value_data_prefix="we:i%rd/", btree_node_data_prefix="no:/d/")
    store["key"] = b"x" * 900
    (place,) = locations(store).find(["key"]).values()
    assert isinstance(place, Place)
    assert place.path.startswith("we:i%rd/")
    assert content(tmp_path, place) == b"x" * 900


def test_an_empty_database_has_nothing(tmp_path: Path) -> None:
    store = database(tmp_path)
    store["key"] = b"value"
    del store["key"]
    assert locations(store).find(["key"]) == {}


def test_no_database_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="database here"):
        locations(database(tmp_path)).find(["key"])


@pytest.mark.parametrize("change", [{"height": 5}, {"entries": []}], ids=["leads back", "empty"])
def test_a_broken_tree_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Mapping[str, Any]) -> None:
    places = fill(database(tmp_path, config={"max_decoded_node_bytes": 4000}))
    dump = ts.ocdbt.dump

    def broken(base: ts.KvStore, node: str | None = None, **how: Any) -> ts.Future[Any]:
        found = dump(base, node, **how).result()
        promise, future = ts.Promise.new()
        promise.set_result(found if node is None else {**found, **change})
        return future

    monkeypatch.setattr(ts.ocdbt, "dump", broken)
    with pytest.raises(Damaged, match="its tree is broken"):
        places.find(KEYS)
