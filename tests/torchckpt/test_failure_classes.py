"""Ways in which checkpoints of other libraries have failed their users, each a scenario with a training job's state.

Those that belong to one module are tested beside it: copies at the boundary in `test_staging`, later parameter groups in
`test_optimizer_groups`, ties in `test_modules`, and so on.
"""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
import tensorstore as ts
import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

import torchckpt
from ckptcore import plain, writer
from ckptcore.errors import DamageError, GuaranteeError, NotFound, SaveFailed, StructureMismatch
from ckptcore.store import Storage, open_store
from tests.spec.checker import check_run
from tests.torchckpt.models import Tiny, adamw, assert_expected, expected, local_bytes
from tests.torchckpt.procs import run_job
from tests.torchckpt.runs import DERIVED, checkpointer, resume, save
from torchckpt import open_run
from torchckpt.dcp import StorageWriter

pytestmark = pytest.mark.slow


def known(key: str = "value") -> Tiny:
    """A model of expected values."""
    model = Tiny()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(expected(name, key, parameter.shape)))
    return model


def bits(state: Any) -> list[bytes]:
    """What the tensors of a module or a dict hold."""
    tensors = state.state_dict() if isinstance(state, torch.nn.Module) else state
    return [local_bytes(tensor) for tensor in tensors.values()]


def whole_state(rate: float) -> dict[str, Any]:
    """A model with everything that has to be of the same step."""
    model = known()
    optimizer = adamw(model, lr=rate)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    return {"model": model, "optimizer": optimizer, "schedule": scheduler, "loss_scale": scaler, "extra": {"losses": [0.5]}}


def train(state: dict[str, Any]) -> None:
    loss = state["model"](torch.arange(9).reshape(3, 3)).square().sum()
    state["loss_scale"].scale(loss).backward()
    state["loss_scale"].step(state["optimizer"])
    state["loss_scale"].update()
    state["optimizer"].zero_grad()
    state["schedule"].step()
    state["extra"]["losses"].append(loss.item())


def summary(state: dict[str, Any]) -> list[Any]:
    rates = [group["lr"] for group in state["optimizer"].param_groups]
    return [bits(state["model"]), rates, state["schedule"].last_epoch, state["loss_scale"].get_scale(), state["extra"]]


