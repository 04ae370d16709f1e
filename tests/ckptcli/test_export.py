"""`ckpt export …`: files that the other libraries read, one line about them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from ckptcli.formats import shared
from ckptcore.components import PerRank
from ckptcore.errors import CallError
from ckptcore.names import GenerationId
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import checkpointer

PARAMS = {"w": np.arange(48, dtype=np.float32).reshape(8, 6), "b": {"x": np.arange(3, dtype=np.int8)}}


@pytest.fixture
def run(place: Path) -> Path:
    with checkpointer(place / "run", derived=dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")) as saver:
        for step in (10, 20):
            params = {"w": PARAMS["w"] + step, "b": PARAMS["b"]}
            saver.save(step, {"params": params, "extra": {"name": "x"}, "own": PerRank({"k": np.ones(2)})})
    return place / "run"


def test_safetensors(ckpt: Ckpt, run: Path, place: Path) -> None:
    told = ckpt("export", "safetensors", run, place / "out", "--component", "params", "--dtype", "bf16").out
    assert told == f"{place}/out: 2 arrays, 99 B of params, generation 000001-000000000020-1\n"
    loaded = load_file(place / "out" / "model.safetensors")
    assert loaded["w"].tobytes() == (PARAMS["w"] + 20).astype(ml_dtypes.bfloat16).tobytes()
    ckpt("export", "safetensors", run, place / "one.safetensors", "10", "--component", "params", "--names", "model=")
    assert sorted(load_file(place / "one.safetensors")) == ["model.b.x", "model.w"]


def test_sharded_safetensors(ckpt: Ckpt, run: Path, place: Path) -> None:
    found = ckpt("export", "safetensors", run, place / "out", "--component", "params", "--max-shard", "190B", "--json").json
    assert found["files"] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert (found["command"], found["format"], found["arrays"], found["bytes"]) == ("export", "safetensors", 2, 195)
    index = json.loads((place / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {"w", "b.x"}


def test_zarr(ckpt: Ckpt, run: Path, place: Path) -> None:
    zarr = pytest.importorskip("zarr")
    assert "3 arrays, 211 B of extra, own, params" in ckpt("export", "zarr", run, place / "out").out
    np.testing.assert_array_equal(zarr.open_group(place / "out", mode="r")["params/w"][:], PARAMS["w"] + 20)


def test_orbax(ckpt: Ckpt, run: Path, place: Path) -> None:
    pytest.importorskip("jax")
    ocp = pytest.importorskip("orbax.checkpoint")
    told = ckpt("export", "orbax", run, place / "out", "000001-000000000010-1").out.splitlines()
    assert told[1] == "left out, for want of a place in the format: own (stored per rank); extra['name']"
    assert len(told) == 2
    with ocp.StandardCheckpointer() as reader:
        np.testing.assert_array_equal(reader.restore(place / "out")["params"]["w"], PARAMS["w"] + 10)
    assert "left_out" in ckpt("export", "orbax", run, place / "two", "--component", "params", "--json").json


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp(ckpt: Ckpt, run: Path, place: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint.state_dict_loader import load

    ckpt("export", "dcp", run, place / "out", "--component", "params", "--prefix", "m.")
    loaded: dict[str, Any] = {"m": {"w": torch.zeros(8, 6), "b": {"x": torch.zeros(3, dtype=torch.int8)}}}
    load(loaded, checkpoint_id=place / "out", no_dist=True)
    assert loaded["m"]["w"].numpy().tobytes() == (PARAMS["w"] + 20).tobytes()


def test_where_torch_is_not_installed(ckpt: Ckpt, run: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> Any:
        raise ImportError(f"no module {module}")

    monkeypatch.setattr(shared, "import_module", absent)
    line = ckpt.refused("export", "dcp", run, place / "out", "--component", "params", status=2)
    assert line.startswith("ckpt: this format needs PyTorch: pip install 'jaxckpt[torch]'")
    assert "jaxckpt[torch]" in ckpt.refused("import", "dcp", place, place / "new", "--component", "params", status=2)


@pytest.mark.parametrize("kind", ["safetensors", "dcp", "orbax", "zarr"])
def test_what_is_refused(ckpt: Ckpt, run: Path, place: Path, kind: str) -> None:
    pytest.importorskip("torch")
    out, component = place / "out", ("--component", "params")
    assert "is not empty: nothing is overwritten" in ckpt.refused("export", kind, run, run, *component, status=2)
    assert "is a URL" in ckpt.refused("export", kind, run, "gs://bucket/x", *component, status=2)
    assert "no component 'parms'" in ckpt.refused("export", kind, run, out, "--component", "parms", status=5)
    assert "no checkpoint of step 7" in ckpt.refused("export", kind, run, out, "7", *component, status=5)
    assert "there is no run" in ckpt.refused("export", kind, place / "nowhere", out, *component, status=5)
    assert {entry.name for entry in place.iterdir()} == {"run"}


@pytest.mark.parametrize("kind", ["safetensors", "dcp", "orbax", "zarr"])
def test_damage_is_found_on_the_way(ckpt: Ckpt, run: Path, place: Path, kind: str) -> None:
    pytest.importorskip("torch")
    for file in run.glob("generations/*20-1/state/**/d/*"):
        file.chmod(0o644)
        file.write_bytes(b"")
    assert "Use another checkpoint" in ckpt.refused("export", kind, run, place / "out", "--component", "params", status=4)
    assert not (place / "out" / "model.safetensors").exists()
    assert not [entry for entry in place.rglob("*.tmp") if "run" not in entry.parts]


def test_bad_options(ckpt: Ckpt, run: Path, place: Path) -> None:
    call = ("export", "safetensors", run, place / "out", "--component", "params")
    assert "is no size: expected one such as 5GB" in ckpt.refused(*call, "--max-shard", "many", status=2)
    assert "expected a positive number" in ckpt.refused(*call, "--max-shard", "0", status=2)
    assert "expected THERE=HERE" in ckpt.refused(*call, "--names", "a", status=2)
    assert "float99" in ckpt.refused(*call, "--dtype", "float99", status=2)
    assert "Missing option '--component'" in ckpt("export", "safetensors", run, place / "out", status=2).error
    assert "No such command" in ckpt("export", "onnx", run, place / "out", status=2).error
    assert not (place / "out").exists()


def test_sizes_and_rules() -> None:
    assert [shared.count_of_bytes(text) for text in ("5GB", "1.5 MiB", "7", "2k")] == [5_000_000_000, 3 << 19, 7, 2000]
    assert shared.rules(["a=b", "c=", "d=-", "=e"]) == {"a": "b", "c": "", "d": None, "": "e"}
    assert shared.rules(None) is None
    with pytest.raises(CallError, match="each THERE once"):
        shared.rules(["a=b", "a=c"])
    assert str(GenerationId(1, 20, 1)) == "000001-000000000020-1"


@pytest.mark.parametrize("kind", ["safetensors", "dcp", "orbax", "zarr"])
def test_paths_that_no_folder_can_have(ckpt: Ckpt, run: Path, place: Path, kind: str) -> None:
    pytest.importorskip("torch")
    for out in ("~nosuchuser/x", place / ("x" * 300)):
        assert "the path " in ckpt.refused("export", kind, run, out, "--component", "params", status=2)
        if kind != "zarr":
            assert "the path " in ckpt.refused("import", kind, out, place / "new", "--component", "params", status=2)


def test_nothing_to_write_and_components_that_are_named_twice(ckpt: Ckpt, run: Path, place: Path) -> None:
    call = ("export", "safetensors", run, place / "out", "--component", "params")
    assert "has no arrays to write" in ckpt.refused(*call, "--names", "=-", status=5)
    assert "is more bytes than anything has" in ckpt.refused(*call, "--max-shard", "9" * 400, status=2)
    assert not (place / "out").exists()
    for kind in ("orbax", "zarr"):
        twice = ("--component", "params", "--component", "params")
        found = ckpt("export", kind, run, place / kind, *twice, "--json").json
        assert (found["components"], found["arrays"]) == (["params"], 2)
