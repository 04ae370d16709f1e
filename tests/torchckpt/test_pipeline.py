"""Pipeline stages: each rank has layers of its own, under the names of the whole model, and an optimizer for them.

The first and the last stage both hold the embedding, which the head is tied to.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptcore
from tests.spec.checker import check_run
from tests.torchckpt import models
from tests.torchckpt.procs import run_job

pytestmark = pytest.mark.slow

COMMON = """
from torch.distributed.fsdp import fully_shard
from tests.torchckpt.models import LAYOUTS, Tiny, adamw, assert_expected, filled, with_moments
from tests.torchckpt.runs import checkpointer, resume, save
STAGES = int(ARGS[1])
STAGE = RANK * STAGES // SIZE


def part(key="value", *, layers=4):
    every = range(STAGE * layers // STAGES, (STAGE + 1) * layers // STAGES)
    model = filled("plain", key, layers=every, first=STAGE == 0, last=STAGE == STAGES - 1)
    if SIZE > STAGES:  # each stage is sharded over ranks of its own
        mesh = dist.init_device_mesh("cpu", (STAGES, SIZE // STAGES), mesh_dim_names=("pp", "dp"))
        fully_shard(model, mesh=mesh["dp"])
    return model
"""

SAVE = (
    COMMON
    + """
model = part()
optimizer = adamw(model)
with_moments(optimizer, model, part)
save(ARGS[0], {"model": model, "optimizer": optimizer}, chunk_bytes=128)
"""
)

RESTORE = (
    COMMON
    + """
model = part("other")
optimizer = adamw(model, lr=1.0)
resume(ARGS[0], {"model": model, "optimizer": optimizer}, accept_guarantee="coverage")
assert_expected(model, optimizer)
assert all(buffer.eq(7).all() for name, buffer in model.named_buffers() if name == "calls")
assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-2 / 3]
print("layers:", *model.layers)
"""
)


@pytest.mark.parametrize(("stages", "size"), [(2, 2), (2, 4)])
def test_stages_go_on_as_other_stages(stages: int, size: int, tmp_path: Path) -> None:
    url = tmp_path / "run"
    run_job(SAVE, size=size, args=[str(url), str(stages)])
    assert check_run(url) == []
    assert_whole(url)
    for other, layers in ((1, ["0 1 2 3"]), (4, ["0", "1", "2", "3"])):
        outputs = run_job(RESTORE, size=other, group=True, args=[str(url), str(other)])
        assert [output.splitlines()[-1] for output in outputs] == [f"layers: {held}" for held in layers]


def test_a_whole_model_goes_on_in_stages(tmp_path: Path) -> None:
    run_job(SAVE, size=1, args=[str(tmp_path / "run"), "1"])
    run_job(RESTORE, size=2, args=[str(tmp_path / "run"), "2"])


def assert_whole(url: Path) -> None:
    """The checkpoint has the model as one rank would have saved it."""
    restored = ckptcore.open_run(url).restore()
    reference = models.Tiny(range(4))
    assert set(restored["model"]) == set(reference.state_dict())
    for name, tensor in reference.named_parameters(remove_duplicate=False):
        stored = models.expected(name.replace("head", "embed"), "value", tensor.shape)
        np.testing.assert_array_equal(restored["model"][name], stored, err_msg=name, strict=True)
    assert set(restored["optimizer"]["state"]) == {name for name, _ in reference.named_parameters()}
    for name, tensor in reference.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            stored = models.expected(name, key, tensor.shape)
            np.testing.assert_array_equal(restored["optimizer"]["state"][name][key], stored, err_msg=name, strict=True)


LOST = (
    COMMON
    + """
from ckptcore.errors import StructureMismatch
model = part("other", layers=3)
try:
    resume(ARGS[0], {"model": model}, accept_guarantee="coverage")
except StructureMismatch as error:
    print("refused:", str(error).replace(chr(10), " "))
"""
)


def test_a_layer_that_no_stage_takes_is_named_on_every_rank(tmp_path: Path) -> None:
    run_job(SAVE, size=2, args=[str(tmp_path / "run"), "2"])
    for output in run_job(LOST, size=2, args=[str(tmp_path / "run"), "2"]):
        assert "refused:" in output
        assert "layers.3.up.weight" in output
        assert "layers.2.up.weight" not in output
        assert "layers.0.up.weight" not in output


UNEQUAL = (
    COMMON
    + """
from ckptcore.errors import SaveAborted
model = part()
with torch.no_grad():
    model.embed.weight[0, 0] = STAGE
with checkpointer(ARGS[0]) as saver:
    try:
        saver.save(1, {"model": model}).result(60)
    except SaveAborted as error:
        print("refused:", str(error).replace(chr(10), " "))
    model.embed.weight.data[0, 0] = 5.0
    print("then:", saver.save(2, {"model": model}).result(60).step)
"""
)


def test_stages_that_disagree_about_what_they_share(tmp_path: Path) -> None:
    for output in run_job(UNEQUAL, size=2, args=[str(tmp_path / "run"), "2"]):
        assert "refused:" in output
        assert "model.embed.weight" in output
        assert "then: 2" in output
