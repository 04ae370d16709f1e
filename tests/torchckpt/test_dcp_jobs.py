"""`torch.distributed.checkpoint` through `torchckpt.dcp`, in jobs of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore.digests import group_key
from tests.spec.checker import check_run
from tests.torchckpt.procs import Job, run_job
from torchckpt import open_run

pytestmark = pytest.mark.slow

PREAMBLE = """
import os, signal
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchckpt import rng_state
from torchckpt.dcp import StorageReader, StorageWriter

DERIVED = {"optimizer": "step", "schedule": "step", "rng": "step", "data": "step"}


class Own:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value, "tensor": torch.full((3,), float(self.value))}

    def load_state_dict(self, state):
        self.value = state["value"]
        assert state["tensor"].tolist() == [float(self.value)] * 3


def training(seed):
    torch.manual_seed(seed)
    # 7 and 5 rows: uneven shards, and on 4 ranks an empty one.
    model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 5), nn.Linear(5, 1, bias=False))
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW([{"params": [*model[0].parameters()], "lr": 0.5 + seed}, {"params": [*model[1:].parameters()]}])
    model(torch.arange(12.0).view(2, 6) / 12).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().double().sum(-1).flatten().tolist()


def shown(model, optimizer):
    state = state_of(model, optimizer)
    moments = {(name, key): whole(value) for name, kept in state["optimizer"]["state"].items() for key, value in kept.items()}
    rates = {group["params"][0]: group["lr"] for group in state["optimizer"]["param_groups"]}
    weights = [(key, whole(value)) for key, value in state["model"].items()]
    return f"STATE {weights} {sorted(moments.items())} {sorted(rates.items())}"


