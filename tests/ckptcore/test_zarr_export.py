"""What is exported as zarr opens with zarr-python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptcore import values
from ckptcore.channel import Channel
from ckptcore.errors import CallError
from ckptcore.formats.zarr_export import export_zarr
from ckptcore.run import open_run
from tests.ckptcore.support import checkpointer, on_ranks, state, weights

zarr = pytest.importorskip("zarr")
DECLARED = dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")


def exported(place: Path, components: Any, **options: Any) -> Any:
    with checkpointer(place / "run", derived=DECLARED) as saver:
        saver.save(1, components).result(30)
    export_zarr(open_run(place / "run").checkpoint(), place / "out", **options)
    return zarr.open_group(place / "out", mode="r")


def test_a_whole_state_of_two_ranks(place: Path) -> None:
    def body(link: Channel) -> None:
        with checkpointer(place / "run", link, chunk_bytes=768) as saver:
            saver.save(3, state(3, link.rank, link.size)).result(30)

    on_ranks(2, body)
    found = export_zarr(open_run(place / "run").checkpoint(), place / "out")
    root = zarr.open_group(place / "out", mode="r")
    assert (root.attrs["ckpt"]["step"], root.attrs["ckpt"]["guarantee"]) == (3, "exact")
    np.testing.assert_array_equal(root["params/w"][:], weights(3), strict=True)
    assert root["params/w"].chunks != root["params/w"].shape
    np.testing.assert_array_equal(root["optimizer/mu/0"][:], np.arange(4, dtype=np.int32) * 3, strict=True)
    assert [root[f"rng/{rank}/key"][:].tolist() for rank in (0, 1)] == [[3, 0], [3, 1]]
    stated = root["optimizer"].attrs["values"]
    assert {name: values.decode(value, where=name) for name, value in stated.items()} == {
        "optimizer.count": 3, "optimizer.lr": 1.0, "optimizer.mu.1": {}
    }  # fmt: skip
    assert (found.arrays, found.left_out) == (5, ())


def test_every_dtype_bit_for_bit(place: Path) -> None:
    arrays = {
        name: np.array([1, 0, 1]).astype(getattr(ml_dtypes, name)) for name in ("bfloat16", "int4", "uint2", "float8_e4m3fn")
    }
    arrays |= {
        name: np.array([[1, 0, 1]]).astype(name) for name in ("bool", "int8", "uint64", "float16", "float64", "complex128")
    }
    arrays |= {"empty": np.zeros((0, 3), np.float32), "scalar": np.array(5, np.int16)}
    root = exported(place, {"params": arrays})["params"]
    for name, array in arrays.items():
        assert root[name].attrs["ckpt"]["dtype"] == array.dtype.name
        assert root[name][...].view(array.dtype).tobytes() == array.tobytes()
        assert root[name].shape == array.shape


def test_paths_that_no_folder_can_have(place: Path) -> None:
    arrays = {
        "a/b": np.ones(1),
        "..": np.ones(2),
        "": np.ones(3),
        "__x": np.ones(4),
        "zarr.json": np.ones(5),
        "c": {"0": np.ones(6)},
    }
    root = exported(place, {"params": arrays, "one": np.ones(7)})
    sizes = {
        tuple(array.attrs["ckpt"]["path"][-1]): array.shape[0]
        for _, array in root["params"].members(max_depth=None)
        if hasattr(array, "shape")
    }
    assert sizes == {
        ("key", "a/b"): 1,
        ("key", ".."): 2,
        ("key", ""): 3,
        ("key", "__x"): 4,
        ("key", "zarr.json"): 5,
        ("key", "0"): 6,
    }
    assert root["one/value"].shape == (7,)
    assert {entry.name for entry in place.iterdir()} == {"run", "out"}


def test_names_that_are_too_long(place: Path) -> None:
    with pytest.raises(CallError, match="longer than 255 bytes"):
        exported(place, {"params": {"x" * 300: np.ones(1)}})
    assert not (place / "out").exists()
