"""Orbax checkpoints as something to read and to start from: all that Orbax writes, and what is damaged or hostile."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptcore import restore
from ckptcore.errors import CallError, Damaged, DamageError, InvalidRecord, NotFound, StructureMismatch, UnsupportedFormat
from ckptcore.formats import orbax_source
from ckptcore.formats.orbax_source import Orbax
from ckptcore.geometry import Box
from ckptcore.history import read_run
from ckptcore.match import Rules
from tests.ckptcore.support import checkpointer, file_store, same, state, weights

jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")

PARAMS: dict[str, Any] = {
    "w": np.arange(48, dtype=np.float32).reshape(8, 6),
    "half": np.arange(5).astype(ml_dtypes.bfloat16),
    "scale": np.array(3.5, np.float32),
    "flag": np.array([True, False]),
    "deep": {"a/b": np.arange(3), "list": [np.full(2, number, np.int16) for number in range(11)]},
}
STEP = {"step": 7, "rate": 0.5, "done": True, "none": None, "dict": {}, "list": []}
LAYOUTS = {
    "ocdbt-zarr3": {"use_ocdbt": True, "use_zarr3": True},
    "ocdbt-zarr2": {"use_ocdbt": True, "use_zarr3": False},
    "files-zarr3": {"use_ocdbt": False, "use_zarr3": True},
    "files-zarr2": {"use_ocdbt": False, "use_zarr3": False},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each layout, by its name."""
    folder = tmp_path_factory.mktemp("orbax")
    for name, options in LAYOUTS.items():
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as saver:
            saver.save(folder / name, args=ocp.args.PyTreeSave({"params": PARAMS, **STEP, "name": "héllo"}))
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of them, to be spoilt."""
    return lambda layout: shutil.copytree(saved / layout, tmp_path / layout)


def read(source: Orbax) -> Any:
    return restore.host(source, [source.component], rules=Rules(), ranks={})[source.component]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_orbax_has_saved_comes_back(saved: Path, layout: str) -> None:
    assert same(read(Orbax(saved / layout)), PARAMS)
    whole = read(Orbax(saved / layout, component="all", subtree=""))
    assert same(whole, {"params": PARAMS, **STEP, "name": "héllo"})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_boxes(saved: Path, layout: str) -> None:
    source = Orbax(saved / layout)
    leaf = source.leaves("params")["params.w"]
    (found,) = source.read([(leaf, [Box((1, 2), (3, 5)), Box.whole((8, 6))])])
    assert same(found, [PARAMS["w"][1:3, 2:5], PARAMS["w"]])
    with pytest.raises(CallError, match="does not lie in"):
        source.read([(leaf, [Box((0, 0), (9, 6))])])


def test_random_keys_keep_their_implementation(tmp_path: Path) -> None:
    keys = {"key": jax.random.key(5), "many": jax.random.split(jax.random.key(1, impl="rbg"), 3)}
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "keys", {"rng": keys})
    leaves = Orbax(tmp_path / "keys", component="rng").leaves("rng")
    assert {name: leaf.record.prng_impl for name, leaf in leaves.items()} == {"rng.key": "threefry2x32", "rng.many": "rbg"}  # pyright: ignore[reportAttributeAccessIssue]
    assert same(read(Orbax(tmp_path / "keys", component="rng"))["many"], np.asarray(jax.random.key_data(keys["many"])))


def test_the_newest_step_and_the_likely_item(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "manager") as manager:
        for step in (5, 10):
            manager.save(step, args=ocp.args.StandardSave({"params": {"step": np.full(2, step)}}))
    with ocp.CheckpointManager(tmp_path / "items") as manager:
        saves = {name: ocp.args.StandardSave({"params": {"name": np.full(2, len(name))}}) for name in ("state", "ema", "other")}
        manager.save(3, args=ocp.args.Composite(**saves))
    assert read(Orbax(tmp_path / "manager"))["step"].tolist() == [10, 10]
    assert read(Orbax(tmp_path / "manager", step=5))["step"].tolist() == [5, 5]
    assert read(Orbax(tmp_path / "manager" / "5"))["step"].tolist() == [5, 5]
    assert read(Orbax(tmp_path / "items"))["name"].tolist() == [5, 5]
    assert read(Orbax(tmp_path / "items", item="ema"))["name"].tolist() == [3, 3]
    with pytest.raises(NotFound, match=r"no step 7; it has \[5, 10\]"):
        read(Orbax(tmp_path / "manager", step=7))
    with pytest.raises(NotFound, match=r"no item 'emma'; it has \['ema', 'other', 'state'\]"):
        read(Orbax(tmp_path / "items", item="emma"))
    with pytest.raises(CallError, match="is one step: leave step=3 out"):
        read(Orbax(tmp_path / "items" / "3", step=3))
    with pytest.raises(CallError, match="is a single tree: leave item='x' out"):
        read(Orbax(tmp_path / "manager" / "5" / "default", item="x"))
    shutil.rmtree(tmp_path / "items" / "3" / "state")
    with pytest.raises(CallError, match=r"has the items \['ema', 'other'\]: say which"):
        read(Orbax(tmp_path / "items"))


def test_subtrees_and_names(saved: Path) -> None:
    path = saved / "ocdbt-zarr3"
    assert same(read(Orbax(path, subtree="params.deep.list", component="l")), PARAMS["deep"]["list"])
    one = read(Orbax(path, subtree="params.w", component="w"))
    assert same(one, PARAMS["w"])
    names = {"deep.list.*": "blocks.*.scale", "deep": None, "w": "v.kernel"}
    found = Orbax(path, names=names).leaves("params")
    assert [leaf.record.path for name, leaf in found.items() if name == "params.blocks.3.scale"] == [
        (("key", "blocks"), ("index", 3), ("key", "scale"))
    ]
    assert "params.v.kernel" in found
    assert not any("a%2Fb" in name for name in found)
    with pytest.raises(NotFound, match=r"nothing below 'model'; it has \['dict', 'done', .*: give subtree="):
        read(Orbax(path, component="model"))
    with pytest.raises(StructureMismatch, match="both become 'x'"):
        Orbax(path, names={"w": "x", "flag": "x"}).leaves("params")


def test_a_source_is_told_from_another(saved: Path, tmp_path: Path) -> None:
    digests = {Orbax(saved / layout).describe().digest for layout in LAYOUTS}
    assert len(digests) > 1  # other bytes
    one = Orbax(saved / "files-zarr2").describe()
    assert one == Orbax(saved / "files-zarr2", component="x", subtree="params").describe()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**LAYOUTS["files-zarr2"])) as saver:
        saver.save(tmp_path / "other", args=ocp.args.PyTreeSave({"params": PARAMS | {"w": PARAMS["w"] + 1}}))
    other = Orbax(tmp_path / "other")
    assert other.describe().digest != one.digest
    leaves, known = other.leaves("params"), Orbax(saved / "files-zarr2")
    different = {name for name, leaf in leaves.items() if other.digest(leaf) != known.digest(known.leaves("params")[name])}
    assert different == {"params.w"}


def test_a_run_starts_from_it(place: Path) -> None:
    with ocp.StandardCheckpointer() as saver:
        for step in (20, 30):
            saver.save(place / f"{step}", {"params": {"w": weights(step), "b": np.full(3, step, np.float64)}})

    def begin(source: Any) -> Any:
        with checkpointer(place / "run", start_from=source) as ckpt:
            return ckpt.restore_or_init(lambda: state(0), like=state(0)).components

    for _ in range(2):  # again before the first commit
        assert same(begin(Orbax(place / "20"))["params"], state(20)["params"])
    assert read_run(file_store(place / "run")).origin == Orbax(place / "20").describe()
    with pytest.raises(CallError, match="which is another one, or has changed"):
        begin(Orbax(place / "30"))


# Damaged and hostile


def metadata(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((path / "_METADATA").read_text())
    change(document["tree_metadata"])
    (path / "_METADATA").write_text(json.dumps(document))


def entry(*keys: str, kind: str = "jax.Array") -> dict[str, Any]:
    return {"key_metadata": [{"key": key, "key_type": 2} for key in keys], "value_metadata": {"value_type": kind}}


@pytest.mark.parametrize(
    ("keys", "kind", "error"),
    [
        (("params", "/../../../etc"), "jax.Array", "is no path inside of the checkpoint"),
        (("params", "a\0b"), "scalar", "is no path inside of the checkpoint"),
        (("params", "a//b"), "string", "is no path inside of the checkpoint"),
        (("params", "w"), "jax.Array", "two leaves have the same name"),
        (("params", "odd"), "my.Type", "of type 'my.Type', which this release does not know"),
        (("params",) * 200, "jax.Array", "length <= 128"),
        (("params", "absent"), "jax.Array", r"params\.absent/zarr\.json is missing"),
        (("params", "w", "x"), "jax.Array", r"'params\.w\.x' lies within another leaf"),
        (("params", "\ud800"), "jax.Array", "surrogates not allowed"),
    ],
)
def test_hostile_entries(copy: Callable[[str], Path], keys: tuple[str, ...], kind: str, error: str) -> None:
    path = copy("files-zarr3")
    metadata(path, lambda tree: tree.update(new=entry(*keys, kind=kind)))
    with pytest.raises(DamageError, match=error) as refused:
        read(Orbax(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"tree_metadata": {}, "tree_metadata": {}}', b'{"tree_metadata": NaN}', b"\xff", b"[" * 100_000],
    ids=["empty", "list", "half", "twice", "nan", "no-text", "deep"],
)
def test_metadata_that_is_no_strict_json(copy: Callable[[str], Path], text: bytes) -> None:
    path = copy("files-zarr3")
    (path / "_METADATA").write_bytes(text)
    with pytest.raises(InvalidRecord, match="_METADATA"):
        read(Orbax(path))


def test_metadata_that_is_too_large(copy: Callable[[str], Path]) -> None:
    path = copy("files-zarr3")
    os.truncate(path / "params.w" / "zarr.json", 1 << 40)
    with pytest.raises(InvalidRecord, match="larger than an array's metadata may be"):
        read(Orbax(path))
    os.truncate(path / "_METADATA", 1 << 40)
    with pytest.raises(InvalidRecord, match="bytes are more than it may have"):
        read(Orbax(path))


@pytest.mark.parametrize(
    ("layout", "change", "error"),
    [
        ("files-zarr2", {"chunks": [1 << 40, 1 << 20]}, "larger than the array|params.w"),
        ("files-zarr2", {"shape": [1 << 60, 6]}, "beyond 32 dimensions|params.w"),
        ("files-zarr2", {"dtype": "|S9000000"}, "params.w"),
        ("files-zarr2", {"dtype": [["a", "<f4"], ["b", "<f4"]]}, "params.w"),
        ("files-zarr2", {"compressor": {"id": "pickle"}}, "params.w"),
        ("files-zarr3", {"codecs": [{"name": "python", "configuration": {}}]}, "params.w"),
        ("files-zarr3", {"node_type": "group"}, "params.w"),
    ],
)
def test_hostile_arrays(copy: Callable[[str], Path], layout: str, change: dict[str, Any], error: str) -> None:
    path = copy(layout)
    file = path / "params.w" / (".zarray" if layout.endswith("2") else "zarr.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DamageError, match=error) as refused:
        read(Orbax(path))
    assert str(path) in str(refused.value)


def test_chunks_that_no_memory_could_hold(copy: Callable[[str], Path]) -> None:
    path = copy("files-zarr2")
    file = path / "params.w" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"shape": [1 << 35, 6], "chunks": [1 << 35, 6]}))
    with pytest.raises(UnsupportedFormat, match=r"params\.w.*chunks of .* are larger than"):
        read(Orbax(path))


def plain(path: Path, shape: list[int], chunks: list[int], stored: int) -> Path:
    """A checkpoint of one array of float32 that is not compressed, whose one chunk has `stored` bytes."""
    (path / "params.w").mkdir(parents=True)
    (path / "_METADATA").write_text(json.dumps({"tree_metadata": {"w": entry("params", "w")}}))
    described = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<f4", "order": "C"}
    described |= {"compressor": None, "filters": None, "fill_value": None}
    (path / "params.w" / ".zarray").write_text(json.dumps(described))
    with (path / "params.w" / ".".join("0" for _ in shape)).open("wb") as file:
        file.truncate(stored)
    return path


def test_a_chunk_is_no_larger_than_hosts_have_memory(tmp_path: Path) -> None:
    path = plain(tmp_path / "x", [1 << 34], [1 << 34], 8)
    with pytest.raises(UnsupportedFormat, match="are larger than 1073741824 bytes, the most that is held in memory"):
        Orbax(path).leaves("params")
    small = plain(tmp_path / "small", [64], [64], 256)
    with pytest.raises(UnsupportedFormat, match="are larger than 255 bytes"):
        Orbax(small, max_chunk_bytes=255).leaves("params")
    assert read(Orbax(small, max_chunk_bytes=256))["w"].tolist() == [0.0] * 64


def test_a_box_for_which_there_is_no_memory(tmp_path: Path) -> None:
    source = Orbax(plain(tmp_path / "x", [1 << 50], [1024], 4096))
    with pytest.raises(UnsupportedFormat, match="there is no memory for"):
        source.read([(source.leaves("params")["params.w"], [Box.whole((1 << 50,))])])


def test_an_index_of_a_shard_that_no_memory_could_hold(copy: Callable[[str], Path]) -> None:
    path = copy("files-zarr3")
    file = path / "params.w" / "zarr.json"
    document = json.loads(file.read_text())
    document["shape"] = [1 << 28, 6]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 28, 6]
    codec = {"name": "bytes", "configuration": {"endian": "little"}}
    inner = {"chunk_shape": [1, 6], "codecs": [codec], "index_codecs": [codec, {"name": "crc32c"}]}
    document["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]
    file.write_text(json.dumps(document))
    with pytest.raises(UnsupportedFormat, match=r"params\.w.*chunks of .* are larger than"):
        read(Orbax(path))


def test_a_large_chunk_that_is_short_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    for shape in ([1 << 20], [1 << 10, 1 << 10]):
        path = plain(tmp_path / f"{len(shape)}", shape, shape, (4 << 20) - 1)
        with pytest.raises(Damaged, match=r"params\.w/0.* has fewer than the 4194304 bytes of a chunk: it is cut short"):
            read(Orbax(path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_chunks_come_back(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orbax_source, "CHECKED_CHUNK_BYTES", 1)
    params = {"w": np.arange(1 << 12, dtype=np.float32).reshape(64, 64), "narrow": np.arange(9).astype("int4"), "one": np.ones(1)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**LAYOUTS[layout])) as saver:
        saver.save(tmp_path / "x", args=ocp.args.PyTreeSave({"params": params}))
    assert same(read(Orbax(tmp_path / "x")), params)


def test_indexes_have_one_form(copy: Callable[[str], Path]) -> None:
    path = copy("files-zarr3")

    def again(tree: dict[str, Any]) -> None:
        (one,) = [node for node in tree.values() if [key["key"] for key in node["key_metadata"]][1:] == ["deep", "list", "0"]]
        keys = [*one["key_metadata"][:-1], {"key": "00", "key_type": 1}]
        tree["again"] = one | {"key_metadata": keys}

    metadata(path, again)
    with pytest.raises(InvalidRecord, match="'00' of type 1 is neither a key nor an index"):
        read(Orbax(path))


@pytest.mark.parametrize(
    ("impl", "name", "error"),
    [
        ("evil\x1b[31m", "params.w", UnsupportedFormat),
        ("rbg", "params.w", InvalidRecord),
        ("threefry2x32", "params.count", InvalidRecord),
    ],
)
def test_random_keys_that_are_none(tmp_path: Path, impl: str, name: str, error: type[Exception]) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**LAYOUTS["files-zarr2"])) as saver:
        params = {"w": np.ones((2, 4), np.float32), "count": np.ones(3, np.uint32)}
        saver.save(tmp_path / "x", args=ocp.args.PyTreeSave({"params": params}))
    document = {"array_metadatas": [{"array_metadata": {"param_name": name, "ext_metadata": {"random_key_impl": impl}}}]}
    (tmp_path / "x" / "array_metadatas").mkdir(exist_ok=True)
    (tmp_path / "x" / "array_metadatas" / "process_0").write_text(json.dumps(document))
    with pytest.raises(error, match=r"random keys of|is no data of .* keys") as refused:
        Orbax(tmp_path / "x").leaves("params")
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("layout", ["files-zarr2", "files-zarr3"])
def test_chunks_that_are_missing_or_short(copy: Callable[[str], Path], layout: str) -> None:
    path = copy(layout)
    chunk = path / "params.w" / ("0.0" if layout.endswith("2") else "c/0/0")
    data = chunk.read_bytes()
    chunk.write_bytes(data[: len(data) // 2])
    with pytest.raises(Damaged, match=r"params\.w"):
        read(Orbax(path))
    chunk.unlink()
    with pytest.raises(Damaged, match=r"params\.w"):
        read(Orbax(path))


def test_databases_that_are_damaged(copy: Callable[[str], Path]) -> None:
    path = copy("ocdbt-zarr3")
    for file in path.rglob("d/*"):
        file.write_bytes(b"")
    with pytest.raises(Damaged, match=str(path)):
        read(Orbax(path))
    (path / "manifest.ocdbt").unlink()
    with pytest.raises(Damaged, match=r"manifest\.ocdbt is missing: the save that wrote this checkpoint was not finished"):
        read(Orbax(path))


def test_nothing_is_followed_out_of_the_checkpoint(copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = copy("files-zarr2")
    chunk = path / "params.w" / "0.0"
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRecord, match=r"params\.w/0\.0 is neither a file nor a folder"):
        read(Orbax(path))
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(InvalidRecord, match=r"params\.w/0\.0 is neither a file nor a folder"):
        read(Orbax(path))


def test_texts_that_are_missing(copy: Callable[[str], Path]) -> None:
    path = copy("files-zarr2")
    (path / "_strings.json").write_text("{}")
    with pytest.raises(Damaged, match=r"_strings\.json: lacks 'name'"):
        read(Orbax(path, subtree=""))
    assert same(read(Orbax(path)), PARAMS)
    (path / "_strings.json").unlink()
    with pytest.raises(Damaged, match=r"_strings\.json is missing"):
        read(Orbax(path, subtree=""))


def test_what_is_no_checkpoint(place: Path) -> None:
    with pytest.raises(NotFound, match="there is no folder"):
        read(Orbax(place / "nowhere"))
    with pytest.raises(NotFound, match="is no Orbax checkpoint"):
        read(Orbax(place))
    (place / "checkpoint").write_bytes(b"\x80")
    with pytest.raises(UnsupportedFormat, match="written by an old release of Orbax"):
        read(Orbax(place))
