"""Export to safetensors files, against the `safetensors` library."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from errno import EBADF, ENOLCK
from pathlib import Path as FilePath
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from msgspec import structs
from safetensors import safe_open

from ckptcore import dtypes, readable, restore
from ckptcore.errors import CallError, NotFound, StoreError, StructureMismatch, UnsupportedLeaf
from ckptcore.formats import foreign, safetensors_export
from ckptcore.formats.safetensors import Safetensors
from ckptcore.formats.safetensors_export import export_safetensors
from ckptcore.geometry import Box
from ckptcore.match import Rules
from ckptcore.names import Path
from ckptcore.readable import StoredLeaf
from ckptcore.run import open_run
from tests.ckptcore.support import checkpointer, same, state, weights

TENSORS: dict[str, np.ndarray] = {
    "layers.0.weight": np.arange(24, dtype=np.float32).reshape(4, 6),
    "layers.0.bias": np.arange(6).astype(ml_dtypes.bfloat16),
    "scale": np.array(3.5, np.float64),
    "empty": np.zeros((0, 5), np.int16),
    "mask": np.array([True, False, True]),
    "fp8": np.arange(8).astype(ml_dtypes.float8_e4m3fn).reshape(2, 4),
    "wide": np.arange(4).astype(ml_dtypes.float8_e5m2),
    "phase": np.array([1 + 2j], np.complex64),
    "ids": np.arange(3, dtype=np.uint64),
}


@dataclass
class Given:
    """Arrays and values in memory, as a checkpoint; `asked` are the boxes that were read."""

    content: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    title: str = "a checkpoint"
    framework: str = "torch"
    names: Sequence[str] = ("model",)
    asked: list[Box] = field(default_factory=list)

    def leaves(self, component: str, rank: int | None = None) -> Mapping[str, StoredLeaf]:  # noqa: ARG002
        return {leaf.name: leaf for leaf in (self._leaf(component, name) for name in self.content)}

    def _leaf(self, component: str, name: str) -> StoredLeaf:
        found = self.content[name]
        path: Path = (("key", name),)
        if not isinstance(found, np.ndarray):
            return readable.value_leaf(component, path)
        leaf = readable.array_leaf(component, path, dtypes.name_of(found.dtype, where=name), found.shape)
        return StoredLeaf(component, structs.replace(leaf.record, alias=self.aliases.get(name)))

    def value(self, leaf: StoredLeaf) -> Any:
        return self.content[str(leaf.record.path[0][1])]

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        self.asked.extend(box for _, boxes in wanted for box in boxes)
        return [[dtypes.to_stored(self.value(leaf)[box.slices()].copy()) for box in boxes] for leaf, boxes in wanted]

    def digest(self, leaf: StoredLeaf) -> str | None:  # noqa: ARG002
        return None


def read_back(path: FilePath) -> dict[str, np.ndarray]:
    """What the library finds in a file."""
    found = {}
    for name, stored in safetensors.deserialize(path.read_bytes()):
        kind = dtypes.numpy_dtype(safetensors_export.safetensors_header.DTYPES[stored["dtype"]])
        found[name] = np.frombuffer(stored["data"], kind).reshape(stored["shape"])
    return found


def test_one_file(place: FilePath) -> None:
    assert export_safetensors(Given(TENSORS), place / "out" / "x.safetensors", component="model") == [
        place / "out" / "x.safetensors"
    ]
    found = read_back(place / "out" / "x.safetensors")
    assert all(found[name].tobytes() == array.tobytes() and found[name].shape == array.shape for name, array in TENSORS.items())
    assert found.keys() == TENSORS.keys()
    with safe_open(place / "out" / "x.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}
    assert [path.name for path in (place / "out").iterdir()] == ["x.safetensors"]


def test_what_is_exported_is_read_again(place: FilePath) -> None:
    export_safetensors(Given(TENSORS), place / "out", component="model")
    assert [path.name for path in (place / "out").iterdir()] == ["model.safetensors"]
    tree = restore.host(Safetensors(place / "out", component="model"), ["model"], rules=Rules(), ranks={})
    assert same(tree["model"], TENSORS)


def test_several_files_and_their_index(place: FilePath) -> None:
    arrays = {f"layers.{number}": np.full(100, number, np.float32) for number in range(7)} | {"big": np.zeros(1000, np.float32)}
    paths = export_safetensors(Given(arrays), place / "out", component="model", max_shard_bytes=1000)
    names = [path.name for path in paths]
    assert names == [*(f"model-0000{number}-of-00005.safetensors" for number in range(1, 6)), "model.safetensors.index.json"]
    index = json.loads(paths[-1].read_text())
    assert index["metadata"] == {"total_size": 4 * 1700}
    for name, array in arrays.items():
        assert np.array_equal(read_back(place / "out" / index["weight_map"][name])[name], array)
    assert index["weight_map"]["big"] == "model-00005-of-00005.safetensors"
    assert same(restore.host(Safetensors(place / "out"), ["params"], rules=Rules(), ranks={})["params"], arrays)


def test_names_go_back_to_where_they_came_from(place: FilePath) -> None:
    rules = {"model.layers.*.mlp": "layers.*.ffn", "skip": None}
    given = Given({"layers.0.ffn.w": np.ones(2), "norm": np.ones(1), "skip.me": np.ones(1)})
    export_safetensors(given, place / "out", component="model", names=rules)
    assert set(read_back(place / "out" / "model.safetensors")) == {"model.layers.0.mlp.w", "norm"}
    again = Safetensors(place / "out", component="model", names=rules).leaves("model")
    assert set(again) == {"model.layers.0.ffn.w", "model.norm"}


def test_names_that_would_not_come_back(place: FilePath) -> None:
    given = Given({"a.w": np.ones(2), "model.layers.0": np.ones(1), "__metadata__": np.ones(1)})
    with pytest.raises(StructureMismatch) as refused:
        export_safetensors(given, place / "out", component="model", names={"model.layers": "a"})
    assert len(refused.value.differences) == 2
    with pytest.raises(StructureMismatch, match=r"is the name of .* too"):
        export_safetensors(Given({"a.w": np.ones(2), "x.w": np.ones(1)}), place / "out", component="model", names={"x": "a"})
    assert not (place / "out").exists()


def test_a_dtype_casts_floating_point_only(place: FilePath) -> None:
    export_safetensors(Given(TENSORS), place / "x.safetensors", component="model", dtype="bfloat16")
    found = read_back(place / "x.safetensors")
    kinds = {name: array.dtype.name for name, array in found.items()}
    assert {name for name, kind in kinds.items() if kind == "bfloat16"} == {
        "layers.0.weight",
        "layers.0.bias",
        "scale",
        "fp8",
        "wide",
    }
    assert (kinds["ids"], kinds["mask"], kinds["phase"]) == ("uint64", "bool", "complex64")
    assert np.array_equal(found["layers.0.weight"].astype(np.float32), TENSORS["layers.0.weight"])
    with pytest.raises(CallError, match="only floating-point"):
        export_safetensors(Given(TENSORS), place / "y.safetensors", component="model", dtype=np.int32)


def test_what_has_no_place_in_the_format(place: FilePath) -> None:
    given = Given({"w": np.ones(1), "extra": 7, "none": None, "node": {}})
    with pytest.raises(StructureMismatch, match=r"model\['extra'\]: a value.*names=\{'extra': None\}"):
        export_safetensors(given, place / "x.safetensors", component="model")
    export_safetensors(given, place / "x.safetensors", component="model", names={"extra": None})
    assert set(read_back(place / "x.safetensors")) == {"w"}
    narrow = Given({"w": np.ones(2, ml_dtypes.int4)})
    with pytest.raises(UnsupportedLeaf, match=r"model\['w'\]: safetensors files hold no int4"):
        export_safetensors(narrow, place / "y.safetensors", component="model")
    export_safetensors(
        Given({"w": np.ones(2, ml_dtypes.float8_e4m3b11fnuz)}), place / "z.safetensors", component="model", dtype="float16"
    )
    assert not (place / "y.safetensors").exists()


def test_a_tied_array_is_written_once(place: FilePath) -> None:
    given = Given({"embed": np.ones(3), "head": np.ones(3)}, aliases={"head": "model.embed"})
    export_safetensors(given, place / "x.safetensors", component="model")
    assert set(read_back(place / "x.safetensors")) == {"embed"}


def test_nothing_is_overwritten(place: FilePath) -> None:
    export_safetensors(Given(TENSORS), place / "out", component="model")
    before = (place / "out" / "model.safetensors").read_bytes()
    for path in (place / "out", place / "out" / "model.safetensors"):
        with pytest.raises(CallError, match="nothing is overwritten"):
            export_safetensors(Given({"w": np.ones(1)}), path, component="model")
    (place / "file").write_text("")
    with pytest.raises(CallError, match="is not a directory"):
        export_safetensors(Given(TENSORS), place / "file", component="model")
    assert (place / "out" / "model.safetensors").read_bytes() == before


def test_a_file_that_another_one_made_meanwhile_stays(place: FilePath) -> None:
    class Slow(Given):
        def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
            (place / "x.safetensors").write_text("theirs")
            return super().read(wanted)

    with pytest.raises(CallError, match="nothing is overwritten"):
        export_safetensors(Slow({"w": np.ones(1)}), place / "x.safetensors", component="model")
    assert [(path.name, path.read_text()) for path in place.iterdir()] == [("x.safetensors", "theirs")]


def test_a_failure_leaves_nothing_behind(place: FilePath) -> None:
    class Broken(Given):
        def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
            if wanted[0][0].name == "model.b":
                raise CallError("no more")
            return super().read(wanted)

    given = Broken({"a": np.ones(100), "b": np.ones(100)})
    with pytest.raises(CallError, match="no more"):
        export_safetensors(given, place / "out", component="model", max_shard_bytes=800)
    assert not (place / "out").exists()
    (place / "there").mkdir()
    for folder in ("there", "new/below/there"):
        with pytest.raises(CallError, match="no more"):
            export_safetensors(given, place / folder, component="model")
    assert [entry.name for entry in place.iterdir()] == ["there"]


def test_a_name_as_long_as_a_file_can_have(place: FilePath) -> None:
    given = Given({"a": np.ones(3)})
    file = place / ("é" * 121 + "a.safetensors")
    assert export_safetensors(given, file, component="model") == [file]
    with pytest.raises(CallError, match=r"longer than a file's can be, or a part of it than 255 bytes") as refused:
        export_safetensors(given, place / ("é" * 130 + ".safetensors"), component="model")
    assert len(str(refused.value)) < 400


def test_nothing_to_write(place: FilePath) -> None:
    with pytest.raises(NotFound, match="has no arrays to write"):
        export_safetensors(Given({"a": np.ones(3)}), place / "out", component="model", names={"-": None, "": None})
    assert not (place / "out").exists()


LEFT = f".model-00001-of-00002.safetensors.{'0f' * 16}.tmp"


def test_what_a_killed_export_left_is_removed_by_the_next(place: FilePath) -> None:
    for name in (LEFT, f".model.safetensors.index.json.{'0f' * 16}.tmp", ".model.safetensors.mine.tmp", "notes.tmp"):
        (place / name).write_text("")
    export_safetensors(Given({"w": np.ones(1)}), place, component="model")
    assert sorted(path.name for path in place.iterdir()) == [".model.safetensors.mine.tmp", "model.safetensors", "notes.tmp"]


def test_what_another_export_is_writing_stays(place: FilePath) -> None:
    class Other(Given):
        def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
            (temporary,) = place.iterdir()
            export_safetensors(Given({"w": np.ones(1)}), place / "b.safetensors", component="model")
            assert temporary.exists()
            return super().read(wanted)

    export_safetensors(Other({"w": np.ones(1)}), place / "a.safetensors", component="model")
    assert sorted(path.name for path in place.iterdir()) == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("errno", [EBADF, ENOLCK])
def test_a_file_system_without_locks(errno: int, place: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno, "no locks")

    monkeypatch.setattr(safetensors_export.fcntl, "flock", flock)
    (place / LEFT).write_text("")
    export_safetensors(Given({"w": np.ones(1)}), place, component="model")
    assert sorted(path.name for path in place.iterdir()) == [LEFT, "model.safetensors"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None])
def test_a_limit_that_is_none(limit: Any, place: FilePath) -> None:
    with pytest.raises(CallError, match=r"max_shard_bytes=.*: expected a positive number"):
        export_safetensors(Given(TENSORS), place / "out", component="model", max_shard_bytes=limit)
    assert list(place.iterdir()) == []


def test_a_large_tensor_goes_through_memory_in_pieces(place: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "PIECE_BYTES", 1 << 16)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4096, 1024], "data_offsets": [0, 1 << 24]}}).encode()
    with (place / "big.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 24))
    tracemalloc.start()
    export_safetensors(Safetensors(place / "big.safetensors"), place / "out", component="params", dtype="bfloat16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert read_back(place / "out" / "model.safetensors")["w"].shape == (4096, 1024)


@pytest.mark.parametrize(
    ("shape", "rows", "steps"), [((10, 4), 1, [4, 4, 2]), ((10, 4), 3, [3, 3, 3, 1]), ((10, 4), 7, [4, 4, 2])]
)
def test_pieces_end_where_chunks_do(shape: tuple[int, ...], rows: int, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "PIECE_BYTES", 4 * 4 * 4)
    boxes: Iterator[Box] = foreign.pieces(foreign.Tensor("float32", shape), rows=rows)
    assert [box.shape[0] for box in boxes] == steps


def test_a_run_is_exported(place: FilePath) -> None:
    with checkpointer(place / "run") as ckpt:
        for step in (10, 20):
            ckpt.save(step, state(step))
    paths = open_run(place / "run").export_safetensors(place / "out", step=10, component="params", dtype=np.float16)
    found = read_back(paths[0])
    assert np.array_equal(found["w"], weights(10).astype(np.float16))
    assert np.array_equal(found["b"], np.full(3, 10, np.float16))
    paths = open_run(place / "run").export_safetensors(place / "parts", component="params", max_shard_bytes=1)
    assert [path.name for path in paths][-1] == "model.safetensors.index.json"


def test_a_folder_that_cannot_be_looked_into(place: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: FilePath) -> Iterator[FilePath]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FilePath, "iterdir", refuse)
    with pytest.raises(StoreError, match=r"looking at .*Permission denied"):
        export_safetensors(Given({"a": np.ones(3)}), place, component="model")
