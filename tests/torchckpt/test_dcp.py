"""`torch.distributed.checkpoint` through `torchckpt.dcp`, in one process."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from ckptcore import errors
from ckptcore.errors import CallError
from ckptcore.events import Event
from ckptcore.keep import Keep
from tests.spec.checker import check_run
from torchckpt import Checkpointer, PerRank, open_run, rng_state
from torchckpt.dcp import StorageReader, StorageWriter
from torchckpt.dcp.keys import step_of

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DERIVED = {"optimizer": "step", "schedule": "step", "rng": "step", "data": "step"}
OBJECTS = {"none": None, "text": "x", "numbers": [1, 2.5], "pair": (1, "a"), "blob": b"\x00" * 70_000, "array": np.arange(4)}


class Thing:
    """Has no place in a checkpoint."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model after one update, its optimizer with two groups."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).to(torch.bfloat16))
    groups = [{"params": [*model[2].parameters()], "lr": 0.5 + seed}, {"params": [*model[:2].parameters()]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1 + seed)
    model[2](model[:2](torch.randn(5, 4)).bfloat16()).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, *, flat: bool = False) -> dict[str, Any]:
    """Both state dicts, as DCP's users make them."""
    parts = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat))
    return dict(zip(("model", "optimizer"), parts, strict=True))


def save(url: str, state: Mapping[str, Any], step: int = 1, **options: Any) -> StorageWriter:
    """One save by a writer of its own."""
    writer = StorageWriter(url, **{"step": step, "derived": DERIVED, **options})
    state_dict_saver.save(dict(state), storage_writer=writer)
    return writer


def load(url: str, state: dict[str, Any], **options: Any) -> StorageReader:
    """Fill `state`."""
    reader = StorageReader(url, **options)
    state_dict_loader.load(state, storage_reader=reader)
    return reader


