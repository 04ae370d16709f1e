"""Ranks that hold the same, parts of the same, or not the same: what they save, restore and survive together."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import ckptcore
from ckptcore.records import ArrayLeaf
from tests.spec.checker import check_run
from tests.torchckpt import models
from tests.torchckpt.procs import run_job
from torchckpt import open_run

pytestmark = pytest.mark.slow

DDP = """
from torch.nn.parallel import DistributedDataParallel
from ckptcore.errors import SaveAborted
from tests.torchckpt.models import Normed
from tests.torchckpt.runs import checkpointer, resume
from torchckpt import RankZero


def trained(**options):
    torch.manual_seed(0)
    model = DistributedDataParallel(Normed(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        torch.manual_seed(10 * step + RANK)
        model(torch.randn(8, 10) * (1 + RANK)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def row(model):
    state = model.state_dict()
    return [state[key].flatten()[0].item() for key in ("module.linear.weight", "module.norm.running_mean")]


model, optimizer = trained()
print("saved:", row(model))
with checkpointer(ARGS[0]) as saver:
    saver.save(1, {"model": model, "optimizer": optimizer}).result(60)
    saver.save(2, {"model": torch.compile(model), "optimizer": optimizer}).result(60)
    print("unchanged:", row(model))
    inside = DistributedDataParallel(torch.compile(Normed()))
    saver.save(3, {"model": inside}).result(60)
    again = DistributedDataParallel(Normed())
    like = {"model": again, "optimizer": torch.optim.SGD(again.parameters(), lr=9.0, momentum=0.9)}
    restored = saver.restore(like=like, step=1)
    print("restored:", row(again), restored.guarantee)
    apart, _ = trained(forward_sync_buffers=False)
    try:
        saver.save(8, {"model": apart}).result(60)
    except SaveAborted as error:
        print("refused:", str(error).replace(chr(10), " "))
    saver.save(9, {"model": RankZero(apart)}).result(60)
"""


def test_ddp_and_its_buffers(tmp_path: Path) -> None:
    """Each rank's own statistics are replaced by rank 0's at the next forward pass: they are what is saved."""
    url = tmp_path / "run"
    first, second = run_job(DDP, size=2, args=[str(url)])
    saved = [line_of(output, "saved:") for output in (first, second)]
    assert saved[0] != saved[1], "the buffers do not differ: nothing is tested"
    for output in (first, second):
        assert line_of(output, "saved:") == line_of(output, "unchanged:")
        assert line_of(output, "restored:") == f"{saved[0]} exact"
        refusal = line_of(output, "refused:")
        assert "'model.norm.running_mean' differs between rank 0 and rank 1 though it counts as replicated" in refusal
        assert "linear" not in refusal
    run = ckptcore.open_run(url)
    for step in (1, 2, 3, 9):
        assert set(run.restore(components="model", step=step)) == set(models.Normed().state_dict())
    assert set(run.restore(components="optimizer", step=1)["state"]) == {name for name, _ in models.Normed().named_parameters()}
    into = models.Normed()
    open_run(url).restore(like={"model": into}, components=["model"], step=1)
    state = into.state_dict()
    assert str([state[key].flatten()[0].item() for key in ("linear.weight", "norm.running_mean")]) == saved[0]
    assert check_run(url) == []


def line_of(output: str, start: str) -> str:
    return next(line.removeprefix(start).strip() for line in output.splitlines() if line.startswith(start))


READS = """
from collections import Counter
from ckptcore.array_reader import ArrayReader
from tests.torchckpt.models import adamw, assert_expected, filled, with_moments
from tests.torchckpt.runs import checkpointer, resume, save
model = filled("fsdp")
save(ARGS[0], {"model": model}, chunk_bytes=40)
reads = Counter()
located = ArrayReader._located


def counted(self, chunks):
    reads.update(chunk.key for chunk in chunks if "/c/" in chunk.key)
    return located(self, chunks)


ArrayReader._located = counted
again = filled("fsdp", "other")
resume(ARGS[0], {"model": again})
assert_expected(again)
of_up = [key for key in reads if key.startswith("model.layers.0.up.weight/")]
print("reads:", len(of_up), "times:", *set(reads.values()))
"""


def test_a_rank_reads_its_own_shards_once(tmp_path: Path) -> None:
    url = tmp_path / "run"
    reads = [line_of(output, "reads:") for output in run_job(READS, size=4, args=[str(url)])]
    record = ckptcore.open_run(url).checkpoint().leaves("model")["model.layers.0.up.weight"].record
    assert isinstance(record, ArrayLeaf)
    assert record.chunk_shape is not None
    rows, columns = record.chunk_shape
    # 13 rows of 10 over four ranks.
    numbers = [math.ceil(held / rows) * math.ceil(10 / columns) for held in (4, 4, 4, 1)]
    assert min(numbers) > 1
    assert reads == [f"{number} times: 1" for number in numbers]


LATER = """
from tests.torchckpt.models import adamw, filled
from tests.torchckpt.runs import checkpointer
model = filled("fsdp")
optimizer = adamw(model)
extra = {"both": torch.ones(2)}
with checkpointer(ARGS[0]) as saver:
    saver.save(1, {"model": model, "optimizer": optimizer, "extra": extra}).result(60)
    for parameter in model.layers["0"].parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saver.save(2, {"model": model, "optimizer": optimizer, "extra": extra}).result(60)
    if RANK == 1:
        extra["one"] = torch.arange(3)
    saver.save(3, {"model": model, "optimizer": optimizer, "extra": extra}).result(60)
    saver.save(4, {"model": model, "extra": {"both": extra["both"]}}).result(60)
"""


def test_leaves_that_come_and_go(tmp_path: Path) -> None:
    """State that an optimizer makes later, a leaf that one rank has, and both gone: each save is what its step had."""
    url = tmp_path / "run"
    run_job(LATER, size=2, args=[str(url)])
    run = ckptcore.open_run(url)
    states = [run.restore(components="optimizer", step=step).get("state", {}) for step in (1, 2, 3)]
    assert [len(state) for state in states] == [0, 6, 6]
    assert states[1]["layers.0.up.weight"]["exp_avg"].shape == (13, 10)
    extras = [run.restore(components="extra", step=step) for step in (1, 2, 3, 4)]
    assert [sorted(extra) for extra in extras] == [["both"], ["both"], ["both", "one"], ["both"]]
    np.testing.assert_array_equal(extras[2]["one"], [0, 1, 2])
    assert check_run(url) == []


ONE_RANK_FAILS = """
from ckptcore.errors import CheckpointError, SaveAborted, StagingLimit, UnsupportedLeaf
from tests.torchckpt.models import filled
from tests.torchckpt.runs import checkpointer
from torchckpt import PerRank
model = filled("fsdp")


def refused(number, *components):
    try:
        saver.save(number, *components).result(60)
    except CheckpointError as error:
        print(f"refused {number}:", type(error).__name__, str(error).replace(chr(10), " "))


with checkpointer(ARGS[0], coordinator_timeout=60.0, max_staging_bytes=20_000 if RANK else None) as saver:
    refused(1, {"model": model, "own": PerRank(torch.ones(10_000))})
    print("then:", saver.save(1, {"model": model}).result(60).generation)
    refused(2, {"model": model, "own": PerRank(len if RANK else 1)})
    refused(2, {"model": model, "extra": {"x": torch.ones(2, device="meta")} if RANK else {"x": torch.ones(2)}})
    refused(2, {"model": model, "extra": {"x": torch.ones(2 + RANK)}})
    print("then:", saver.save(2, {"model": model}).result(60).generation)
"""


def test_a_save_that_one_rank_cannot_make(tmp_path: Path) -> None:
    first, second = run_job(ONE_RANK_FAILS, size=2, args=[str(tmp_path / "run")])
    for output in (first, second):
        lines = [line for line in output.splitlines() if line.startswith(("refused", "then"))]
        assert [line.split(":")[0] for line in lines] == ["refused 1", "then", "refused 2", "refused 2", "refused 2", "then"]
        assert "max_staging_bytes allows 20000" in lines[0]
        assert "own: builtin_function_or_method" in lines[2]
        assert "extra['x']" in lines[3]
        assert "meta" in lines[3]
        assert "extra.x" in lines[4]
        assert lines[1].endswith("000001-000000000001-2")
        assert lines[5].endswith("000001-000000000002-4")


ONE_RANK_DIFFERS = """
from ckptcore.errors import StructureMismatch
from tests.torchckpt.models import assert_expected, digest, filled
from tests.torchckpt.runs import checkpointer, save
from torchckpt import PerRank
save(ARGS[0], {"model": filled("fsdp"), "own": PerRank({"n": RANK})})
model = filled("fsdp", "other")
before = digest(*model.parameters())
like = {"model": model, "own": PerRank({"n": 0, **({"more": 1} if RANK else {})})}
with checkpointer(ARGS[0]) as saver:
    try:
        saver.restore(like=like)
    except StructureMismatch as error:
        print("refused:", str(error).replace(chr(10), " "))
    assert digest(*model.parameters()) == before, "it was changed"
    restored = saver.restore(like=like, missing="keep", accept_guarantee="coverage")
    assert_expected(model)
    print("then:", restored.step, restored.components["own"].value)
"""


def test_a_restore_that_one_rank_cannot_make_changes_nothing_on_any(tmp_path: Path) -> None:
    first, second = run_job(ONE_RANK_DIFFERS, size=2, args=[str(tmp_path / "run")])
    for output in (first, second):
        assert "own['more']: not in the checkpoint" in line_of(output, "refused:")
    assert line_of(first, "then:") == "1 {'n': 0}"
    assert line_of(second, "then:") == "1 {'n': 1, 'more': 1}"


WIDE = """
from torch.distributed.tensor import Shard, distribute_tensor
from tests.torchckpt.models import expected, filled, whole
from tests.torchckpt.runs import checkpointer, resume


def state(key):
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    wide = torch.from_numpy(expected("wide", key, (32, 64)))
    return {"model": filled("fsdp", key), "extra": {"wide": distribute_tensor(wide, mesh, [Shard(0)])}}
"""

TWO_STEPS = (
    WIDE
    + """
with checkpointer(ARGS[0]) as saver:
    for step in (1, 2):
        saver.save(step, state(f"step {step}")).result(60)
"""
)

FALLS_BACK = (
    WIDE
    + """
made = state("other")
restored = resume(ARGS[0], made)
for name, tensor in {**dict(made["model"].named_parameters()), **made["extra"]}.items():
    assert (whole(tensor) == expected(name, f"step {restored.step}", tensor.shape)).all()
print("restored:", restored.step, restored.reason)
"""
)


def test_damage_that_one_rank_meets_moves_all(tmp_path: Path) -> None:
    url = tmp_path / "run"
    run_job(TWO_STEPS, size=2, args=[str(url)])
    # In a chunk that rank 1 wrote, and that rank 0 does not need.
    last = models.expected("wide", "step 2", (32, 64))[31].tobytes()
    files = [path for path in url.glob("generations/*-000000000002-*/state/**/d/*") if path.is_file()]
    (victim,) = [path for path in files if last in path.read_bytes()]
    assert victim.parent.parent.name.startswith("00001-")
    data = bytearray(victim.read_bytes())
    data[data.find(last) + 5] ^= 1
    victim.write_bytes(data)
    for output in run_job(FALLS_BACK, size=2, args=[str(url)]):
        assert line_of(output, "restored:") == "1 fallen-back"
    (note,) = [known.obstacle for known in ckptcore.open_run(url).generations() if known.obstacle]
    assert "marked damaged: rank 1: chunk" in note


EVALUATED = """
from tests.torchckpt.models import assert_expected, filled
from tests.torchckpt.runs import resume, save


def evaluate(model):
    with torch.no_grad():
        model(torch.arange(4).reshape(2, 2))
    return model


model = filled("fsdp")
optimizer = torch.optim.AdamW(model.parameters())
save(ARGS[0], {"model": evaluate(model), "optimizer": optimizer})
assert_expected(model)
again = filled("fsdp", "other")
optimizer = torch.optim.AdamW(again.parameters(), lr=9.0)
resume(ARGS[0], {"model": evaluate(again), "optimizer": optimizer})
assert_expected(again)
first = evaluate(again)(torch.arange(4).reshape(2, 2))
first.sum().backward()
optimizer.step()
print("trained:", sum(len(optimizer.state[parameter]) for parameter in again.parameters()), optimizer.param_groups[0]["lr"])
"""


def test_fsdp_right_after_an_evaluation(tmp_path: Path) -> None:
    """A forward pass leaves the outermost parameters gathered: what is saved and filled are the shards all the same."""
    for output in run_job(EVALUATED, size=2, args=[str(tmp_path / "run")]):
        assert line_of(output, "trained:") == f"{3 * len(list(models.Tiny().parameters()))} 0.001"
    model = ckptcore.open_run(tmp_path / "run").restore(components="model")
    np.testing.assert_array_equal(model["norm.bias"], models.expected("norm.bias", "value", (10,)))
