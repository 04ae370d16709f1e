"""What says that data lies on nodes, as the oracle sees it: each rule of chapter 16 that a store can show."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.jobs import nodes
from ckpt_conformance.oracle import checker, keys
from ckpt_conformance.oracle.survey import survey
from ckpt_conformance.place import FilePlace, Place
from tests.ckptcore.support import checkpointer, memory_directory, on_ranks, state
from tests.conformance.changes import Change, delete
from tests.conformance.runs import content, edit, put, put_retired, read

G = "000001-000000000010-1"
RANKS = 2


def _save(folder: Path) -> None:
    def body(link: Any) -> None:
        with checkpointer(folder / "run", link, local=folder / f"node-{link.rank}") as saver:
            saver.save(10, state(10, link.rank, RANKS)).result()

    on_ranks(RANKS, body)


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """A run with one commit, by two ranks with a node each."""
    with memory_directory() as folder:
        _save(folder)
        yield folder


@pytest.fixture
def place(whole: Path) -> Iterator[FilePlace]:
    with memory_directory() as folder:
        shutil.copytree(whole / "run", folder / "run")
        yield FilePlace(folder / "run")


def undecided(place: FilePlace) -> None:
    """Take back what came after the data was whole on the nodes."""
    for key in place.keys(keys.folder(G)):
        if key.startswith((keys.state(G), *(f"{keys.folder(G)}{part}" for part in ("receipts/", "index/", "roster-")))):
            place.delete(key)
    place.delete(keys.decision(G))


def test_a_save_through_nodes_has_no_problem(place: FilePlace) -> None:
    assert checker.check(place) == []
    facts = survey(place).generations[G]
    assert (facts.staged, facts.on_nodes, facts.decision, facts.data) == ([0, 1], True, "commit", "whole")


def test_what_is_whole_on_nodes_only_is_no_checkpoint_and_no_problem(place: FilePlace) -> None:
    undecided(place)
    assert checker.check(place) == []
    facts = survey(place).generations[G]
    assert (facts.staged, facts.on_nodes, facts.decision, facts.complete, facts.data) == ([0, 1], True, "none", [], "some")
    assert checker.kept(place).reasons == {}


def failed(place: Place) -> dict[str, Any]:
    """A failed receipt of rank 1."""
    empty = {"layout": None, "values": None, "database": None, "files": [], "components": {}, "guarantee": None, "topology": None}
    return {**read(place, keys.receipt(G, 1)), **empty, "status": "failed", "reason": "a disk"}


def alter(rank: int, field: str, value: Any) -> Change:
    return lambda place: edit(place, keys.staged(G, rank), lambda record: record.update({field: value}))


def on_record(field: str, value: Any) -> Change:
    return lambda place: edit(place, keys.on_nodes(G), lambda record: record.update({field: value}))


@pytest.mark.parametrize(
    ("change", "key", "clause"),
    [
        (alter(1, "phases", {"stage": 1}), keys.receipt(G, 1), "N-5"),
        (lambda place: put(place, keys.staged(G, 1), failed(place)), keys.staged(G, 1), "N-3"),
        (alter(0, "claim", "0" * 32), keys.staged(G, 0), "R-50"),
        (lambda place: place.write(keys.staged(G, 1), content(place, keys.staged(G, 0))), keys.staged(G, 1), "R-12"),
        (delete(keys.staged(G, 1)), keys.staged(G, 1), "N-1"),
        (delete(keys.staged(G, 1)), keys.on_nodes(G), "N-4"),
        (on_record("participants", 1), keys.on_nodes(G), "R-69"),
        (on_record("participants", 3), keys.on_nodes(G), "N-4"),
        (on_record("decided_by", 2), keys.on_nodes(G), "R-69"),
        (on_record("generation", "000001-000000000011-1"), keys.on_nodes(G), "R-12"),
        (on_record("run_id", "3f2a9c5e-0d41-4b7a-9a55-6f0c1d2e3b4a"), keys.on_nodes(G), "R-12"),
    ],
)
def test_a_change_is_reported(place: FilePlace, change: Change, key: str, clause: str) -> None:
    change(place)
    assert (key, clause) in {(problem.key, problem.clause) for problem in checker.check(place)}


def test_a_record_without_anything_is_a_problem(place: FilePlace) -> None:
    later = "000001-000000000020-1"
    put(place, keys.on_nodes(later), {**read(place, keys.on_nodes(G)), "generation": later})
    assert [(problem.key, problem.clause) for problem in checker.check(place)] == [(keys.on_nodes(later), "N-4")]


def test_a_failed_receipt_beside_a_staged_one_is_allowed(place: FilePlace) -> None:
    """N-7: the generation cannot be finished then, that is all."""
    record = failed(place)
    undecided(place)
    put(place, keys.receipt(G, 1), record)
    assert checker.check(place) == []


def test_a_collection_takes_the_staged_receipts_of_what_is_retired(place: FilePlace) -> None:
    """N-11: the record in the ledger stays."""
    put_retired(place, G)
    for key in place.keys(keys.folder(G)):
        place.delete(key)
    assert {problem.clause for problem in checker.check(place)} == {"K-2"}, "it is the newest commit, and that is all"
    assert survey(place).generations[G].on_nodes


def test_the_place_of_a_run_on_a_node(whole: Path) -> None:
    run = FilePlace(whole / "run")
    found = nodes.place(whole / "node-1", run)
    assert found.keys(f"{keys.folder(G)}receipts/") == [keys.receipt(G, 1)]
    assert found.read(keys.receipt(G, 1)) == run.read(keys.staged(G, 1))
    assert found.keys(f"{keys.folder(G)}layouts/") == run.keys(f"{keys.folder(G)}layouts/") != []
    with pytest.raises(ValueError, match="has the data of 0 runs"):
        nodes.place(whole / "nothing", run)
