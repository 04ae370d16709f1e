"""What is exported for `torch.distributed.checkpoint` is what it loads; leaves are read one at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

from ckptcore import restore
from ckptcore.errors import CallError, Damaged, NotFound, StructureMismatch, UnsupportedLeaf
from ckptcore.formats.foreign import Foreign, Tensor
from ckptcore.formats.importing import import_source
from ckptcore.formats.orbax_export import export_orbax
from ckptcore.geometry import Box
from ckptcore.match import Rules
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.run import open_run
from tests.ckptcore.support import checkpointer as host
from tests.ckptcore.support import same
from tests.torchckpt.runs import save
from torchckpt.dcp_export import export_dcp
from torchckpt.dcp_source import DcpCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Tied(torch.nn.Module):
    """Two names for one array, and types of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4).to(torch.bfloat16)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("fp8", torch.arange(8.0).to(torch.float8_e4m3fn))
        self.register_buffer("empty", torch.zeros(0, 3))


def saved(place: Path) -> tuple[Tied, Checkpoint]:
    model = Tied()
    save(place / "run", {"model": model, "extra": {"epoch": 3, "tensor": torch.ones(2), "name": "x"}})
    return model, open_run(place / "run").checkpoint()


def bits(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).tolist())
        for name, tensor in state.items()
        if tensor.dim()
    }


def test_torch_loads_it_into_a_state_dict(tmp_path: Path) -> None:
    model, checkpoint = saved(tmp_path)
    told: list[int] = []
    found = export_dcp(checkpoint, tmp_path / "out", component="model", progress=told.append)
    loaded = {"model": Tied().state_dict()}
    load(loaded, checkpoint_id=tmp_path / "out", no_dist=True)
    assert bits(loaded["model"]) == bits(model.state_dict())
    assert loaded["model"]["norm.num_batches_tracked"] == model.norm.num_batches_tracked
    assert (found.arrays, found.bytes) == (len(loaded["model"]), sum(told))
    assert {entry.name for entry in tmp_path.iterdir()} == {"run", "out"}


def test_without_a_prefix_with_values_and_names(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path)
    export_dcp(checkpoint, tmp_path / "out", component="extra", prefix="", names={"count": "epoch", "name": None})
    loaded: dict[str, Any] = {"count": 0, "tensor": torch.zeros(2)}
    load(loaded, checkpoint_id=tmp_path / "out", no_dist=True)
    assert (loaded["count"], loaded["tensor"].tolist()) == (3, [1.0, 1.0])
    assert set(FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata) == {"count", "tensor"}


def test_there_and_back(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path)
    export_dcp(checkpoint, tmp_path / "out", component="model")
    import_source(DcpCheckpoint(tmp_path / "out"), tmp_path / "imported")
    run = open_run(tmp_path / "imported")
    back = restore.host(run.checkpoint(), ["model"], rules=Rules(), ranks={})["model"]
    one = {name: np.asarray(array) for name, array in _flat(open_run(tmp_path / "run").restore(components="model")).items()}
    assert same(_flat(back), one)
    assert run.identity.origin == DcpCheckpoint(tmp_path / "out").describe()


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix[1:]: node}
    return {name: leaf for key, child in node.items() for name, leaf in _flat(child, f"{prefix}.{key}").items()}


