"""The reader in `docs/reader.md` reads what it says it can, and notices what it says it notices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptcore
from ckptcore.names import array_name
from tests.examples.guides import blocks, run
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden"
RUNS = [path.name for path in sorted(GOLDEN.iterdir()) if (path / "run.json").exists()]


@pytest.fixture(name="reader")
def _reader() -> dict[str, Any]:
    definitions, _ = blocks("reader.md")
    namespace: dict[str, Any] = {}
    exec(definitions, namespace)  # noqa: S102 -- the project's own document
    return namespace


def test_it_is_as_short_as_it_says_and_runs_as_it_stands() -> None:
    definitions, use = blocks("reader.md")
    assert len([line for line in definitions.splitlines() if line.strip()]) <= 66
    assert run(definitions + use) == "float32 (4, 6)\n"


@pytest.mark.parametrize("name", RUNS)
def test_it_reads_every_array_that_it_does_not_refuse(name: str, reader: dict[str, Any]) -> None:
    run_ = ckptcore.open_run(GOLDEN / name)
    read = refused = 0
    for known in run_.generations():
        if known.state != "committed":
            continue
        checkpoint = run_.checkpoint(generation=known)
        for component, entry in checkpoint.manifest.components.items():
            if entry.scope != "global":
                continue
            for leaf in checkpoint.leaves(component).values():
                try:
                    array = reader["read"](GOLDEN / name, str(known.id), component, leaf.name)
                except NotImplementedError:
                    refused += 1
                    continue
                read += 1
                held = run_.restore(generation=known, components=component)
                expected = next(value for path, value in flat(held) if array_name(component, path) == leaf.name)
                assert (array.dtype, array.tobytes()) == (expected.dtype, np.asarray(expected).tobytes())
    assert read > 10
    assert refused > 0


def flat(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, Any]]:
    """The leaves of nested dicts and lists, with paths as the format has them."""
    if isinstance(tree, dict):
        return [found for key, value in tree.items() for found in flat(value, (*path, ("key", key)))]
    if isinstance(tree, list):
        return [found for index, value in enumerate(tree) for found in flat(value, (*path, ("index", index)))]
    return [(path, tree)]


def damaged(tmp_path: Path, pattern: str) -> Path:
    """A copy of a golden run, of which one file has a wrong bit in the middle."""
    copy = tmp_path / "run"
    shutil.copytree(GOLDEN / RUNS[0], copy)
    (file,) = copy.glob(pattern)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return copy


G = "000002-000000000005-1"


@pytest.mark.parametrize("pattern", [f"generations/{G}/roster-*", f"generations/{G}/index/optimizer-*"])
def test_a_flipped_bit_in_a_record_is_noticed(pattern: str, tmp_path: Path, reader: dict[str, Any]) -> None:
    with pytest.raises(reader["Damaged"]):
        reader["read"](damaged(tmp_path, pattern), G, "optimizer", "optimizer.mu")


def test_an_exchanged_array_is_noticed(tmp_path: Path, reader: dict[str, Any]) -> None:
    """The databases of another checkpoint, each whole in itself: only the digests tell."""
    copy = tmp_path / "run"
    shutil.copytree(GOLDEN / RUNS[0], copy)
    shutil.rmtree(copy / "generations" / G / "state")
    shutil.copytree(copy / "generations" / "000002-000000000006-1" / "state", copy / "generations" / G / "state")
    with pytest.raises(reader["Damaged"], match=r"cell 0 of optimizer\.mu"):
        reader["read"](copy, G, "optimizer", "optimizer.mu")


@pytest.mark.parametrize(
    ("generation", "said"),
    [("000001-000000000002-1", "retired"), ("000003-000000000007-1", "undecided"), ("000009-000000000009-1", "undecided")],
)
def test_what_is_no_checkpoint_is_not_read(generation: str, said: str, reader: dict[str, Any]) -> None:
    with pytest.raises(LookupError, match=said):
        reader["read"](GOLDEN / RUNS[0], generation, "optimizer", "optimizer.mu")
