"""What lies on nodes, as the oracle sees it: what is whole, what is half there, and what must not be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt_conformance.jobs import nodes
from ckpt_conformance.oracle import keys, nodestore
from ckpt_conformance.place import FilePlace
from tests.ckptcore.cluster import RANKS, Cluster
from tests.ckptcore.support import memory_directory
from tests.conformance.changes import Change, delete, flip, truncate
from tests.conformance.runs import edit

OWN, COPY = 0, 1
"""The node that is looked at is that of rank 0."""


@pytest.fixture(scope="module")
def died() -> Iterator[tuple[Path, str]]:
    """What a job leaves that dies in its upload, with copies; and the generation."""
    with memory_directory() as folder:
        cluster = Cluster(folder, copies=1)
        yield folder, str(cluster.die_in_upload(10))


class Left:
    """A copy of it that a test may change."""

    def __init__(self, folder: Path, generation: str) -> None:
        self.generation = generation
        self.run = FilePlace(folder / "run")
        self.watched = {name: nodes.WatchedNode(folder / f"node-{name}") for name in "01"}
        self.node = nodes.place(self.watched["0"].folder, self.run)

    def problems(self) -> list[str]:
        return nodes.problems(self.watched, [self.run])

    def survey(self) -> dict[str, list[int]]:
        return self.watched["0"].survey(self.run, [self.generation])[self.generation]

    def key(self, rank: int, what: str) -> str:
        """The receipt of a rank, or the first of its files."""
        folder = f"{keys.state(self.generation)}ranks/{rank:05d}"
        return keys.receipt(self.generation, rank) if what == "receipt" else self.node.keys(folder)[0]


@pytest.fixture
def left(died: tuple[Path, str]) -> Iterator[Left]:
    with memory_directory() as folder:
        shutil.copytree(died[0], folder, dirs_exist_ok=True)
        yield Left(folder, died[1])


def test_a_copy_is_whole_as_what_it_was_made_of(left: Left) -> None:
    assert left.survey() == {"whole": [0, 1], "half": []}
    assert left.problems() == []
    assert left.watched["0"].has(left.run, keys.receipt(left.generation, COPY))
    assert not left.watched["0"].has(left.run, keys.receipt(left.generation, RANKS))


@pytest.mark.parametrize("rank", [OWN, COPY])
@pytest.mark.parametrize(("what", "change"), [("file", delete), ("file", truncate), ("receipt", truncate)])
def test_what_is_not_whole_does_not_count_and_is_a_problem(
    left: Left, rank: int, what: str, change: Callable[[str], Change]
) -> None:
    key = left.key(rank, what)
    change(key)(left.node)
    assert left.survey() == {"whole": [1 - rank], "half": [rank]}
    found = left.problems()
    assert [text for text in found if key in text and "N-14" in text] == found
    assert bool(found) == (what == "file"), "nobody takes a receipt that is none for one"


def test_a_manifest_of_another_digest(left: Left) -> None:
    key = next(key for key in left.node.keys(f"{keys.state(left.generation)}ranks/00001") if key.endswith("manifest.ocdbt"))
    flip(key)(left.node)
    assert left.survey()["half"] == [COPY]
    (found,) = left.problems()
    assert "another digest" in found


def test_files_without_a_receipt_are_half_a_copy_and_no_problem(left: Left) -> None:
    delete(left.key(COPY, "receipt"))(left.node)
    assert left.survey() == {"whole": [OWN], "half": [COPY]}
    assert left.problems() == []


def test_a_receipt_with_other_bytes_than_the_staged_one(left: Left) -> None:
    edit(left.node, left.key(COPY, "receipt"), lambda record: record.update({"phases": {"stage": 1}}))
    (found,) = left.problems()
    assert "other bytes than the staged receipt" in found


def test_of_a_decided_generation_anything_may_be_gone(left: Left) -> None:
    delete(left.key(COPY, "file"))(left.node)
    assert left.problems() != []
    left.run.write(keys.decision(left.generation), b"{}")
    assert left.problems() == []


def test_what_the_suite_has_damaged_is_excused_and_nothing_else(left: Left) -> None:
    left.watched["0"].damage(left.run, [{"truncate": left.key(COPY, "file")}])
    assert left.problems() == []
    left.watched["0"].damage(left.run, [{"flip": left.key(COPY, "receipt")}])
    assert left.problems() == []
    delete(left.key(OWN, "file"))(left.node)
    assert len(left.problems()) == 1


@pytest.mark.parametrize("marker", [b"", b"0123456789abcdeg", b"0123456789abcdef\n"])
def test_a_marker_is_sixteen_digits(left: Left, marker: bytes) -> None:
    left.node.write(nodestore.MARKER, marker)
    (found,) = left.problems()
    assert "N-12" in found


def test_two_nodes_with_one_marker(left: Left) -> None:
    other = nodes.place(left.watched["1"].folder, left.run)
    other.write(nodestore.MARKER, left.node.read(nodestore.MARKER) or b"")
    assert left.problems() == ["the nodes 0 and 1 have the same marker (N-12)"]


def test_a_node_without_anything(left: Left, tmp_path: Path) -> None:
    empty = nodes.WatchedNode(tmp_path)
    assert not empty.has(left.run, "node")
    assert empty.survey(left.run, ["x"]) == {"x": {"whole": [], "half": []}}
    assert nodes.problems({"e": empty}, [left.run]) == []