def test_nothing_of_the_state_is_of_a_later_step_than_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler, a scaler or a counter in a file of its own, outside of what is committed, is of another step after a crash."""
    state = whole_state(0.1)
    train(state)
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, state)
        at_save = summary({**state, "extra": {"losses": list(state["extra"]["losses"])}})
        train(state)
        handle.result(30)
        monkeypatch.setattr(writer._Writer, "_sign_off", _no_space)  # the moment at which a job may die
        with pytest.raises(SaveFailed):
            saver.save(2, state).result(30)
    monkeypatch.undo()
    fresh = whole_state(0.7)
    fresh["extra"]["losses"] = [0.0, 0.0]
    restored = resume(tmp_path / "run", fresh)
    assert restored.step == 1
    assert summary({**fresh, "extra": restored.components["extra"]}) == at_save
    assert summary(state) != at_save


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_write_that_fails_is_told_through_dcp_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    """A thread that writes, and whose error nobody looks at, lets the save report success."""
    state = {"model": {"w": torch.zeros(3)}}
    target = StorageWriter(tmp_path / "run", step=1, derived=DERIVED)
    with monkeypatch.context() as patch:
        patch.setattr(writer._Writer, "_sign_off", _no_space)
        with pytest.raises(CheckpointException, match="no space left"):
            _dcp_save(state, target, asynchronous=asynchronous)
    _dcp_save(state, target, asynchronous=asynchronous)
    assert [found.state for found in open_run(tmp_path / "run").generations()] == ["aborted", "committed"]


def _dcp_save(state: dict[str, Any], target: StorageWriter, *, asynchronous: bool) -> None:
    if asynchronous:
        cast("Future[Any]", state_dict_saver.async_save(state, storage_writer=target)).result(60)
    else:
        state_dict_saver.save(state, storage_writer=target)


def _no_space(*_: object) -> None:
    raise OSError("no space left")


def _flip(file: Path, content: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[data.find(content) + 3] ^= 1
    file.write_bytes(data)


def _cut(file: Path, content: bytes) -> None:
    file.write_bytes(file.read_bytes()[: file.read_bytes().find(content)])


def _remove(file: Path, _content: bytes) -> None:
    file.unlink()


@pytest.mark.parametrize("harm", [_flip, _cut, _remove])
def test_a_chunk_that_is_damaged_or_gone_leaves_the_target_as_it_was(harm: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    """A checksum that nobody checks lets flipped bits in; a shard that is missing leaves its part of the target unfilled."""
    last = "layers.1.down.weight"
    content = expected(last, "value", (10, 13)).tobytes()
    save(tmp_path / "run", {"model": known()})
    files = [path for path in (tmp_path / "run" / "generations").rglob("*") if path.is_file()]
    (victim,) = [path for path in files if content in path.read_bytes()]
    harm(victim, content)
    target = known("other")
    before = bits(target)
    with pytest.raises(NotFound, match=r"cannot be read: (chunk|metadata|array) .*'model\."):
        open_run(tmp_path / "run").restore(like={"model": target})
    with pytest.raises(DamageError):
        resume(tmp_path / "run", {"model": target})
    assert bits(target) == before


SILENT = [
    ("int32", "float32"),
    ("int64", "int32"),
    ("float32", "bfloat16"),
    ("float64", "float32"),
    ("bfloat16", "float16"),
    ("bfloat16", "float8_e4m3fn"),
    ("complex64", "float32"),
    ("uint8", "bool"),
]


@pytest.mark.parametrize(("stored", "held"), SILENT)
def test_numbers_are_never_rounded_without_a_word(stored: str, held: str, tmp_path: Path) -> None:
    """`copy_` takes any dtype: what does not fit loses digits, an imaginary part or its sign, and nobody is told."""
    save(tmp_path / "run", {"model": {"w": torch.arange(6).to(getattr(torch, stored))}})
    target = {"w": torch.ones(6).to(getattr(torch, held))}
    before = bits(target)
    with pytest.raises(StructureMismatch, match=rf"model\['w'\]: dtype {stored} in the checkpoint, {held} in the target"):
        resume(tmp_path / "run", {"model": target})
    assert bits(target) == before


def test_a_smaller_checkpoint_does_not_fill_a_part_of_a_larger_model(tmp_path: Path) -> None:
    """`strict=False` loads what there is: the rest keeps its random values, and training goes on with them."""
    smaller = Tiny(layers=(0,))
    save(tmp_path / "run", {"model": smaller, "optimizer": adamw(smaller)})
    larger = known("other")
    before = bits(larger)
    with pytest.raises(StructureMismatch) as caught:
        resume(tmp_path / "run", {"model": larger, "optimizer": adamw(larger)})
    assert "model['layers.1.up.weight']: not in the checkpoint" in str(caught.value)
    assert bits(larger) == before
    save(tmp_path / "more", {"model": known()})
    with pytest.raises(StructureMismatch, match="in the checkpoint, not in the target"):
        resume(tmp_path / "more", {"model": smaller})


def test_integer_keys_lists_and_empty_nodes_are_what_they_were_also_without_a_target(tmp_path: Path) -> None:
    """Through JSON the key 3 becomes the text "3", a list a dict by numbers, and what is empty or None is gone."""
    extra = {3: {"empty": {}, "none": None}, "list": [torch.arange(2), [], 1], "groups": {0: 0.5, 10: (1, 2)}}
    save(tmp_path / "run", {"model": known(), "extra": extra})
    found = open_run(tmp_path / "run").restore(components="extra")
    assert found["list"][0].tolist() == [0, 1]
    found["list"][0] = extra["list"][0] = None
    assert found == {**extra, "groups": {0: 0.5, 10: [1, 2]}}  # a target tells tuples from lists


def test_a_folder_that_looks_like_a_newer_checkpoint_is_none(tmp_path: Path) -> None:
    """Where a folder's name counts, one that is empty, or half deleted, is the latest."""
    save(tmp_path / "run", {"model": known()})
    generations = tmp_path / "run" / "generations"
    (real,) = generations.iterdir()
    (generations / "000001-000000000007-1").mkdir()
    shutil.copytree(real, generations / "000001-000000000009-1", ignore=shutil.ignore_patterns("*receipts*"))
    for url in (tmp_path / "run", tmp_path / "run" / "."):
        target = known("other")
        assert resume(url, {"model": target}).step == 1
        assert_expected(target)


