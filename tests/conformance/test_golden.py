"""Golden checkpoints: never edited, whole by the checker, and read by the library as the fixture says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import ckptcore
from ckpt_conformance import data, fixture
from ckpt_conformance.cases.states import load_states
from ckpt_conformance.oracle.checker import check
from ckpt_conformance.oracle.survey import survey
from ckpt_conformance.place import FilePlace
from ckptcore.errors import NotFound, Retired

GOLDEN = data.folder("golden")
FOLDERS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
PINNED = {
    "1.0-by-jax-0.1.0": "aad7fd0ab0cc70a2b29f26980e3270b3e73cd9245c1e6bb7b514156ec83b5ae1",
    "1.0-by-torch-0.1.0": "a09b81171b3306db30d27bee2c4d4a62014c3cb5609f49be045606c5b8f98ed3",
}
FIRST, RETIRED, ABORTED, HEAD, QUARANTINED, UNDECIDED = (
    "000001-000000000001-1", "000001-000000000002-1", "000001-000000000003-1",
    "000002-000000000005-1", "000002-000000000006-1", "000003-000000000007-1",
)  # fmt: skip


def content_digest(folder: Path) -> str:
    """Over the path and the digest of every file, sorted by path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(folder).as_posix()} {blake3(path.read_bytes()).hexdigest()}\n" for path in files]
    return blake3("".join(lines).encode()).hexdigest()


def at(tree: Any, path: list[list[Any]]) -> Any:
    for _, key in path:
        tree = tree[key]
    return tree


def test_every_folder_is_pinned() -> None:
    assert list(PINNED) == FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_was_edited(name: str) -> None:
    assert content_digest(GOLDEN / name) == PINNED[name]


def test_an_edit_is_noticed(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(GOLDEN / FOLDERS[0], tmp_path / "copy"))
    before = content_digest(copy)
    (copy / "notes" / "added.json").write_bytes(b"{}")
    assert content_digest(copy) != before


@pytest.mark.parametrize("name", FOLDERS)
def test_the_checker_finds_it_whole(name: str) -> None:
    assert check(FilePlace(GOLDEN / name)) == []


@pytest.mark.parametrize("name", FOLDERS)
def test_it_holds_a_bit_of_everything(name: str) -> None:
    found = survey(FilePlace(GOLDEN / name)).generations
    assert {generation: (facts.decision, facts.retired) for generation, facts in found.items()} == {
        FIRST: ("commit", False),
        RETIRED: ("commit", True),
        ABORTED: ("abort", False),
        "000002-000000000004-1": ("commit", False),
        HEAD: ("commit", False),
        QUARANTINED: ("commit", False),
        UNDECIDED: ("none", False),
    }


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_library_reads_what_the_fixture_says(name: str, rank: int) -> None:
    run = ckptcore.open_run(GOLDEN / name)
    components = run.restore(rank=rank)
    for leaf in load_states(data.folder("scenarios") / "states.toml")["golden"]["leaves"]:
        component = leaf["component"]
        stored = leaf.get("alias", leaf["name"])
        stored = f"rank_state.{rank}.{stored}" if component == "rng" else stored
        step = 1 if component == "params" else 5
        found = at(components[component], leaf["path"])
        if "value" in leaf:
            assert fixture.encode(found) == fixture.encode(fixture.value(leaf["value"], stored, step)), leaf["name"]
            continue
        expected = fixture.array(stored, leaf["dtype"], leaf.get("shapes", {}).get(str(rank), leaf["shape"]), step)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), leaf["name"]
        assert np.asarray(found).tobytes() == expected.tobytes(), leaf["name"]


@pytest.mark.parametrize("name", FOLDERS)
def test_the_library_knows_what_is_no_checkpoint(name: str) -> None:
    run = ckptcore.open_run(GOLDEN / name)
    assert str(run.checkpoint().generation) == HEAD
    assert run.verify(generation=FIRST, deep=True).ok
    with pytest.raises(Retired):
        run.restore(generation=RETIRED, rank=0)
    for generation in (ABORTED, UNDECIDED):
        with pytest.raises(NotFound):
            run.restore(generation=generation, rank=0)
