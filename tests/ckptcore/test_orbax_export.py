"""What is exported for Orbax comes back from Orbax, wherever it lay in the run; nothing is left where it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptcore import names
from ckptcore.array_spec import StoredArray
from ckptcore.array_writer import DatabaseWriter
from ckptcore.channel import Channel
from ckptcore.components import PerRank
from ckptcore.errors import CallError, Damaged, NotFound
from ckptcore.formats.exporting import Exported
from ckptcore.formats.orbax_export import export_orbax
from ckptcore.geometry import Grid
from ckptcore.run import open_run
from ckptcore.store import Storage, open_store
from tests.ckptcore.support import Sharded, checkpointer, on_ranks, same, state, weights

ODD = np.arange(2006, dtype=np.int32).reshape(1003, 2)
"""Four ranks cut it where no regular grid has its boundaries."""
DECLARED = dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")


def save(url: Path, components: Any, **options: Any) -> None:
    with checkpointer(url, derived=DECLARED) as saver:
        saver.save(1, components, **options).result(30)


def orbax(path: Path) -> Any:
    pytest.importorskip("jax")
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(path)


def test_components_of_other_generations_and_irregular_grids(place: Path) -> None:
    def body(link: Channel) -> None:
        with checkpointer(place / "run", link, chunk_bytes=768) as saver:
            first = state(1, link.rank, link.size)
            first["params"]["odd"] = Sharded.of(ODD, link.rank, link.size)
            saver.save(1, first)
            later = {name: value for name, value in state(2, link.rank, link.size).items() if name != "params"}
            saver.save(2, later, unchanged=["params"]).result(30)

    on_ranks(4, body)
    checkpoint = open_run(place / "run").checkpoint()
    assert checkpoint.leaves("params")["params.odd"].record.cuts is not None  # pyright: ignore[reportAttributeAccessIssue]
    told: list[int] = []
    found = export_orbax(checkpoint, place / "out", progress=told.append)
    assert found == Exported(4, sum(told), ("rng (stored per rank)",))
    params = {"w": weights(1), "b": np.full(3, 1.0), "odd": ODD}
    optimizer = {"mu": [np.arange(4, dtype=np.int32) * 2, {}], "count": 2, "lr": 2 / 3}
    assert same(orbax(place / "out"), {"params": params, "optimizer": optimizer, "data": {"position": 64, "seed": 7}})


def test_every_dtype(place: Path) -> None:
    wider = {"uint4": np.uint8, "int1": np.int8, "float6_e2m3fn": ml_dtypes.bfloat16, "float8_e4m3": ml_dtypes.bfloat16}
    kept = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4")
    plain = ("bool", "int8", "uint64", "float16", "float64", "complex64")
    arrays = {name: np.array([1, 0, 1]).astype(getattr(ml_dtypes, name)) for name in (*wider, *kept)}
    arrays |= {name: np.array([1, 0, 1]).astype(name) for name in plain}
    save(place / "run", {"params": arrays})
    export_orbax(open_run(place / "run").checkpoint(), place / "out")
    assert same(
        orbax(place / "out")["params"], {name: array.astype(wider.get(name, array.dtype)) for name, array in arrays.items()}
    )


def test_values_become_what_orbax_has(place: Path) -> None:
    values = {"list": [1, "text", 2.5, [True, None]], "big": 2**70, "bytes": b"x", "empty": [{}, (), []], "nan": float("nan")}
    odd = {"a/b": np.ones(2), "%": np.zeros((0, 3)), "": np.array(3), "w": np.arange(3)}
    save(place / "run", {"params": odd, "extra": values})
    found = export_orbax(open_run(place / "run").checkpoint(), place / "out")
    assert set(found.left_out) == {"extra['list'][1]", "extra['big']", "extra['bytes']"}
    restored = orbax(place / "out")
    assert same(restored["params"], odd)
    assert np.isnan(restored["extra"].pop("nan"))
    assert restored["extra"] == {"list": [1, None, 2.5, [True, None]], "empty": [{}, (), []]}


def test_large_arrays_keep_a_bounded_chunk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptcore.formats.exporting.CHUNK_BYTES", 64)
    monkeypatch.setattr("ckptcore.inspect.streaming.BATCH_BYTES", 128)

    def body(link: Channel) -> None:
        with checkpointer(place / "run", link, derived=DECLARED) as saver:
            saver.save(1, {"params": Sharded.of(ODD, link.rank, link.size)}).result(30)

    on_ranks(4, body)
    export_orbax(open_run(place / "run").checkpoint(), place / "out")
    assert same(orbax(place / "out")["params"], ODD)


@pytest.mark.parametrize("streamed", [True, False])
def test_what_is_streamed_is_let_go_of(place: Path, streamed: bool) -> None:  # noqa: FBT001
    writer = DatabaseWriter(open_store(place, Storage(bytes_in_flight=8000)), "", streamed=streamed)
    array = StoredArray("x", "uint8", (10_000,), Grid.regular((10_000,), (1000,)))
    waiting = []
    for cell in range(10):
        writer.add(array, {cell: np.full(1000, cell, np.uint8)})
        waiting.append(sum(nbytes for _, nbytes in writer._held))
    writer.finish()
    assert (max(waiting) > 0) is streamed
    assert max(waiting) <= 4000


def test_names_that_orbax_cannot_tell_apart(place: Path) -> None:
    save(place / "run", {"params": {"a%2Fb": np.ones(1), "a": {"x": np.ones(1)}}, "extra": {"n": {"b.c": 1, "b": {"c": 2}}}})
    checkpoint = open_run(place / "run").checkpoint()
    with pytest.raises(CallError, match=r"extra\['n'\]\['b'\]\['c'\] and extra\['n'\]\['b.c'\] would both be 'extra\.n\.b\.c'"):
        export_orbax(checkpoint, place / "out")
    export_orbax(checkpoint, place / "out", components=["params"])
    with pytest.raises(NotFound, match="no component 'none'"):
        export_orbax(checkpoint, place / "other", components=["none"])


def test_nothing_is_overwritten_and_nothing_left_of_what_failed(place: Path) -> None:
    save(place / "run", {"params": {"w": np.arange(4096.0)}, "rng": PerRank({"k": 1})})
    checkpoint = open_run(place / "run").checkpoint()
    (place / "file").write_text("x")
    (place / "full").mkdir()
    (place / "full" / "x").write_text("x")
    for taken, reason in (("file", "is not a folder"), ("full", "is not empty")):
        with pytest.raises(CallError, match=reason):
            export_orbax(checkpoint, place / taken)
    with pytest.raises(CallError, match="is a URL"):
        export_orbax(checkpoint, "s3://bucket/out")
    with pytest.raises(NotFound, match="nothing that Orbax could hold"):
        export_orbax(checkpoint, place / "rank", components=["rng"])
    (place / "empty").mkdir()
    export_orbax(checkpoint, place / "empty")
    (largest,) = [file for file in (place / "run").glob("generations/*/state/ranks/*/d/*") if file.stat().st_size > 4096]
    data = bytearray(largest.read_bytes())
    at = data.index(np.arange(4096.0).tobytes()[8:64])
    data[at] ^= 1
    largest.chmod(0o644)
    largest.write_bytes(data)
    with pytest.raises(Damaged, match=r"array 'params\.w'"):
        export_orbax(open_run(place / "run").checkpoint(), place / "out")
    assert sorted(entry.name for entry in place.iterdir()) == ["empty", "file", "full", "run"]
    assert names.RUN in {entry.name for entry in (place / "run").iterdir()}


@pytest.mark.parametrize("key", ["../../x", "a\0b", "a\\b", "a//b"])
def test_what_could_not_be_imported_again(place: Path, key: str) -> None:
    save(place / "run", {"params": {key: np.ones(1)}})
    with pytest.raises(CallError, match="is no path inside of a checkpoint"):
        export_orbax(open_run(place / "run").checkpoint(), place / "out")
    assert not (place / "out").exists()


def test_only_what_has_no_place_is_nothing(place: Path) -> None:
    save(place / "run", {"extra": {"name": "x"}, "params": {"w": np.ones(1)}})
    with pytest.raises(NotFound, match="nothing that Orbax could hold"):
        export_orbax(open_run(place / "run").checkpoint(), place / "out", components=["extra"])


def test_folders_of_long_names_and_of_what_failed(place: Path) -> None:
    save(place / "run", {"params": {"w": np.ones(4)}})
    checkpoint = open_run(place / "run").checkpoint()
    export_orbax(checkpoint, place / ("é" * 127), components=["params", "params"])
    (place / ("é" * 127)).rename(place / "out")

    def fail(_: int) -> None:
        raise CallError("no more")

    (place / "old").mkdir()
    for folder in ("new/below/out", "old/new/out"):
        with pytest.raises(CallError, match="no more"):
            export_orbax(checkpoint, place / folder, progress=fail)
    assert sorted(entry.name for entry in place.iterdir()) == ["old", "out", "run"]
    assert not list((place / "old").iterdir())