def test_a_copy_in_another_kind_of_store_is_the_same_checkpoint(tmp_path: Path) -> None:
    """A commit that is a rename, or a marker that one kind of store has, does not come along when a checkpoint is copied."""
    save(tmp_path / "run", {"model": known()})
    source, context = open_store(tmp_path / "run"), ts.Context()
    memory = Storage(context=context)
    target = open_store("memory://copy", memory)
    for key in source.list():
        target.put_if_absent(key, source.get(key) or b"")
    for url, storage in (("memory://copy", memory), (shutil.copytree(tmp_path / "run", tmp_path / "copy"), None)):
        model = Tiny()
        assert open_run(url, storage=storage).verify(deep=True).ok
        with checkpointer(url, storage=storage) as saver:
            assert saver.restore(like={"model": model}).guarantee == "exact"
        assert_expected(model)
    assert check_run(tmp_path / "copy") == []


@pytest.mark.parametrize("name", ["model", "params"])
def test_the_parameters_may_be_called_either_way(name: str, tmp_path: Path) -> None:
    """Under a name that is not known for what it is, nothing could be promised."""
    model = known()
    derived = {need: source for need, source in DERIVED.items() if need != "optimizer"}
    assert save(tmp_path / "run", {name: model, "optimizer": adamw(model)}, derived=derived).guarantee.level == "exact"
    target = Tiny()
    restored = resume(tmp_path / "run", {name: target, "optimizer": adamw(target)})
    assert restored.guarantee == "exact"
    assert_expected(target)
    with checkpointer(tmp_path / "other") as saver, pytest.raises(GuaranteeError, match="save them as `params` or `model`"):
        saver.save(1, {"network": model})


def test_another_torch_is_not_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release computes a step otherwise: to call that bit-identical would be a promise that nobody keeps."""
    save(tmp_path / "run", {"model": known()})
    here = plain._version
    with monkeypatch.context() as patch:
        patch.setattr(plain, "_version", lambda name: "9.9" if name == "torch" else here(name))
        with pytest.raises(
            GuaranteeError, match=rf"(?s)can keep 'coverage' only.*torch {here('torch')} then, 9\.9 now".replace("+", r"\+")
        ):
            resume(tmp_path / "run", {"model": Tiny()})
        target = Tiny()
        assert resume(tmp_path / "run", {"model": target}, accept_guarantee="coverage").guarantee == "coverage"
        assert_expected(target)
    with monkeypatch.context() as patch:
        patch.setattr(plain, "_version", lambda name: "9.9" if name == "tensorstore" else here(name))
        assert resume(tmp_path / "run", {"model": Tiny()}).guarantee == "exact"


def test_a_restore_holds_a_bounded_part_of_what_it_reads(tmp_path: Path) -> None:
    """Where all reads are started at once, the host runs out of memory that the model itself would fit into."""
    wide = torch.arange(1.0 * (1 << 20))
    save(tmp_path / "run", {"model": {"wide": wide}}, chunk_bytes=1 << 14)
    tracemalloc.start()
    try:
        read = open_run(tmp_path / "run", storage=Storage(bytes_in_flight=1 << 19)).restore(components="model")["wide"]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert torch.equal(torch.from_numpy(read), wide)
    assert most - read.nbytes < 3 << 19


NO_COLLECTIVES = """
import inspect
import threading
from tests.torchckpt.models import adamw, assert_expected, filled, with_moments
from tests.torchckpt.runs import checkpointer
from torchckpt import rng_state

