"""Any of {1, 2, 4} processes × {plain, FSDP2, TP, 2-D} into any other, element by element.

What is expected is computed from names (`models.expected`), and divided by torch alone; no test compares with a copy
that went through a checkpoint. On four processes shards are uneven, and some are empty; 2-D shards are strided.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptcore
from tests.spec.checker import check_run
from tests.torchckpt import models
from tests.torchckpt.procs import run_job

pytestmark = pytest.mark.slow

SIZES = (1, 2, 4)
SOURCES = 14

COMMON = """
from pathlib import Path
from tests.torchckpt.models import adamw, assert_expected, assert_same_shards, filled, with_moments
from tests.torchckpt import models
from tests.torchckpt.runs import checkpointer, resume, save
from torchckpt import open_run
FOLDER = Path(ARGS[0])
LAYOUTS = {**models.LAYOUTS, **(models.MORE_LAYOUTS if SIZE == 4 else {})}
"""

SAVE = (
    COMMON
    + """
for layout in LAYOUTS:
    model = filled(layout)
    optimizer = adamw(model)
    with_moments(optimizer, model, lambda key: filled(layout, key))
    assert_expected(model, optimizer)
    save(FOLDER / f"{SIZE}-{layout}", {"model": model, "optimizer": optimizer}, chunk_bytes=128)
"""
)

RESTORE = (
    COMMON
    + """
def pointers(model):
    return [(id(p), (p.to_local() if hasattr(p, "to_local") else p).data_ptr()) for p in model.parameters()]


count = 0
for layout in LAYOUTS:
    model = filled(layout)
    references = {key: filled(layout, key) for key in ("value", "exp_avg", "exp_avg_sq")}
    before = pointers(model)
    for source in sorted(FOLDER.iterdir()):
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.fill_(-1)
        optimizer = adamw(model, lr=1.0)
        like = {"model": model, "optimizer": optimizer}
        if source.name == "4-2d":
            resume(source, like, accept_guarantee="coverage")
            assert_expected(model, optimizer)
        else:
            open_run(source).restore(like=like)
        assert_same_shards(model, optimizer, references)
        assert model.calls.item() == 7
        assert [(group["lr"], group["weight_decay"], group["betas"]) for group in optimizer.param_groups] == [
            (1e-2, 0.1, (0.8, 0.9)), (1e-2 / 3, 0.0, (0.9, 0.999))
        ]
        count += 1
    assert pointers(model) == before, "not filled in place"
    assert model.head.weight is model.embed.weight
print("pairs:", count)
"""
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for every number of processes and every layout."""
    folder = tmp_path_factory.mktemp("saved")
    for size in SIZES:
        run_job(SAVE, size=size, group=True, args=[str(folder)])
    return folder


@pytest.mark.parametrize("size", SIZES)
def test_every_layout_into_every_other(saved: Path, size: int) -> None:
    layouts = len(models.LAYOUTS) + len(models.MORE_LAYOUTS) * (size == 4)
    for output in run_job(RESTORE, size=size, group=True, args=[str(saved)]):
        assert f"pairs: {SOURCES * layouts}" in output


def test_every_layout_read_without_torch(saved: Path) -> None:
    runs = sorted(saved.iterdir())
    assert len(runs) == SOURCES
    for url in runs:
        restored = ckptcore.open_run(url).restore()
        names = assert_read(restored["model"], restored["optimizer"]["state"])
        assert names == {name for name, _ in models.Tiny().named_parameters()}
        assert check_run(url) == []


def assert_read(model: dict[str, Any], state: dict[str, Any]) -> set[str]:
    """The names of the parameters that have state; all of it is as expected."""
    assert model.pop("calls") == 7
    np.testing.assert_array_equal(model.pop("head.weight"), model["embed.weight"])
    found = {(name, "value"): array for name, array in model.items()}
    found |= {(name, key): array for name, moments in state.items() for key, array in moments.items()}
    assert len(found) == 4 * len(model)
    for (name, key), array in found.items():
        np.testing.assert_array_equal(array, models.expected(name, key, array.shape), err_msg=f"{name} {key}", strict=True)
    return set(state)