def test_one_tensor_at_a_time(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path)
    before: list[int] = []

    class Watching:
        """Counts the files that are complete when the next tensor is read."""

        title, framework, names = checkpoint.title, checkpoint.framework, checkpoint.names
        leaves, value, digest = checkpoint.leaves, checkpoint.value, checkpoint.digest

        @staticmethod
        def read(wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
            before.append(len([file for file in tmp_path.rglob("*.distcp") if file.stat().st_size]))
            assert len(wanted) == 1
            return checkpoint.read(wanted)

    export_dcp(Watching(), tmp_path / "out", component="model")
    assert before == list(range(len(before)))
    assert len(before) == len(checkpoint.leaves("model"))


def test_tied_arrays_for_orbax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    ocp = pytest.importorskip("orbax.checkpoint")
    model, checkpoint = saved(tmp_path)
    assert any(getattr(leaf.record, "alias", None) for leaf in checkpoint.leaves("model").values())
    export_orbax(checkpoint, tmp_path / "out", components=["model"])
    with ocp.StandardCheckpointer() as reader:
        restored = _flat(reader.restore(tmp_path / "out")["model"])
    weight = model.embed.weight.detach().numpy()
    assert same([restored["embed.weight"], restored["head.weight"]], [weight, weight])


def test_what_torch_cannot_hold_and_what_is_not_there(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path)
    with pytest.raises(NotFound, match="no component 'optimizer'"):
        export_dcp(checkpoint, tmp_path / "out", component="optimizer")
    with pytest.raises(NotFound, match="has no leaves to write"):
        export_dcp(checkpoint, tmp_path / "out", component="extra", names={"": None})
    with pytest.raises(CallError, match="is not empty"):
        export_dcp(checkpoint, tmp_path / "run", component="model")
    with host(tmp_path / "host", derived=dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")) as saver:
        saver.save(1, {"params": {"narrow": np.zeros(2, "int8").astype("int4")}}).result(30)
    with pytest.raises(UnsupportedLeaf, match=r"params\['narrow'\]: torch has no tensors of dtype int4"):
        export_dcp(open_run(tmp_path / "host").checkpoint(), tmp_path / "out", component="params")
    assert not (tmp_path / "out").exists()


def test_damage_is_told_as_damage(tmp_path: Path) -> None:
    saved(tmp_path)
    for file in (tmp_path / "run").glob("generations/*/state/**/d/*"):
        file.chmod(0o644)
        file.write_bytes(b"")
    with pytest.raises(Damaged, match="Use another checkpoint"):
        export_dcp(open_run(tmp_path / "run").checkpoint(), tmp_path / "out", component="model")
    assert {entry.name for entry in tmp_path.iterdir()} == {"run"}


class _Calling:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def with_chunk(path: Path, content: Any) -> Path:
    """A checkpoint of one tensor of 400 numbers, whose archive holds `content` instead."""
    save_dcp({"model": {"w": torch.zeros(400)}}, checkpoint_id=path, no_dist=True)
    data = (path / ".metadata").read_bytes()
    torch.save(content, path / "__0_0.distcp")
    length = (path / "__0_0.distcp").stat().st_size
    stored = DcpCheckpoint(path)._stored["w"].chunks[0]
    (path / ".metadata").write_bytes(data.replace(stored.length.to_bytes(2, "little"), length.to_bytes(2, "little")))
    return path


def whole(path: Path, **options: Any) -> Any:
    return restore.host(DcpCheckpoint(path, **options), ["model"], rules=Rules(), ranks={})["model"]


def test_pickles_are_loaded_only_when_that_is_asked_for(tmp_path: Path) -> None:
    path, mark = with_chunk(tmp_path / "one", _Calling(torch.full, (400,), 3.0)), tmp_path / "ran"
    with pytest.raises(Damaged, match=r"torch\.load refuses it: Unsupported global"):
        whole(path)
    assert whole(path, allow_pickle=True)["w"].tolist() == [3.0] * 400
    path = with_chunk(tmp_path / "two", [_Calling(os.mkdir, str(mark)), torch.zeros(400)])
    with pytest.raises(Damaged, match=r"torch\.load refuses it.*mkdir"):
        whole(path)
    assert not mark.exists()
    with pytest.raises(Damaged, match="holds list, not a tensor"):
        whole(path, allow_pickle=True)
    assert mark.exists()


def test_names_that_the_rules_do_not_bring_back_and_random_keys(tmp_path: Path) -> None:
    with host(tmp_path / "run", derived=dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")) as saver:
        saver.save(1, {"params": {"layers": {"w": np.ones(2)}}}).result(30)
    checkpoint = open_run(tmp_path / "run").checkpoint()
    with pytest.raises(StructureMismatch, match=r"would be called 'layers\.w', which `names` reads as 'z\.w'"):
        export_dcp(checkpoint, tmp_path / "out", component="params", names={"layers": "z"})

    class Keys(Foreign):
        """Random keys."""

        format = "keys"
        _heads = None  # pyright: ignore[reportAssignmentType]
        _read = None  # pyright: ignore[reportAssignmentType]

        def _tensors(self) -> dict[str, Tensor]:
            return {"key": Tensor("uint32", (2,), "threefry2x32")}

    with pytest.raises(StructureMismatch, match=r"params\['key'\]: a random key, which torch cannot hold; leave it out"):
        export_dcp(Keys(tmp_path, component="params"), tmp_path / "out", component="params")
    assert not (tmp_path / "out").exists()
