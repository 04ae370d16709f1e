"""Safetensors files as something to read from, against the `safetensors` library, and hostile ones."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from ckptcore import dtypes, restore
from ckptcore.errors import CallError, Damaged, DamageError, InvalidRecord, NotFound, StructureMismatch, UnsupportedFormat
from ckptcore.formats.safetensors import Safetensors
from ckptcore.formats.safetensors_header import DTYPES, MAX_HEADER_BYTES, parse
from ckptcore.geometry import Box
from ckptcore.match import Rules

TENSORS: dict[str, np.ndarray] = {
    "layers.0.weight": np.arange(24, dtype=np.float32).reshape(4, 6),
    "layers.0.bias": np.arange(6).astype(ml_dtypes.bfloat16),
    "scale": np.array(3.5, np.float64),
    "empty": np.zeros((0, 5), np.int16),
    "mask": np.array([True, False, True]),
    "fp8": np.arange(8).astype(ml_dtypes.float8_e4m3fn).reshape(2, 4),
    "fp8_wide": np.arange(4).astype(ml_dtypes.float8_e5m2),
    "exponents": np.ones(4, ml_dtypes.float8_e8m0fnu),
    "phase": np.array([1 + 2j], np.complex64),
    "ids": np.arange(3, dtype=np.uint64),
    "mitä.♥": np.arange(2, dtype=np.int8),
}


@pytest.fixture
def file(place: Path) -> Path:
    save_file(TENSORS, place / "model.safetensors", metadata={"format": "pt"})
    return place / "model.safetensors"


def shard(place: Path, **index: Any) -> Path:
    """Three files and their index."""
    names = list(TENSORS)
    files = {}
    for number in range(3):
        part = {name: TENSORS[name] for name in names[number::3]}
        files |= dict.fromkeys(part, f"model-0000{number + 1}-of-00003.safetensors")
        save_file(part, place / f"model-0000{number + 1}-of-00003.safetensors")
    text = {"metadata": {"total_size": 1.5e3}, "weight_map": files} | index
    (place / "model.safetensors.index.json").write_text(json.dumps(text))
    return place


def whole(source: Safetensors) -> dict[str, np.ndarray]:
    tree = restore.host(source, [source.component], rules=Rules(), ranks={})
    return tree[source.component]


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    same = {name: one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one}
    return one.keys() == other.keys() and all(same.values()) and all(one[name].shape == other[name].shape for name in one)


# Reading


def test_every_tensor_of_a_file(file: Path) -> None:
    source = Safetensors(file)
    assert source.names == ("params",)
    assert source.framework == "torch"
    assert str(file) in source.title
    assert equal(whole(source), TENSORS)
    assert source.leaves("params")["params.layers.0.weight"].record.path == (("key", "layers.0.weight"),)


def test_a_directory_a_file_and_an_index_are_the_same(place: Path) -> None:
    shard(place)
    assert equal(whole(Safetensors(place)), TENSORS)
    assert equal(whole(Safetensors(place / "model.safetensors.index.json", component="model")), TENSORS)
    one = Safetensors(place / "model-00002-of-00003.safetensors")
    assert set(one.leaves("params")) == {f"params.{name}" for name in list(TENSORS)[1::3]}


def test_a_directory_with_other_names(place: Path) -> None:
    with pytest.raises(NotFound, match=r"has no file that ends in \.safetensors"):
        whole(Safetensors(place))
    with pytest.raises(NotFound, match="there is no file"):
        whole(Safetensors(place / "nothing.safetensors"))
    save_file({"w": np.ones(1)}, place / "adapter.safetensors")
    assert equal(whole(Safetensors(place)), {"w": np.ones(1)})
    save_file({"w": np.zeros(1)}, place / "other.safetensors")
    with pytest.raises(CallError, match=r"has 2 files .*: name one of them, such as adapter"):
        whole(Safetensors(place))


def test_boxes(file: Path) -> None:
    source = Safetensors(file)
    leaves = source.leaves("params")
    box = Box((1, 2), (3, 5))
    found = source.read(
        [(leaves["params.layers.0.weight"], [box, Box.whole((4, 6))]), (leaves["params.fp8"], [Box((0, 1), (2, 3))])]
    )
    assert np.array_equal(found[0][0], TENSORS["layers.0.weight"][1:3, 2:5])
    assert np.array_equal(found[0][1], TENSORS["layers.0.weight"])
    assert found[1][0].tobytes() == TENSORS["fp8"][:, 1:3].tobytes()
    with pytest.raises(CallError, match="does not lie in"):
        source.read([(leaves["params.fp8"], [Box((0, 0), (2, 5))])])


def test_names_are_changed_by_rules(file: Path) -> None:
    source = Safetensors(file, names={"layers.*": "blocks.*.dense", "exponents": None})
    names = source.leaves("params")
    assert "params.blocks.0.dense.weight" in names
    assert len(names) == len(TENSORS) - 1
    with pytest.raises(StructureMismatch, match="both become 'x'"):
        Safetensors(file, names={"scale": "x", "mask": "x"}).leaves("params")
    with pytest.raises(NotFound, match="give it that name with component="):
        source.leaves("model")
    with pytest.raises(NotFound, match="has no values"):
        source.value(names["params.scale"])


def test_nothing_is_opened_before_it_is_needed(place: Path) -> None:
    assert "nowhere" in repr(Safetensors(place / "nowhere", cast="float32"))
    with pytest.raises(CallError, match="component name"):
        Safetensors(place, component="a.b")
    with pytest.raises(CallError, match="only floating-point"):
        Safetensors(place, cast="int8")


def test_a_box_costs_its_own_bytes(place: Path) -> None:
    """Of a file of 256 MiB, cut into columns: no box may cost more than itself and a slab."""
    rows, columns, parts = 8192, 8192, 16
    header = json.dumps({"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, 4 * rows * columns]}}).encode()
    with (place / "big.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * rows * columns)  # a hole: it reads as zeros and takes no room
    source = Safetensors(place / "big.safetensors")
    leaf = source.leaves("params")["params.w"]
    width = columns // parts
    tracemalloc.start()
    for part in range(parts):
        (array,) = source.read([(leaf, [Box((0, part * width), (rows, (part + 1) * width))])])[0]
        assert array.nbytes == 4 * rows * width
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * 4 * rows * width, "the box before it, and the box itself"


def test_digests_tell_content(place: Path) -> None:
    save_file(
        {"a": np.ones(5000), "b": np.ones(5000), "c": np.arange(5000.0), "d": np.ones(5000).reshape(50, 100)},
        place / "x.safetensors",
    )
    source = Safetensors(place / "x.safetensors")
    found = {name: source.digest(leaf) for name, leaf in source.leaves("params").items()}
    assert found["params.a"] == found["params.b"]
    assert len(set(found.values())) == 3


# What a run records of it


def test_a_description_tells_what_a_file_holds(place: Path) -> None:
    save_file({"a": np.ones(5000), "b": np.ones(3)}, place / "x.safetensors")
    first = Safetensors(place / "x.safetensors").describe()
    assert (first.format, first.url) == ("safetensors", (place / "x.safetensors").as_uri())
    assert Safetensors(place / "x.safetensors").describe() == first
    # How it is taken may be set right after a start that failed.
    assert Safetensors(place / "x.safetensors", names={"a": "z"}, component="model").describe().digest == first.digest
    save_file({"a": np.ones(5000), "b": np.ones(3) * 2}, place / "x.safetensors")
    assert Safetensors(place / "x.safetensors").describe().digest != first.digest
    save_file({"a": np.ones(5000), "b": np.ones(3)}, place / "elsewhere.safetensors")
    assert Safetensors(place / "elsewhere.safetensors").describe().digest == first.digest


# Hostile and broken files


def write(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "error", "message"),
    [
        ({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6), InvalidRecord, "'b' begins at byte 2.* a hole or an overlap"),
        ({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6), InvalidRecord, "'b' begins at byte 5"),
        ({"a": entry(1, 4)}, bytes(4), InvalidRecord, "'a' begins at byte 1, the one before it ends at 0"),
        ({"a": entry(0, 4)}, bytes(3), Damaged, "cut short"),
        ({"a": entry(0, 4)}, bytes(5), Damaged, "the tensors end at byte"),
        ({"a": entry(0, 4, [5])}, bytes(4), InvalidRecord, "'a' has 4 bytes"),
        ({"a": entry(0, 4, dtype="F4")}, bytes(4), UnsupportedFormat, "'a' has dtype 'F4', this release knows"),
        ({"a": entry(0, 4, dtype="I4096")}, bytes(4), UnsupportedFormat, "I4096"),
        ({"a": entry(0, 4, dtype=3)}, bytes(4), InvalidRecord, "'a'.*dtype"),
        ({"a": entry(4, 0, [4])}, bytes(4), InvalidRecord, "'a' begins at byte 4"),
        ({"a": entry(0, 1, [-1])}, bytes(4), InvalidRecord, "'a'"),
        ({"a": entry(0, 1, [1.5])}, bytes(1), InvalidRecord, "'a'"),
        ({"a": entry(0, 1, ["1"])}, bytes(1), InvalidRecord, "'a'"),
        ({"a": entry(0, 1, [True])}, bytes(1), InvalidRecord, "'a'"),
        ({"a": entry(0, 0, [0, 2**53 - 1, 2**53 - 1])}, b"", InvalidRecord, "which is no array's"),
        ({"a": entry(0, 1, [1] * 33)}, bytes(1), InvalidRecord, "33 dimensions"),
        ({"a": entry(0, 1, [2**60])}, bytes(1), InvalidRecord, "'a'"),
        ({"a": [0, 1]}, bytes(1), InvalidRecord, "'a'"),
        ({"a": entry(0, 1) | {"stride": [1]}}, bytes(1), InvalidRecord, "'a'.*stride"),
        ({"a": {"dtype": "U8", "shape": [1]}}, bytes(1), InvalidRecord, "'a'.*data_offsets"),
        ({"__metadata__": {"x": 1}}, b"", InvalidRecord, "__metadata__"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":1}', b"1", InvalidRecord, "two values for 'a'"),
        (b"[]", b"", InvalidRecord, "does not start with"),
        (b" {}", b"", InvalidRecord, "does not start with"),
        (b"", b"", InvalidRecord, "does not start with"),
        (b"{", b"", InvalidRecord, "not JSON"),
        (b"{} {}", b"", InvalidRecord, "not JSON"),
        (b'{"\xff": 1}', b"", InvalidRecord, "not JSON"),
        (b'{"\\ud800": 1}', b"", InvalidRecord, "not JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", InvalidRecord, "not JSON"),
        (b'{"a":NaN}', b"", InvalidRecord, "not JSON"),
        (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}', b"1", InvalidRecord, "not JSON"),
    ],
)
def test_a_hostile_header(place: Path, header: Any, data: bytes, error: type[Exception], message: str) -> None:
    path = write(place / "evil.safetensors", header, data)
    with pytest.raises(error, match=message) as refused:
        Safetensors(path).leaves("params")
    assert str(path) in str(refused.value)
    assert isinstance(refused.value, DamageError)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda data: data[:0], Damaged, "0 bytes are no safetensors file"),
        (lambda data: data[:7], Damaged, "7 bytes"),
        (lambda data: data[:20], Damaged, "cut short"),
        (lambda data: data[:-1], Damaged, "cut short"),
        (lambda data: data + b"\0", Damaged, "not one file"),
        (lambda data: b"\xff" * 8 + data[8:], InvalidRecord, "more than a safetensors file may have"),
        (lambda data: (MAX_HEADER_BYTES).to_bytes(8, "little") + data[8:], Damaged, "cut short"),
    ],
)
def test_a_broken_file(file: Path, change: Callable[[bytes], bytes], error: type[Exception], message: str) -> None:
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(error, match=message) as refused:
        Safetensors(file).leaves("params")
    assert str(file) in str(refused.value)


def test_no_cut_of_a_file_is_taken_for_a_file(file: Path) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for size in range(len(data)):
        file.write_bytes(data[:size])
        with pytest.raises(DamageError):
            Safetensors(file).leaves("params")
    for size in range(8, 8 + length, 7):
        with pytest.raises(DamageError):
            parse(data[8:size], len(data), where="x")


def test_a_file_that_changes_while_it_is_read(file: Path) -> None:
    source = Safetensors(file)
    leaf = source.leaves("params")["params.scale"]
    save_file({"scale": np.array(1.0)}, file)
    with pytest.raises(Damaged, match="was changed after its header"):
        source.read([(leaf, [Box((), ())])])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ({"weight_map": {"scale": "../model.safetensors"}}, InvalidRecord, "no plain file name"),
        ({"weight_map": {"scale": "/etc/passwd"}}, InvalidRecord, "no plain file name"),
        ({"weight_map": {"scale": ".."}}, InvalidRecord, "no plain file name"),
        ({"weight_map": {"scale": ""}}, InvalidRecord, "no plain file name"),
        ({"weight_map": {"scale": 3}}, InvalidRecord, "weight_map"),
        ({"weight_map": []}, InvalidRecord, "weight_map"),
        ({"weight_map": {"scale": "absent.safetensors"}}, Damaged, "'absent.safetensors' that it names is missing"),
        ({"weight_map": {"more": "model-00001-of-00003.safetensors"}}, InvalidRecord, "'more' is not in"),
    ],
)
def test_a_hostile_index(place: Path, index: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        Safetensors(shard(place, **index)).leaves("params")
    assert "model.safetensors.index.json" in str(refused.value)


def test_an_index_that_is_none(place: Path) -> None:
    (place / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidRecord, match="a JSON object is expected"):
        Safetensors(place).leaves("params")
    with (place / "model.safetensors.index.json").open("wb") as file:
        file.truncate(MAX_HEADER_BYTES + 1)
    with pytest.raises(InvalidRecord, match="more than an index may have"):
        Safetensors(place).leaves("params")


def test_the_table_of_dtypes_is_that_of_the_library(place: Path) -> None:
    """What the library writes under each name has the bytes that numpy has for ours."""
    for logical in DTYPES.values():
        array = np.zeros(3, dtypes.numpy_dtype(logical))
        save_file({"x": array}, place / "one.safetensors")
        ((_, stored),) = safetensors.deserialize((place / "one.safetensors").read_bytes())
        assert DTYPES[stored["dtype"]] == logical
