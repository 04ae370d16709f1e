"""What belongs to a rank stays with it, what must be equal is compared, and another number of ranks loses nothing unsaid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptcore
from ckptcore.errors import NotFound
from tests.spec.checker import check_run
from tests.torchckpt.procs import run_job

pytestmark = pytest.mark.slow

COMMON = """
import random
import numpy as np
from torchckpt import PerRank, RankZero, Sampler, rng_state
from torchdata.stateful_dataloader import StatefulDataLoader
from ckptcore.errors import CheckpointError
from tests.torchckpt.runs import checkpointer, resume, save


def state(value=0.0):
    return {
        "model": torch.nn.Linear(3, 2),
        "rng": rng_state(),
        "data": PerRank(
            StatefulDataLoader(range(RANK * 100, RANK * 100 + 50), batch_size=5, shuffle=False, generator=torch.Generator())
        ),
        "own": PerRank({"cursor": torch.full((2,), float(value)), "number": int(value)}),
    }


def seed(number):
    torch.manual_seed(number), np.random.seed(number), random.seed(number)


def draws():
    return torch.rand(()).item(), np.random.rand(), random.random()


def refused(call):
    try:
        call()
    except CheckpointError as error:
        print("refused:", type(error).__name__, str(error).replace(chr(10), " "))
    else:
        raise AssertionError("it was not refused")
"""

SAVE = (
    COMMON
    + """
seed(0)
made = state(RANK)
same = int(ARGS[1])
seed(0 if same else RANK)
batches = iter(made["data"].value)
for _ in range(1 if same else 1 + RANK):
    next(batches)
if same:
    made["own"] = PerRank({"cursor": torch.zeros(2), "number": 0})
save(ARGS[0], made, derived={"optimizer": "step", "schedule": "step"})
print("next:", *draws(), next(batches).tolist())
"""
)

RESUME = (
    COMMON
    + """
made = state(-1.0)
restored = resume(ARGS[0], made)
print("next:", *draws(), next(iter(made["data"].value)).tolist())
assert restored.components["own"].value["number"] == RANK == restored.components["own"].value["cursor"][0]
"""
)


def next_of(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("next:"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run that two ranks saved, and how each of them went on."""
    url = tmp_path_factory.mktemp("two") / "run"
    outputs = run_job(SAVE, size=2, args=[str(url), "0"])
    return url, [next_of(output) for output in outputs]


def test_every_rank_goes_on_with_its_own(saved: tuple[Path, list[str]]) -> None:
    url, expected = saved
    assert [next_of(output) for output in run_job(RESUME, size=2, args=[str(url)])] == expected
    assert expected[0] != expected[1]


def test_what_happens_to_be_equal_is_still_kept_for_every_rank(tmp_path: Path) -> None:
    """All four ranks have the same random state and the same cursor: a copy of each is there."""
    url = tmp_path / "run"
    run_job(SAVE, size=4, args=[str(url), "1"])
    run = ckptcore.open_run(url)
    for component in ("rng", "data", "own"):
        trees = [run.restore(components=component, rank=rank) for rank in range(4)]
        np.testing.assert_equal(trees[1:], trees[:1] * 3)
        with pytest.raises(NotFound, match="ranks 0 to 3; there is no rank 4"):
            run.restore(components=component, rank=4)
    assert check_run(url) == []


FEWER = (
    COMMON
    + """
seed(77)
untouched = draws()
made = state(-1.0)
seed(77)
refused(lambda: resume(ARGS[0], made))
assert draws() == untouched, "a refused restore has changed the random state"
with checkpointer(ARGS[0]) as saver:
    restored = saver.restore_or_init(lambda: 1 / 0, like=made, accept_guarantee="replay", remap={0: 1})
    print("next:", *draws(), next(iter(made["data"].value)).tolist())
    print("own:", restored.components["own"].value["number"], restored.guarantee)
"""
)


def test_fewer_ranks_take_nothing_unless_told(saved: tuple[Path, list[str]], tmp_path: Path) -> None:
    url = tmp_path / "run"
    _, expected = saved
    run_job(SAVE, size=2, args=[str(url), "0"])
    (output,) = run_job(FEWER, size=1, args=[str(url)])
    # Not even `replay` can be kept without the cursors.
    for lost in (*(f"component '{name}'" for name in ("rng", "data", "own")), "participants 1 instead of 2"):
        assert lost in output.split("refused: ForkRequired")[1].split("next:")[0]
    # Rank 1's batches begin at 100; this rank's loader, over its own samples, goes on at the same place.
    assert next_of(output) == expected[1].replace("[110, 111, 112, 113, 114]", "[10, 11, 12, 13, 14]")
    assert "own: 1 replay" in output