def load(url, **options):
    model, optimizer = training(9)
    state = {**state_of(model, optimizer), "extra": {"count": 0}}
    reader = StorageReader(url, **options)
    dcp.load(state, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return model, optimizer, state["extra"], reader
"""

SAVE = (
    PREAMBLE
    + """
model, optimizer = training(0)
own = Own(10 + RANK)
writer = StorageWriter(ARGS[0], derived=DERIVED, per_rank={"rng": rng_state(), "own": own})
dcp.save({**state_of(model, optimizer), "extra": {"count": 3}}, checkpoint_id="step-1", storage_writer=writer)
torch.manual_seed(RANK)
# DCP talks in the background: on the group that training uses, its messages would meet those of the next step.
options = {"checkpoint_id": "step-2", "storage_writer": writer, "process_group": dist.new_group(backend="gloo")}
future = dcp.async_save({**state_of(model, optimizer), "extra": {"count": 4}}, **options)
own.value = -1
print(shown(model, optimizer))
print("DRAW", torch.rand(2).tolist())
future.result(60)
print("SAVED", writer.generation)
"""
)

LOAD = (
    PREAMBLE
    + """
import warnings
warnings.filterwarnings("ignore", "torch.distributed is disabled")
own = Own(0)
same = ARGS[1] == "same"
model, optimizer, extra, reader = load(ARGS[0], per_rank={"rng": rng_state(), "own": own} if same else None)
draw = torch.rand(2).tolist()
print(shown(model, optimizer))
print("REST", extra, reader.generation, own.value)
print("DRAW", draw)
if ARGS[1] == "remap":
    try:
        load(ARGS[0], per_rank={"own": own})
    except CheckpointException as error:
        print("TOLD", str(error).splitlines()[-1])
    load(ARGS[0], per_rank={"own": own}, remap=dict.fromkeys(range(SIZE), 1))
    print("REMAPPED", own.value)
if ARGS[2:]:
    writer = StorageWriter(ARGS[2], derived=DERIVED)
    dcp.save({**state_of(model, optimizer), "extra": extra}, checkpoint_id="step-1", storage_writer=writer)
"""
)


def lines(output: str, word: str) -> list[str]:
    """The lines that begin with `word`."""
    return [line for line in output.splitlines() if line.startswith(word)]


def test_two_ranks_to_four_to_one(tmp_path: Path) -> None:
    """Every rank gathers the whole state, which has to be the same wherever it has been."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    saved = run_job(SAVE, size=2, args=[first])
    assert check_run(first) == []
    assert open_run(first).verify(deep=True).ok
    expected = lines(saved[0], "STATE")
    assert lines(saved[1], "STATE") == expected
    assert all(lines(output, "SAVED") == ["SAVED 000001-000000000002-1"] for output in saved)

    again = run_job(LOAD, size=2, args=[first, "same"])
    for rank, output in enumerate(again):
        assert lines(output, "STATE") == expected
        assert lines(output, "REST") == [f"REST {{'count': 4}} 000001-000000000002-1 {10 + rank}"]
        assert lines(output, "DRAW") == lines(saved[rank], "DRAW")

    four = run_job(LOAD, size=4, args=[first, "remap", second])
    one = run_job(LOAD, size=1, args=[second, "plain"])
    assert [lines(output, "STATE") for output in (*four, *one)] == [expected] * 5
    assert all("that of 2 ranks, this job has 4" in lines(output, "TOLD")[0] for output in four)
    assert all(lines(output, "REMAPPED") == ["REMAPPED 11"] for output in four)
    layouts = list(Path(second, "generations").glob("*/layouts/*"))
    assert len(layouts) == 1, "equal ranks share one layout"


UNEQUAL = (
    PREAMBLE
    + """
weights = {"w": torch.zeros(4)}
for step, state in enumerate(
    (
        {"model": weights, "extra": {"cursor": RANK}},
        {"model": {"w": torch.full((4,), float(RANK))}},
        {"model": weights, "extra": {"cursor": {1, 2} if RANK else 1}},
        {"model": weights, "extra": {"cursor": 5}},
    )
):
    try:
        dcp.save(state, storage_writer=StorageWriter(ARGS[0], step=step, derived=DERIVED))
        print("SAVED", step)
    except CheckpointException as error:
        print("TOLD", str(error).replace(chr(10), " "))
"""
)


def test_what_differs_between_ranks_is_refused_by_name(tmp_path: Path) -> None:
    """DCP by itself would keep one rank's cursor, and let all ranks resume with it."""
    url = str(tmp_path / "run")
    for output in run_job(UNEQUAL, size=2, args=[url]):
        cursor, weights, unsupported = lines(output, "TOLD")
        assert "'extra.cursor' differs between rank 0 and rank 1" in cursor
        assert "'model.w' differs between rank 0 and rank 1" in weights
        assert "(RANK 1)" in unsupported
        assert "extra['cursor']: set has no place" in unsupported
        assert lines(output, "SAVED") == ["SAVED 3"]
    assert [found.state for found in open_run(url).generations()] == ["aborted", "aborted", "aborted", "committed"]


STAGES = (
    PREAMBLE
    + """
# A pipeline: every rank has a layer of its own, and its own first parameter group.
layer = nn.Linear(2 + RANK, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1 * (RANK + 1), momentum=0.9)
layer(torch.ones(1, 2 + RANK)).sum().backward()
optimizer.step()
model = nn.Module()
model.add_module(f"stage{RANK}", layer)
url, names = ARGS[0], [f"stage{RANK}.weight", f"stage{RANK}.bias"]
moments = {name: optimizer.state[p] for name, p in zip(names, layer.parameters(), strict=True)}
groups = [{"lr": optimizer.param_groups[0]["lr"], "params": names}]
state = {"model": model.state_dict(), "optimizer": {"state": moments, "param_groups": groups}, "extra": {"step": 1}}
dcp.save(state, storage_writer=StorageWriter(url, step=1, derived=DERIVED))
if RANK == 0:
    found = __import__("torchckpt").open_run(url).checkpoint()
    print("LEAVES", sorted(name for name in found.leaves("optimizer") if "param_groups" in name), len(found.roster.layouts))
    values = [found.value(leaf) for name, leaf in sorted(found.leaves("optimizer").items()) if "param_groups" in name]
    print("VALUES", values)
"""
)


def test_stages_of_a_pipeline_keep_their_own_groups(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    output = run_job(STAGES, size=2, args=[url])[0]
    names = [f"optimizer.param_groups.{group_key([f'stage{stage}.weight', f'stage{stage}.bias'])}" for stage in range(2)]
    assert lines(output, "LEAVES") == [f"LEAVES {names} 2"]
    values = [{"lr": 0.1 * (rank + 1), "params": [f"stage{rank}.weight", f"stage{rank}.bias"]} for rank in range(2)]
    assert lines(output, "VALUES") == [f"VALUES {values}"]
    assert check_run(url) == []


MESH = (
    PREAMBLE
    + """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 6))
if SIZE == 4:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
state = {"model": model.state_dict()}
if ARGS[1] == "save":
    dcp.save(state, storage_writer=StorageWriter(ARGS[0], step=1, derived=DERIVED))
else:
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load(state, storage_reader=StorageReader(ARGS[0]))
print("STATE", [(key, whole(value)) for key, value in state["model"].items()])
"""
)


@pytest.mark.parametrize(("saved", "loaded"), [(4, 2), (2, 4)])
def test_sharded_along_two_axes(tmp_path: Path, saved: int, loaded: int) -> None:
    """Tensor parallel below FSDP2, whose shards lie in strides, to plain tensors on two ranks and back."""
    url = str(tmp_path / "run")
    before = run_job(MESH, size=saved, args=[url, "save"])
    after = run_job(MESH, size=loaded, args=[url, "load"])
    assert len({lines(output, "STATE")[0] for output in (*before, *after)}) == 1


KILLED = (
    PREAMBLE
    + """
model, optimizer = training(0)
def watch(event):
    if step == 2 and RANK == 1 and event.kind == ARGS[1]:
        os.kill(os.getpid(), signal.SIGKILL)
for step in (1, 2):
    writer = StorageWriter(ARGS[0], step=step, derived=DERIVED, on_event=watch)
    dcp.save({**state_of(model, optimizer), "extra": {"count": step}}, storage_writer=writer)
    print("SAVED", step, flush=True)
"""
)


@pytest.mark.parametrize("moment", ["chunk-written", "written"])
def test_a_killed_writer_leaves_nothing_to_read(tmp_path: Path, moment: str) -> None:
    """The next job reads the checkpoint before, and its first save decides what was left."""
    url = str(tmp_path / "run")
    with Job(KILLED, size=2, args=[url, moment]) as job:
        assert [rank.wait() != 0 for rank in job.ranks] == [True, True]
    assert [found.state for found in open_run(url).generations()] == ["committed", "undecided"]
    assert open_run(url).checkpoint().generation.step == 1
    after = run_job(LOAD, size=2, args=[url, "plain"])
    assert all("000001-000000000001-1" in lines(output, "REST")[0] for output in after)
    again = run_job(SAVE.replace('"step-1"', '"step-3"').replace('"step-2"', '"step-4"'), size=2, args=[url])
    assert all(lines(output, "SAVED") == ["SAVED 000003-000000000004-1"] for output in again)
    assert [found.state for found in open_run(url).generations()] == ["committed", "aborted", "committed", "committed"]
