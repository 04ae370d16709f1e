"""The code in the guides does what they say, and their tables name what there is."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter

import ckptcore
from ckptcli import app
from tests.examples.guides import DOCS, blocks, program, run
from torchckpt import titan

ABSTRACT = {"LoadPlanner", "SavePlanner", "StorageReader", "StorageWriter"}
"""What others are made of: they have no counterpart."""

ocp = pytest.importorskip("orbax.checkpoint")


def named(guide: str) -> set[str]:
    """The words in code in a guide's tables."""
    rows = [line for line in (DOCS / guide).read_text().splitlines() if line.startswith("| ")]
    return {word for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[0]) for word in re.findall(r"\w+", code)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_from_orbax(tmp_path: Path) -> None:
    run(program("orbax.md", tmp_path))
    for line in "".join(blocks("orbax.md", "sh")).replace("/tmp/orbax", str(tmp_path)).splitlines():
        assert app.main(line.split()[1:]) == 0
    with ocp.StandardCheckpointer() as reader:
        theirs = reader.restore(tmp_path / "exported")
    assert theirs["params"]["w"].shape == (4, 2)


def test_every_option_of_orbax_is_in_the_table() -> None:
    options = {field.name for field in dataclasses.fields(ocp.CheckpointManagerOptions)}
    assert len(options) > 30
    assert options - named("orbax.md") == set()


def test_every_method_of_orbax_is_in_the_table() -> None:
    methods = {name for name, member in vars(ocp.CheckpointManager).items() if not name.startswith("_") and callable(member)}
    assert {"save", "restore", "best_step"} <= methods
    assert methods - named("orbax.md") - {"close"} == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_from_dcp(tmp_path: Path) -> None:
    run(program("dcp.md", tmp_path))
    for line in "".join(blocks("dcp.md", "sh")).replace("/tmp/dcp", str(tmp_path)).splitlines():
        assert app.main(line.split()[1:]) == 0
    weight = torch.zeros(8, 4)
    state_dict_loader.load({"model.0.weight": weight}, checkpoint_id=tmp_path / "exported", no_dist=True)
    imported = ckptcore.open_run(tmp_path / "imported").restore(components="model")
    assert np.array_equal(weight.numpy(), imported["0.weight"])
    assert weight.any()


def test_everything_of_dcp_is_in_the_tables() -> None:
    options = {field.name for field in dataclasses.fields(state_dict.StateDictOptions)}
    public = {name for name in vars(dcp) if not name.startswith("_") and name[0].isupper()}
    functions = {name for name in state_dict.__all__ if name.startswith(("get_", "set_"))} | {"save", "async_save", "load"}
    parts = {name for name in public if name.endswith(("Writer", "Reader", "Planner"))} - ABSTRACT
    settings = {field.name for field in dataclasses.fields(titan.Config)}
    assert (len(options), len(functions), len(parts) > 5, len(settings) > 15) == (8, 9, True, True)
    assert (options | functions | parts | settings) - named("dcp.md") == set()


def test_every_argument_of_dcp_is_in_the_tables() -> None:
    calls = [state_dict_saver.save, state_dict_saver.async_save, state_dict_loader.load]
    calls += [DefaultSavePlanner, DefaultLoadPlanner, FileSystemWriter]
    arguments = {name for call in calls for name in inspect.signature(call).parameters} - {"state_dict", "path"}
    text = set(re.findall(r"\w+", (DOCS / "dcp.md").read_text()))
    assert arguments - text == {"async_checkpointer_type"}  # its value is there: AsyncCheckpointerType.PROCESS