GLOBAL_CURSOR = (
    COMMON
    + """
def with_sampler(value):
    made = state(value)
    return {**made, "data": Sampler(1000, 4 * SIZE)}


made = with_sampler(RANK)
seed(RANK)
if ARGS[1] == "save":
    made["data"].seek(40)
    save(ARGS[0], made, derived={"optimizer": "step", "schedule": "step"})
else:
    untouched = draws()
    seed(RANK)
    refused(lambda: resume(ARGS[0], made))
    with checkpointer(ARGS[0]) as saver:
        restored = saver.restore_or_init(lambda: 1 / 0, like=made, accept_guarantee="coverage")
        assert restored.components["own"].value["number"] == RANK
        assert draws() == untouched
        print("then:", made["data"].position, restored.guarantee)
"""
)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_what_is_left_out_is_named_and_stays_as_it_was(before: int, after: int, tmp_path: Path) -> None:
    url = tmp_path / "run"
    run_job(GLOBAL_CURSOR, size=before, args=[str(url), "save"])
    for output in run_job(GLOBAL_CURSOR, size=after, args=[str(url), "resume"]):
        refusal = next(line for line in output.splitlines() if line.startswith("refused: GuaranteeError"))
        for lost in ("component 'rng'", "component 'own'", f"participants {after} instead of {before}"):
            assert lost in refusal
        assert "component 'data'" not in refusal
        assert "pass accept_guarantee='coverage'" in refusal
        assert "then: 40 coverage" in output


MORE = (
    COMMON
    + """
made = state(-1.0)
refused(lambda: resume(ARGS[0], made))
with checkpointer(ARGS[0]) as saver:
    restored = saver.restore_or_init(lambda: 1 / 0, like=made, accept_guarantee="replay", remap={0: 0, 1: 1, 2: 0, 3: 1})
    print("own:", restored.components["own"].value["number"], restored.guarantee)
    print("next:", *draws())
"""
)


def test_more_ranks_take_what_they_are_told(saved: tuple[Path, list[str]], tmp_path: Path) -> None:
    _, expected = saved
    run_job(SAVE, size=2, args=[str(tmp_path / "run"), "0"])
    outputs = run_job(MORE, size=4, args=[str(tmp_path / "run")])
    for rank, output in enumerate(outputs):
        assert "refused: ForkRequired" in output
        assert "participants 4 instead of 2" in output
        assert f"own: {rank % 2} replay" in output
        assert next_of(output) in expected[rank % 2]


UNEQUAL = (
    COMMON
    + """
from ckptcore.errors import SaveAborted, UnsupportedLeaf
from tests.torchckpt.models import Normed, adamw
model = torch.nn.Linear(3, 2)
torch.nn.init.ones_(model.weight), torch.nn.init.ones_(model.bias)
normed = Normed()
optimizer = adamw(model)
different = torch.nn.Linear(3, 2)
torch.nn.init.constant_(different.weight, RANK), torch.nn.init.ones_(different.bias)
for parameter in normed.parameters():
    torch.nn.init.ones_(parameter)
normed.norm.running_mean += RANK
rates = adamw(model, lr=0.1 + RANK)
stepped = adamw(different)
CASES = [
    ("model.weight", {"model": different}),
    ("model.norm.running_mean", {"model": normed}),
    ("extra['local']", {"model": model, "extra": {"local": torch.arange(4) + RANK}}),
    ("extra.value", {"model": model, "extra": {"value": RANK}}),
    ("optimizer", {"model": model, "optimizer": rates}),
    ("extra", {"model": model, "extra": [torch.ones(2)] if RANK else {}}),
]
with checkpointer(ARGS[0]) as saver:
    for step, (name, components) in enumerate(CASES, 1):
        try:
            saver.save(step, components).result(60)
        except (SaveAborted, UnsupportedLeaf) as error:
            print(f"refused {step}:", str(error).replace(chr(10), " "))
    own = RankZero({"host": torch.arange(4) + RANK, "value": RANK})
    saver.save(9, {"model": RankZero(normed), "own": own}).result(60)
    saver.save(10, {"model": model, "own": PerRank({"host": torch.arange(4) + RANK})}).result(60)
    print("then: saved")
"""
)


def test_what_must_be_equal_on_all_ranks_and_is_not(tmp_path: Path) -> None:
    url = tmp_path / "run"
    names = ["model.weight'", "model.norm.running_mean'", "extra.local'", "extra.value'", "optimizer.param_groups."]
    for output in run_job(UNEQUAL, size=2, args=[str(url)]):
        *lines, last = [line for line in output.splitlines() if line.startswith("refused")]
        assert len(lines) == len(names), output
        for line, name in zip(lines, names, strict=True):
            assert f"was aborted: '{name}" in line
            assert "differs between rank 0 and rank 1 though it counts as replicated: do all ranks " in line
            assert ("was DDP forgotten?" in line) == (name not in ("extra.value'", "optimizer.param_groups."))
            assert "in PerRank (each rank its own) or RankZero (rank 0's copy counts)" in line
        assert "refused 6: extra: a value or an empty container on rank 0, but other leaves lie below it (extra.0)" in last
        assert "then: saved" in output
    run = ckptcore.open_run(url)
    assert run.restore(components="own", step=9)["value"] == 0
    assert run.restore(components="own", step=9)["host"].tolist() == [0, 1, 2, 3]
    assert set(run.restore(components="model", step=9)["norm.running_mean"]) == {0.0}
    assert [run.restore(components="own", step=10, rank=rank)["host"][0] for rank in (0, 1)] == [0, 1]