def load_trained(url: str, seed: int, *, flat: bool = False, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Another model, filled from the checkpoint."""
    model, optimizer = trained(seed)
    state = state_of(model, optimizer, flat=flat)
    load(url, state, **options)
    flattened = StateDictOptions(flatten_optimizer_state_dict=flat)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=flattened)
    return model, optimizer


def assert_equal(one: tuple[nn.Module, torch.optim.Optimizer], other: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    """Parameters, buffers, moments and hyper-parameters are the same, bit by bit."""
    mine, theirs = one[0].state_dict(), other[0].state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    for parameter, twin in zip(one[0].parameters(), other[0].parameters(), strict=True):
        moments, others = one[1].state[parameter], other[1].state[twin]
        assert moments
        assert moments.keys() == others.keys()
        assert all(torch.equal(moments[key], others[key]) for key in moments)
    rates = [[group["lr"] for group in optimizer.param_groups] for _, optimizer in (one, other)]
    assert rates[0] == rates[1]


def refusal(call: Any) -> str:
    """What DCP says when a save or load is refused."""
    with pytest.raises(CheckpointException) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
def test_what_is_saved_is_loaded(url: str, *, flat: bool) -> None:
    before = trained(0)
    writer = save(url, state_of(*before, flat=flat), 7)
    assert str(writer.generation) == "000001-000000000007-1"
    assert_equal(before, load_trained(url, 1, flat=flat))
    assert check_run(url) == []
    assert open_run(url).verify(deep=True).ok


@pytest.mark.parametrize(("saved", "loaded"), [(False, True), (True, False)], ids=["nested-to-flat", "flat-to-nested"])
def test_the_form_of_an_optimizers_state_dict_may_change(url: str, *, saved: bool, loaded: bool) -> None:
    before = trained(0)
    save(url, state_of(*before, flat=saved))
    assert_equal(before, load_trained(url, 1, flat=loaded))


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
def test_a_checkpointer_resumes_from_a_save_of_dcp(url: str, *, flat: bool) -> None:
    before, after = trained(0), trained(1)
    save(url, state_of(*before, flat=flat), 7)
    with Checkpointer(url, derived=DERIVED, on_preemption="ignore") as checkpointer:
        components = {"model": after[0], "optimizer": after[1]}
        restored = checkpointer.restore_or_init(dict, like=components)
        assert restored.step == 7
        assert_equal(before, after)
        checkpointer.save(8, components).result(60)
    assert open_run(url).checkpoint().manifest.parent == str(restored.generation)


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
def test_dcp_loads_a_save_of_a_checkpointer(url: str, *, flat: bool) -> None:
    before = trained(0)
    with Checkpointer(url, derived=DERIVED, on_preemption="ignore") as checkpointer:
        checkpointer.save(3, {"model": before[0], "optimizer": before[1]}).result(60)
    assert_equal(before, load_trained(url, 1, flat=flat))


def test_both_ways_of_saving_give_the_same_leaves(url: str, tmp_path: Path) -> None:
    model, optimizer = trained(0)
    save(url, state_of(model, optimizer))
    other = str(tmp_path / "other")
    with Checkpointer(other, derived=DERIVED, on_preemption="ignore") as checkpointer:
        checkpointer.save(1, {"model": model, "optimizer": optimizer}).result(60)
    digests = [
        {name: entry.digest for name, entry in open_run(place).checkpoint().manifest.components.items()} for place in (url, other)
    ]
    assert digests[0] == digests[1]


def test_an_optimizer_that_numbers_its_parameters_is_stored_entry_by_entry(url: str) -> None:
    before, after = trained(0), trained(1)
    save(url, {"model": before[0].state_dict(), "optimizer": before[1].state_dict()})
    state = {"model": after[0].state_dict(), "optimizer": after[1].state_dict()}
    load(url, state)
    assert state["optimizer"]["param_groups"] == before[1].state_dict()["param_groups"]
    assert torch.equal(state["optimizer"]["state"][0]["exp_avg"], before[1].state_dict()["state"][0]["exp_avg"])


def test_a_state_dict_without_components_belongs_to_the_root(url: str) -> None:
    before, after = trained(0)[0], trained(1)[0]
    save(url, before.state_dict(), root="model", guarantee="weights")
    state = after.state_dict()
    load(url, state, root="model")
    assert all(torch.equal(value, state[key]) for key, value in before.state_dict().items())
    assert list(open_run(url).checkpoint().names) == ["model"]
    told = refusal(lambda: save(url, before.state_dict(), guarantee="weights"))
    assert "'0.weight'" in told
    assert "root='model'" in told


def test_objects_come_back_as_they_were(url: str) -> None:
    save(url, {"model": {"w": torch.zeros(2)}, "extra": OBJECTS, "step": 4})
    state: dict[str, Any] = {"extra": dict.fromkeys(OBJECTS), "step": 0}
    load(url, state)
    array = state["extra"].pop("array")
    assert state == {"extra": {key: value for key, value in OBJECTS.items() if key != "array"}, "step": 4}
    assert array.dtype == OBJECTS["array"].dtype
    assert np.array_equal(array, OBJECTS["array"])


def test_every_dtype_and_shape_comes_back(url: str) -> None:
    dtypes = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn]
    tensors = {str(dtype): torch.arange(6).to(torch.float32).to(dtype) for dtype in dtypes}
    tensors |= {"zero-d": torch.tensor(3.0), "empty": torch.zeros(0, 4), "view": torch.arange(12.0).view(3, 4).T[1:3]}
    save(url, {"model": tensors})
    state = {"model": {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in tensors.items()}}
    load(url, state)
    for name, value in tensors.items():
        assert torch.equal(_bytes(state["model"][name]), _bytes(value)), name


@pytest.mark.parametrize("thing", [Thing(), {1, 2}, 1j, (1, Thing())], ids=["object", "set", "complex", "in-a-tuple"])
def test_an_object_without_a_place_is_refused_by_its_key(url: str, thing: Any) -> None:
    save(url, {"model": {"w": torch.zeros(2)}}, 1)
    told = refusal(lambda: save(url, {"model": {"w": torch.ones(2)}, "extra": {"deep": {"thing": thing}}}, 2))
    assert "UnsupportedLeaf" in told
    assert "extra['deep']['thing']" in told
    run = open_run(url)
    assert [(found.step, found.state) for found in run.generations()] == [(1, "committed"), (2, "aborted")]


def test_no_pickle_is_stored(url: str) -> None:
    save(url, {**state_of(*trained(0)), "extra": OBJECTS}, per_rank={"own": {"text": "x"}})
    files = [path for path in Path(url).rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        assert b"PK\x03\x04" not in data, path
        assert not data.startswith(b"\x80"), path
        assert b"torch._utils" not in data, path


def test_a_flipped_byte_is_refused_by_name_and_nothing_is_filled(url: str) -> None:
    save(url, {"model": {"good": torch.zeros(1000), "struck": torch.full((1000,), 7.0)}})
    _flip(Path(url), torch.full((1000,), 7.0).numpy().tobytes())
    state = {"model": {"good": torch.ones(1000), "struck": torch.ones(1000)}}
    assert "model.struck" in refusal(lambda: load(url, state))
    assert all(torch.equal(value, torch.ones(1000)) for value in state["model"].values())


def test_a_damaged_checkpoint_is_passed_over_aloud(url: str) -> None:
    events: list[Event] = []
    writer = save(url, {"model": {"w": torch.full((9,), 1.0)}}, 1)
    writer.step = 2
    state_dict_saver.save({"model": {"w": torch.full((9,), 2.0)}}, storage_writer=writer)
    next(Path(url, "generations", str(writer.generation), "state", "ranks").rglob("manifest.ocdbt")).unlink()
    next(Path(url, "generations", str(writer.generation)).glob("roster-*")).unlink()
    state = {"model": {"w": torch.zeros(9)}}
    reader = load(url, state, on_event=events.append)
    assert torch.equal(state["model"]["w"], torch.full((9,), 1.0))
    assert [str(event.generation) for event in events if event.kind == "fallen-back"] == [str(writer.generation)]
    assert str(reader.generation) == "000001-000000000001-1"
    assert "roster" in refusal(lambda: load(url, state, step=2))


def test_nothing_is_cast(url: str) -> None:
    save(url, {"model": {"w": torch.zeros(3), "v": torch.zeros(2)}})
    state = {"model": {"w": torch.ones(3, dtype=torch.bfloat16), "v": torch.ones(2)}}
    told = refusal(lambda: load(url, state))
    assert "model.w" in told
    assert "torch.bfloat16" in told
    assert state["model"]["v"].tolist() == [1, 1]


def test_a_run_without_a_checkpoint_says_so(url: str) -> None:
    with pytest.raises(CheckpointException, match="there is no run at"):
        load(url, {"model": {"w": torch.zeros(3)}}, step=5)


def test_async_save_takes_the_state_of_its_call(url: str) -> None:
    """The writer is held up until the state has changed: nothing of the later one may get in."""
    changed = threading.Event()
    weights, own = torch.full((1000,), 1.0), {"draws": np.full(3, 1), "count": 1}

    def hold_up(_: Event) -> None:
        assert changed.wait(60)

    writer = StorageWriter(url, derived=DERIVED, per_rank={"rng": rng_state(), "own": own}, on_event=hold_up)
    torch.manual_seed(3)
    future = state_dict_saver.async_save({"model": {"w": weights}, "step": 4}, checkpoint_id="step-4", storage_writer=writer)
    expected = torch.rand(3)
    weights.fill_(2.0)
    own["draws"][:] = 2
    own["count"] = 2
    writer.step = 9  # the next one's
    changed.set()
    assert _result(future).storage_data["generation"] == "000001-000000000004-1"
    state, mine = {"model": {"w": torch.zeros(1000)}, "step": 0}, {"draws": np.zeros(3, np.int64), "count": 0}
    load(url, state, per_rank={"rng": rng_state()})
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(state["model"]["w"], torch.full((1000,), 1.0))
    assert state["step"] == 4
    found = open_run(url).restore(like={"own": PerRank(mine)}, components=["own"])["own"].value
    assert (found["draws"].tolist(), found["count"]) == ([1, 1, 1], 1)


def test_an_error_of_the_writer_comes_out_of_the_future(url: str, tmp_path: Path) -> None:
    future = state_dict_saver.async_save(
        {"model": {"w": torch.zeros(3)}, "x": {"thing": Thing()}}, storage_writer=_writer(url, 1)
    )
    with pytest.raises(CheckpointException, match=r"x\['thing'\]"):
        _result(future)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the run's directory should be")
    future = state_dict_saver.async_save({"model": {"w": torch.zeros(3)}}, storage_writer=_writer(str(blocked / "run"), 1))
    with pytest.raises(CheckpointException, match=r"ckptcore\.errors\.StoreError"):
        _result(future)


def test_own_state_that_would_be_captured_late_is_refused(url: str) -> None:
    writer = StorageWriter(url, step=1, derived=DERIVED, per_rank={"rng": rng_state()})
    stager = DefaultStager(
        StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False)
    )
    future = state_dict_saver.async_save({"model": {"w": torch.zeros(3)}}, storage_writer=writer, async_stager=stager)
    with pytest.raises(CheckpointException, match="async_stager"):
        _result(future)


def test_a_process_of_its_own_cannot_have_the_writer(url: str) -> None:
    with pytest.raises(CallError, match="async_checkpointer_type=PROCESS"):
        ForkingPickler.dumps(_writer(url, 1))


def test_saves_follow_one_another_in_one_incarnation(url: str) -> None:
    writer = StorageWriter(url, derived=DERIVED, keep=Keep(last=2))
    for step in (1, 2, 2, 3, 4):
        state_dict_saver.save(
            {"model": {"w": torch.full((2,), float(step))}}, checkpoint_id=f"step-{step}", storage_writer=writer
        )
    found = open_run(url).generations()
    assert [str(item.id) for item in found] == [f"000001-{step:012d}-{n}" for step, n in ((1, 1), (2, 1), (2, 2), (3, 1), (4, 1))]
    assert [item.state for item in found].count("committed") == 2
    assert open_run(url).checkpoint().manifest.parent == "000001-000000000003-1"
    assert "step 3 lies before step 4" in refusal(
        lambda: state_dict_saver.save({"model": {"w": torch.zeros(2)}}, checkpoint_id="3", storage_writer=writer)
    )


def test_a_new_writer_goes_on_from_the_newest_or_from_what_was_loaded(url: str) -> None:
    for step in (1, 5):
        save(url, {"model": {"w": torch.full((2,), float(step))}}, step)
    assert "step 3 lies before step 5" in refusal(lambda: save(url, {"model": {"w": torch.zeros(2)}}, 3))
    claims = sorted(path.name for path in Path(url, "incarnations").iterdir())
    assert claims == ["000001", "000002"], "a refused save claims nothing"
    reader = load(url, {"model": {"w": torch.zeros(2)}}, step=1)
    writer = save(url, {"model": {"w": torch.full((2,), 3.0)}}, 3, resumed=reader)
    head = open_run(url).checkpoint()
    assert (head.generation, head.manifest.parent) == (writer.generation, "000001-000000000001-1")


def test_a_reader_of_another_run_is_no_base(url: str, tmp_path: Path) -> None:
    save(url, {"model": {"w": torch.zeros(2)}})
    reader = StorageReader(url)
    with pytest.raises(CallError, match="has loaded nothing yet"):
        StorageWriter(url, resumed=reader)
    state_dict_loader.load({"model": {"w": torch.zeros(2)}}, storage_reader=reader)
    with pytest.raises(CallError, match="leave it out to begin a new run"):
        StorageWriter(str(tmp_path / "other"), resumed=reader)


def test_all_ranks_load_what_the_coordinator_has_chosen(url: str) -> None:
    """Between the choices of two ranks a newer checkpoint appears."""
    save(url, {"model": {"w": torch.full((4,), 1.0)}}, 1)
    first, second = StorageReader(url), StorageReader(url)
    early = first.read_metadata()
    save(url, {"model": {"w": torch.full((4,), 2.0)}}, 2)
    state = {"model": {"w": torch.zeros(4)}}
    planner = DefaultLoadPlanner()
    planner.set_up_planner(state, second.read_metadata(), is_coordinator=False)
    assert second.generation != first.generation
    plans = [first.prepare_local_plan(LoadPlan([])), second.prepare_local_plan(planner.create_local_plan())]
    second.read_data(first.prepare_global_plan(plans)[1], planner)
    assert torch.equal(state["model"]["w"], torch.full((4,), 1.0))
    assert str(second.generation) == early.storage_data


def test_nothing_less_than_promised_is_recorded_unasked(url: str) -> None:
    told = refusal(lambda: save(url, {"model": {"w": torch.zeros(2)}}, derived=None))
    assert "GuaranteeError" in told
    assert not Path(url, "run.json").exists()
    save(url, {"model": {"w": torch.zeros(2)}}, derived=None, guarantee="weights")
    load(url, {"model": {"w": torch.zeros(2)}})


def test_plans_that_are_not_sent_are_refused(url: str) -> None:
    with pytest.raises(CallError, match="enable_plan_caching"):
        _writer(url, 1).prepare_local_plan(SavePlan([], usable=False))
    told = refusal(
        lambda: state_dict_saver.save({"model": {"w": torch.zeros(2)}}, storage_writer=StorageWriter(url, derived=DERIVED))
    )
    assert "the step is not known" in told
    with pytest.raises(CallError, match="use_collectives"):
        state_dict_saver.save({"model": {"w": torch.zeros(2)}}, storage_writer=_writer(url, 1), use_collectives=False)


def test_a_planner_that_changes_tensors_is_heard(url: str) -> None:
    """DCP's own example: half precision in storage."""

    class Half(DefaultSavePlanner):
        def create_local_plan(self) -> SavePlan:
            plan = super().create_local_plan()
            return replace(plan, items=[_half(item) for item in plan.items])

        def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
            found = super().resolve_data(write_item)
            return found.half() if isinstance(found, torch.Tensor) else found

    state_dict_saver.save({"model": {"w": torch.full((3,), 0.5)}, "step": 1}, storage_writer=_writer(url, 1), planner=Half())
    state = {"model": {"w": torch.zeros(3, dtype=torch.float16)}, "step": 0}
    load(url, state)
    assert state["model"]["w"].tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(("name", "step"), [("step-100", 100), ("7", 7), ("/a/b-2/step_0012/", 12), (Path("x/3"), 3)])
def test_a_checkpoint_id_names_a_step(name: str | Path, step: int) -> None:
    assert step_of(name) == step
    assert StorageWriter.validate_checkpoint_id(name)
    assert StorageReader.validate_checkpoint_id(name)


@pytest.mark.parametrize("name", ["latest", "step-", "7b", ""])
def test_a_checkpoint_id_without_a_step_is_refused(name: str) -> None:
    assert not StorageWriter.validate_checkpoint_id(name)
    with pytest.raises(CallError, match="names no step"):
        StorageReader("memory://run").reset(name)


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if getattr(kind, "__module__", "") == errors.__name__])
def test_errors_reach_other_ranks_whole(kind: type[BaseException]) -> None:
    """DCP passes them from rank to rank."""
    told = copy.copy(kind("what is wrong"))
    assert (type(told), str(told)) == (kind, "what is wrong")


def _writer(url: str, step: int) -> StorageWriter:
    return StorageWriter(url, step=step, derived=DERIVED)


def _result(future: Any) -> Any:
    assert isinstance(future, Future)
    return future.result(60)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8) if value.dim() else value


def _flip(root: Path, content: bytes) -> None:
    """Change one bit of the file that holds `content`."""
    path, data = next((path, data) for path in root.rglob("*") if path.is_file() and content in (data := path.read_bytes()))
    changed = bytearray(data)
    changed[data.index(content) + 5] ^= 1
    path.write_bytes(changed)


def _half(item: Any) -> Any:
    if item.tensor_data is None:
        return item
    properties = copy.copy(item.tensor_data.properties)
    properties.dtype = torch.float16
    return replace(item, tensor_data=replace(item.tensor_data, properties=properties))
