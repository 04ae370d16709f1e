"""`ckpt import …`: what was exported, and what other libraries have written, becomes a run of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcore.formats.orbax_source import Orbax
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import checkpointer, same
from tests.processes import ROOT
from tests.spec.checker import check_run

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"
TENSORS = {"model.w": np.arange(48, dtype=np.float32).reshape(8, 6), "model.list.0": np.arange(3), "junk": np.ones(1)}


def test_safetensors(ckpt: Ckpt, place: Path) -> None:
    save_file(TENSORS, place / "model.safetensors")
    call = ("import", "safetensors", place / "model.safetensors", place / "run", "--component", "params")
    told = ckpt(*call, "--names", "model=", "--names", "junk=-").out
    assert told == f"file://{place}/run: 2 leaves, 216 B as component params, generation 000001-000000000000-1 (weights only)\n"
    assert same(
        open_run(place / "run").restore(components="params"), {"w": TENSORS["model.w"], "list.0": TENSORS["model.list.0"]}
    )
    assert "whole" in ckpt("verify", place / "run").out
    assert check_run(place / "run") == []
    assert "holds a run with checkpoints already" in ckpt.refused(*call, status=2)
    found = ckpt(*call[:3], place / "two", *call[4:], "--json").json
    assert (found["command"], found["leaves"], found["component"], found["format"]) == ("import", 3, "params", "safetensors")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", ["orbax", "dcp", "safetensors"])
def test_there_and_back(ckpt: Ckpt, place: Path, kind: str) -> None:
    pytest.importorskip("torch")
    params = {"w": TENSORS["model.w"], "deep": {"half": np.arange(5).astype(ml_dtypes.bfloat16), "mask": np.array([True, False])}}
    with checkpointer(place / "one") as saver:
        saver.save(1, {"params": params}, guarantee="weights").result(30)
    ckpt("export", kind, place / "one", place / "out", "--component", "params")
    ckpt("import", kind, place / "out", place / "two", "--component", "params")
    assert same(_flat(open_run(place / "two").restore(components="params")), _flat(params))


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix[1:]: node}
    return {name: leaf for key, child in node.items() for name, leaf in _flat(child, f"{prefix}.{key}").items()}


def test_the_state_of_a_generation_is_an_orbax_checkpoint(ckpt: Ckpt, place: Path) -> None:
    (state, *_) = sorted(GOLDEN.glob("generations/*/state"))
    ckpt("import", "orbax", state, place / "run", "--component", "weights", "--subtree", "params")
    run = open_run(place / "run")
    assert run.identity.origin == Orbax(state).describe()
    restored, saved = run.restore(components="weights"), open_run(GOLDEN).restore(components="params", step=1)
    assert len(restored) > 2
    assert same(restored, {name: saved[name] for name in restored})  # the others are not shown there


def test_what_is_refused(ckpt: Ckpt, place: Path) -> None:
    pytest.importorskip("torch")
    for kind in ("safetensors", "orbax", "dcp"):
        line = ckpt.refused("import", kind, place / "nowhere", place / "run", "--component", "params", status=5)
        assert "there is no" in line
        assert "component name 'a.b'" in ckpt.refused("import", kind, place, place / "run", "--component", "a.b", status=2)
    (place / "model.safetensors").write_bytes(b"x")
    assert "no safetensors file" in ckpt.refused(
        "import", "safetensors", place / "model.safetensors", place / "run", "--component", "params", status=4
    )
    (place / "run").mkdir(exist_ok=True)
    assert not any((place / "run").iterdir())
    assert "RUNS WHATEVER CODE" in ckpt("import", "dcp", "-h").out