GROUPS = dist.distributed_c10d._world.pg_map
USED = []
STARTS = ("all_", "barrier", "monitored_", "broadcast", "gather", "reduce", "scatter", "send", "recv", "isend", "irecv", "batch_")
NAMES = [name for name in dist.distributed_c10d.__all__ if hasattr(dist, name) and name.startswith(STARTS)]


def refuse(name):
    def refused(*args, **options):
        USED.append((name, threading.current_thread().name))
        raise RuntimeError(f"{name} in {threading.current_thread().name}")
    return refused


def counted():
    return [group._get_sequence_number_for_group() for group in GROUPS]


def made(key):
    model = filled("fsdp", key)
    optimizer = adamw(model)
    with_moments(optimizer, model, lambda moment: filled("fsdp", moment if key == "value" else key))
    return {"model": model, "optimizer": optimizer, "rng": rng_state(), "extra": {"plain": torch.ones(3), "value": 1}}


state, again = made("value"), made("other")
before = counted()
dist.all_reduce(torch.ones(1))
assert counted() != before, "a collective does not show: nothing is tested"
before = counted()
kept = {name: getattr(dist, name) for name in NAMES}
for name in NAMES:
    setattr(dist, name, refuse(name))
    setattr(dist.distributed_c10d, name, refuse(name))
with checkpointer(ARGS[0], chunk_bytes=256) as saver:
    saver.save(1, state).result(60)
    saver.save(2, state).result(60)
with checkpointer(ARGS[0]) as saver:
    restored = saver.restore_or_init(lambda: 1 / 0, like=again)
    assert restored.guarantee == "exact", restored
assert counted() == before, (before, counted())
assert USED == [], USED
for name, function in kept.items():
    setattr(dist, name, function)
    setattr(dist.distributed_c10d, name, function)
assert_expected(again["model"], again["optimizer"])
print("without:", len(NAMES))
"""


@pytest.mark.slow
def test_neither_a_save_nor_a_restore_uses_a_collective(tmp_path: Path) -> None:
    """Collectives beside training's own hang with it when a rank dies, time out at thousands of ranks, and mix up in threads."""
    for output in run_job(NO_COLLECTIVES, size=2, args=[str(tmp_path / "run")]):
        line = next(line for line in output.splitlines() if line.startswith("without:"))
        assert int(line.split()[1]) > 15


OWN_DISKS = """
import os
from pathlib import Path
from ckptcore.errors import CheckpointError, SaveAborted
from tests.torchckpt.models import LAYOUTS, Tiny, filled
from tests.torchckpt.runs import checkpointer, resume, save

(disk := Path(ARGS[0], f"host-{RANK}")).mkdir()
os.chdir(ARGS[0])
save("run", {"model": filled("fsdp")})
os.chdir(disk if RANK else ARGS[0])
model = filled("fsdp", "other")
before = [parameter.to_local().clone() for parameter in model.parameters()]
try:
    resume("run", {"model": model})
except CheckpointError as error:
    print("refused:", error)
assert all(torch.equal(parameter.to_local(), old) for parameter, old in zip(model.parameters(), before, strict=True))
os.chdir(disk)
saver = checkpointer("fresh", coordinator_timeout=2.0)
handle = saver.save(1, {"model": model})
store = dist.distributed_c10d._get_default_store()
if RANK == 0:
    try:
        handle.result(60)
    except SaveAborted as error:
        print("aborted:", error)
    store.set("over", "1")
else:
    store.wait(["over"])
print("end", flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.mark.slow
def test_hosts_that_do_not_share_their_disk_are_told(tmp_path: Path) -> None:
    """With metadata on the first host's own disk a job seems to save for weeks, and nothing can be restored."""
    first, second = run_job(OWN_DISKS, size=2, args=[str(tmp_path)])
    for output in (first, second):
        refusal = next(line for line in output.splitlines() if line.startswith("refused:"))
        assert "rank 1 does not see ledger/" in refusal
        assert "do all ranks have the same storage mounted?" in refusal
    assert "no receipt from rank 1 of 2 within 2 s" in next(line for line in first.splitlines() if line.startswith("aborted:"))
    assert [found.state for found in torchckpt.open_run(tmp_path / "host-0" / "fresh").generations()] == ["aborted"]
