"""Warm starts from other formats, straight into modules: plain, and sharded over processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed import checkpoint as dcp

from ckptcore.errors import StructureMismatch
from ckptcore.formats.safetensors import Safetensors
from tests.torchckpt import models
from tests.torchckpt.procs import run_job
from tests.torchckpt.runs import checkpointer, save
from torchckpt import open_run
from torchckpt.dcp_source import DcpCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

START = """
from ckptcore.formats.safetensors import Safetensors
from tests.torchckpt.models import adamw, assert_expected, filled
from tests.torchckpt.runs import checkpointer
from torchckpt.dcp_source import DcpCheckpoint
SOURCES = {
    "safetensors": Safetensors(ARGS[0] + "/hub", component="model", names={"transformer": ""}),
    "dcp": DcpCheckpoint(ARGS[0] + "/dcp"),
}
for layout in ("plain", "fsdp", "tp"):
    for name, source in SOURCES.items():
        model = filled(layout, "other")
        optimizer = adamw(model)
        like = {"model": model, "optimizer": optimizer}
        with checkpointer(f"{ARGS[0]}/{layout}-{name}", start_from=source) as ckpt:
            restored = ckpt.restore_or_init(lambda: like, like=like)
        assert restored.step == 0 and restored.components["model"] is model
        assert_expected(model)
        assert not optimizer.state
        assert all(buffer.eq(7).all() for name, buffer in model.named_buffers() if name == "calls")
"""


def hub(path: Path, state: dict[str, torch.Tensor], files: int) -> Path:
    """What a model hub has of a model: several files, an index, a prefix, and no duplicates of what is tied."""
    path.mkdir()
    named = {f"transformer.{name}": tensor.clone() for name, tensor in state.items() if name != "head.weight"}
    table = {}
    for number in range(files):
        part = {name: named[name] for name in list(named)[number::files]}
        save_file(part, path / f"part-{number}.safetensors")
        table |= dict.fromkeys(part, f"part-{number}.safetensors")
    text = str({"weight_map": table}).replace("'", '"')
    (path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_sharded_model_begins_with_weights_from_files(tmp_path: Path, size: int) -> None:
    model = models.filled("plain")
    hub(tmp_path / "hub", model.state_dict(), 3)
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)  # pyright: ignore[reportPrivateImportUsage] - it is public
    run_job(START, size=size, args=[str(tmp_path)])


def linear(value: float) -> nn.Linear:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def begin(url: Path, source: Safetensors | DcpCheckpoint) -> nn.Module:
    like = {"model": linear(0)}
    with checkpointer(url, start_from=source) as ckpt:
        return ckpt.restore_or_init(lambda: like, like=like).components["model"]


def test_half_precision_is_taken_if_it_is_asked_for(tmp_path: Path) -> None:
    save_file({name: tensor.bfloat16() for name, tensor in linear(1.5).state_dict().items()}, tmp_path / "model.safetensors")
    with pytest.raises(StructureMismatch, match="dtype bfloat16 in the checkpoint, float32 in the target"):
        begin(tmp_path / "refused", Safetensors(tmp_path, component="model"))
    model = begin(tmp_path / "run", Safetensors(tmp_path, component="model", cast="float32"))
    assert all(parameter.eq(1.5).all() and parameter.dtype == torch.float32 for parameter in model.parameters())


def test_tied_weights_of_other_content_are_refused(tmp_path: Path) -> None:
    """DCP has a tied weight under both names; it is taken if both are the same indeed."""
    model = models.Tiny()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["head.weight"] += 1
    dcp.save({"model": state}, checkpoint_id=tmp_path / "dcp", no_dist=True)  # pyright: ignore[reportPrivateImportUsage] - it is public
    like = {"model": models.Tiny()}
    with (
        checkpointer(tmp_path / "run", start_from=DcpCheckpoint(tmp_path / "dcp")) as ckpt,
        pytest.raises(StructureMismatch, match="the target ties it to"),
    ):
        ckpt.restore_or_init(lambda: like, like=like)


def test_a_run_is_exported_to_what_torch_programs_load(tmp_path: Path) -> None:
    model = models.filled("plain")
    save(tmp_path / "run", {"model": model})
    rules = {"transformer": ""}
    (path,) = open_run(tmp_path / "run").export_safetensors(tmp_path / "hub", component="model", names=rules, dtype="bfloat16")
    found = load_file(path)
    wanted = {f"transformer.{name}": tensor for name, tensor in model.state_dict().items() if name != "head.weight"}
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        kind = torch.bfloat16 if tensor.is_floating_point() else tensor.dtype
        assert found[name].dtype == kind
        assert torch.equal(found[name], tensor.to(kind))
