"""Ways in which this once went wrong, each found by trying to break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

from ckptcore import records
from ckptcore.digests import digest
from ckptcore.errors import GuaranteeError, StructureMismatch, UnsupportedLeaf
from ckptcore.guarantees import topology_differences
from tests.torchckpt.procs import run_job
from tests.torchckpt.runs import DERIVED, checkpointer, resume, save
from torchckpt import Checkpointer, Merged, PerRank, open_run, rng_state

TRIED = """
    from torchckpt import open_run
    from tests.torchckpt.runs import checkpointer, resume, save

    def tried(work):
        try:
            print("done", work(), flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
"""


def job(script: str, tmp_path: Path, *, size: int = 2) -> list[list[str]]:
    """What each rank has tried, a line each."""
    outputs = run_job(TRIED + script, size=size, args=[str(tmp_path)])
    return [[line for line in output.splitlines() if line.startswith(("done", "CallError", "Unsupported"))] for output in outputs]


@pytest.mark.slow
def test_metrics_that_are_none_on_one_rank_put_no_rank_out_of_step(tmp_path: Path) -> None:
    script = """
    with checkpointer(ARGS[0], coordinator_timeout=20.0) as saver:
        state = {"model": {"w": torch.ones(2)}}
        tried(lambda: saver.save(1, state, metrics={"loss": "low"} if RANK == 0 else None).generation)
        tried(lambda: saver.save(2, state).result(60).generation)
    """
    for lines in job(script, tmp_path):
        assert "metric 'loss' is 'low', expected a number" in lines[0]
        assert lines[1] == "done 000001-000000000002-1"


@pytest.mark.slow
def test_ranks_that_save_other_steps_are_told(tmp_path: Path) -> None:
    script = """
    with checkpointer(ARGS[0], coordinator_timeout=20.0) as saver:
        state = {"model": {"w": torch.ones(2)}}
        tried(lambda: saver.save(1 + RANK, state).generation)
        tried(lambda: saver.save(3, state).result(60).generation)
    """
    for lines in job(script, tmp_path):
        assert "all ranks have to call save alike" in lines[0]
        assert lines[1] == "done 000001-000000000003-1"


@pytest.mark.slow
def test_what_is_a_leaf_on_one_rank_is_no_container_on_another(tmp_path: Path) -> None:
    """Whatever else has a name between the two, or is called by one with a dot."""
    script = """
    states = [
        {"a": {} if RANK == 0 else {"b": torch.ones(2)}, "a-x": 1},
        {"a": torch.ones(1) if RANK == 0 else {"b": torch.ones(2)}},
        {"a": 1, "a.b": torch.ones(2), "a.c": RANK == 9},
    ]
    with checkpointer(ARGS[0]) as saver:
        for step, state in enumerate(states, 1):
            tried(lambda: saver.save(step, {"model": state}).result(60).generation)
    tried(lambda: sorted(open_run(ARGS[0]).restore()["model"]))
    """
    for lines in job(script, tmp_path):
        assert lines[0].startswith("UnsupportedLeaf model.a: a value or an empty container on rank 0")
        assert lines[1].startswith("UnsupportedLeaf model.a: an array on rank 0")
        assert lines[2:] == ["done 000001-000000000003-1", "done ['a', 'a.b', 'a.c']"]


@pytest.mark.slow
def test_ranks_that_restore_otherwise_are_told(tmp_path: Path) -> None:
    script = """
    with checkpointer(ARGS[0]) as saver:
        for step in (1, 2):
            saver.save(step, {"model": {"w": torch.ones(2)}, "extra": {"x": torch.ones(2)}}).result(60)
    like = {"model": {"w": torch.zeros(2)}, "extra": {"x": torch.zeros(2)}}
    with checkpointer(ARGS[0]) as saver:
        tried(lambda: saver.restore(like=like, step=1 + RANK))
        tried(lambda: saver.restore(like=like, components=None if RANK else "model"))
        tried(lambda: saver.restore(like=like if RANK else None))
        tried(lambda: saver.restore(like=like, missing="keep" if RANK else "error"))
        tried(lambda: saver.restore(like=like).step)
    """
    for lines in job(script, tmp_path):
        assert all("all ranks have to call restore alike" in line for line in lines[:4])
        assert lines[4:] == ["done 2"]


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [[[0, 2], [1, 3]], None], ids=["other pairs", "plain"])
def test_meshes_of_some_ranks_are_part_of_the_topology(tmp_path: Path, pairs: list[list[int]] | None) -> None:
    script = """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def state(pairs):
        if pairs is None:
            return {"model": {"w": torch.ones(8)}}
        meshes = [DeviceMesh("cpu", pair) for pair in pairs]
        mine = next(mesh for mesh, pair in zip(meshes, pairs) if RANK in pair)
        return {"model": {"w": distribute_tensor(torch.ones(8), mine, [Shard(0)])}}

    save(ARGS[0], state([[0, 1], [2, 3]]))
    tried(lambda: resume(ARGS[0], state([[0, 1], [2, 3]])).guarantee)
    try:
        resume(ARGS[0], state(PAIRS))
    except Exception as error:
        print("done", type(error).__name__)
    else:
        print("done silently")
    """
    for lines in job(script.replace("PAIRS", repr(pairs)), tmp_path, size=4):
        assert lines == ["done exact", "done GuaranteeError"]


def test_the_order_in_which_a_job_lists_its_meshes_says_nothing() -> None:
    one, other = (records.Mesh(axes=["0"], shape=[2], devices=digest(name)) for name in (b"one", b"other"))

    def job_of(*meshes: records.Mesh) -> records.Topology:
        return records.Topology(framework="torch", platform="cpu", participants=2, devices=2, meshes=list(meshes))

    assert topology_differences(job_of(one, other), job_of(other, one)) == []
    assert topology_differences(job_of(one, other), job_of(one)) != []


def test_a_target_whose_elements_share_memory_is_refused(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"a": torch.ones(2), "w": torch.arange(6.0).reshape(2, 3)}})
    first, overlapping = torch.zeros(2), torch.zeros(4).as_strided((2, 3), (1, 1))
    with pytest.raises(UnsupportedLeaf, match=r"model\['w'\]: .*restore into its \.clone\(\)"):
        resume(tmp_path, {"model": {"a": first, "w": overlapping}})
    assert torch.equal(first, torch.zeros(2))


@pytest.mark.parametrize("view", [lambda base: base.view(3), lambda base: base[:2]], ids=["all of it", "a part"])
def test_tensors_that_share_memory_take_no_unequal_contents(tmp_path: Path, view: Any) -> None:
    base = torch.zeros(3)
    save(tmp_path, {"model": {"a": torch.ones(3), "b": torch.full_like(view(base), 2.0)}})
    with pytest.raises((StructureMismatch, UnsupportedLeaf), match="'a'"):
        resume(tmp_path, {"model": {"a": base, "b": view(base)}})
    assert torch.equal(base, torch.zeros(3))


def test_cast_takes_a_dtype_of_torch(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"w": torch.ones(3)}})
    like = {"model": {"w": torch.zeros(3, dtype=torch.bfloat16)}}
    with checkpointer(tmp_path) as saver:
        saver.restore(like=like, cast=torch.bfloat16, accept_guarantee="coverage")
    assert torch.equal(like["model"]["w"], torch.ones(3, dtype=torch.bfloat16))


def test_an_optimizer_is_restored_alone_if_its_module_is_at_hand(tmp_path: Path) -> None:
    def built() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    model, optimizer = built()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save(tmp_path, {"model": model, "optimizer": optimizer})
    fresh, target = built()
    before = fresh.weight.clone()  # pyright: ignore[reportCallIssue]
    open_run(tmp_path).restore(like={"model": fresh, "optimizer": target}, components=["optimizer"])
    assert torch.equal(target.state[fresh.weight]["momentum_buffer"], torch.ones(2, 2))  # pyright: ignore[reportArgumentType]
    assert torch.equal(before, fresh.weight)  # pyright: ignore[reportArgumentType]


def test_the_order_of_components_does_not_name_parameters(tmp_path: Path) -> None:
    """A tensor of the module is in another component too."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    save(tmp_path, {"extra": {"w": model.weight}, "model": model, "optimizer": optimizer})
    optimizer.param_groups[0]["lr"] = 0.1
    resume(tmp_path, {"model": model, "optimizer": optimizer, "extra": {"w": model.weight}})
    assert optimizer.param_groups[0]["lr"] == 0.5


class Drawing:
    """Draws from the global generator when it takes its state, as a loader that starts again does."""

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:  # noqa: ARG002
        torch.rand(1)


def test_random_generators_are_restored_last(tmp_path: Path) -> None:
    derived = {name: "step" for name in DERIVED if name != "rng"}
    state = {"rng": rng_state(), "extra": Drawing(), "model": {"w": torch.ones(1)}}
    torch.manual_seed(1)
    save(tmp_path, state, derived=derived)
    expected = torch.rand(3)
    with checkpointer(tmp_path, derived=derived) as saver:
        saver.restore(like=state)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.filterwarnings("ignore:.*set_vital.*")
def test_a_loader_that_draws_from_the_global_generator_is_not_said_to_be_exact(tmp_path: Path) -> None:
    """It draws once more when a resumed run starts it."""
    state: dict[str, Any] = {"model": {"w": torch.ones(1)}, "rng": rng_state()}
    derived = {"optimizer": "step", "schedule": "step"}

    def loader() -> StatefulDataLoader[int]:
        return StatefulDataLoader(range(20), batch_size=2)  # pyright: ignore[reportArgumentType]

    held = loader()
    batches = iter(held)
    next(batches)
    with Checkpointer(tmp_path, derived=derived, on_preemption="ignore") as saver:
        try:
            saver.save(1, {**state, "data": PerRank(held)}).result(60)
        except GuaranteeError:
            return
    next(batches)
    expected = torch.rand(3)
    with Checkpointer(tmp_path, derived=derived, on_preemption="ignore") as saver:
        resumed = loader()
        restored = saver.restore(like={**state, "data": PerRank(resumed)})
    next(iter(resumed))
    assert restored.guarantee != "exact" or torch.equal(torch.rand(3), expected)


def test_parts_of_one_name_space_have_names_of_their_own(tmp_path: Path) -> None:
    save(tmp_path, {"model": nn.Linear(2, 2)})
    with pytest.raises(UnsupportedLeaf, match=r"model\.weight: 2 tensors of the target have this name"):
        open_run(tmp_path).restore(like={"model": Merged(nn.Linear(2, 2), nn.Linear(2, 2))})


@pytest.mark.slow
def test_a_checkpointer_made_before_the_process_group_is_refused(tmp_path: Path) -> None:
    script = """
    import torch, torchckpt
    from torch import distributed
    distributed.destroy_process_group()
    early = torchckpt.Checkpointer(ARGS[0], on_preemption="ignore")
    store = distributed.FileStore(ARGS[0] + "-store", SIZE)
    distributed.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE)
    for call in (lambda: early.save(1, {"model": {"w": torch.ones(1)}}, guarantee="weights"), lambda: early.restore()):
        try:
            call()
        except torchckpt.errors.CallError as error:
            print("REFUSED", error)
    """
    for output in run_job(script, size=2, args=[str(tmp_path / "run")]):
        assert output.count("REFUSED this Checkpointer was made when the job had 1 processes; now it has 2") == 2
