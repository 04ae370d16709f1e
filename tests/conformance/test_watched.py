"""A run from look to look: what the suite has spoilt is excused and nothing beside it, and what had to be kept is still there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ckpt_conformance.jobs import notes
from ckpt_conformance.jobs.watched import WatchedRun
from ckpt_conformance.oracle import checker, keys
from ckpt_conformance.place import FilePlace
from tests.ckptcore.support import memory_directory
from tests.conformance import runs
from tests.conformance.changes import change, delete, flip
from tests.conformance.runs import ABORTED, LAST, NEXT, OPEN, SECOND, THIRD, content, read


@pytest.fixture
def watched(place: FilePlace) -> WatchedRun:
    """It, once looked at."""
    run = WatchedRun(place)
    assert run.look()[0] == []
    return run


def told(run: WatchedRun) -> list[str]:
    """The problems of a look, without their texts: `<clause> <key>`."""
    return [f"{text.rpartition('(')[2][:-1]} {text.split(' ')[0].rstrip(':')}" for text in run.look()[0]]


def one_of(place: FilePlace, prefix: str) -> str:
    return place.keys(prefix)[0]


# What the suite itself did


def test_what_is_damaged_and_what_follows_from_it_is_excused(watched: WatchedRun, place: FilePlace) -> None:
    key = f"generations/{NEXT}/state/manifest.ocdbt"
    watched.damage([{"delete": key}], [NEXT])
    assert [watched.look()[0] for _ in range(2)] == [[], []]
    assert any(keys.generation_of(problem.key) == NEXT for problem in checker.check(place, damaged=[key]))


def test_what_follows_elsewhere_than_the_step_says_is_told_of(watched: WatchedRun) -> None:
    watched.damage([{"delete": f"generations/{NEXT}/state/manifest.ocdbt"}])
    assert watched.look()[0]


@pytest.mark.parametrize(
    "later",
    [
        flip(f"generations/{NEXT}/index/optimizer"),
        delete(f"generations/{NEXT}/state/ranks/00001"),
        delete(keys.receipt(NEXT, 0)),
        change(keys.decision(NEXT), step=9),
    ],
)
def test_what_comes_later_in_the_same_generation_is_told_of(
    watched: WatchedRun, place: FilePlace, later: Callable[[FilePlace], object]
) -> None:
    watched.damage([{"flip": one_of(place, f"generations/{NEXT}/state/ranks/00000")}], [NEXT])
    assert watched.look()[0] == []
    later(place)
    assert watched.look()[0]


def test_no_damage_excuses_a_commit_that_is_made_of_it(watched: WatchedRun, place: FilePlace) -> None:
    """OPEN is undecided: without a file it is no commit, and nobody may make one of it."""
    watched.damage([{"delete": one_of(place, f"generations/{OPEN}/state/ranks/00001")}], [OPEN])
    assert watched.look()[0] == []
    runs.derive_anew(place, OPEN)
    assert f"P-35 generations/{OPEN}/" in "\n".join(told(watched))


def test_what_is_made_again_has_to_be_right(watched: WatchedRun, place: FilePlace) -> None:
    index = one_of(place, f"generations/{NEXT}/index/params")
    before = content(place, index)
    watched.damage([{"delete": index}], [NEXT])
    assert watched.look()[0] == []
    place.write(index, before)
    assert watched.look()[0] == []
    place.write(index, before + b" ")
    assert watched.look()[0]


def test_a_lost_claim_is_put_again_with_another_nonce(watched: WatchedRun, place: FilePlace) -> None:
    watched.damage([{"delete": keys.claim(2)}])
    assert watched.look()[0] == []
    put_claim(place, 2)
    assert watched.look()[0] == []


def test_only_what_the_suite_wrote_may_change_in_the_ledger(watched: WatchedRun, place: FilePlace) -> None:
    watched.damage([{"flip": keys.decision(NEXT)}], [NEXT])
    place.delete(keys.decision(ABORTED))
    assert f"L-5 {keys.decision(ABORTED)}" in told(watched)
    place.write(keys.decision(NEXT), content(place, keys.decision(NEXT)) + b" ")
    assert f"R-9 {keys.decision(NEXT)}" in told(watched)


def test_a_copy_is_excused_what_the_original_is(watched: WatchedRun, place: FilePlace) -> None:
    watched.damage([{"flip": one_of(place, f"generations/{NEXT}/state/ranks/00000")}], [NEXT])
    assert watched.look()[0] == []
    with memory_directory() as folder:
        other = WatchedRun(FilePlace(folder / "copy"))
        watched.copy_to(other)
        assert other.look()[0] == []
        delete(keys.receipt(NEXT, 0))(other.place)  # type: ignore[arg-type]
        assert other.look()[0]


# What a collection may not take


def taken(place: FilePlace, generation: str) -> None:
    """Delete the data of a generation, as K-8 says."""
    for key in place.keys(keys.folder(generation)):
        place.delete(key)


def put_claim(place: FilePlace, number: int) -> str:
    """Let an incarnation exist; its nonce."""
    nonce = f"{number:016}"
    runs.put(place, keys.claim(number), {**read(place, keys.claim(1)), "incarnation": number, "nonce": nonce})
    return nonce


def put_base(place: FilePlace, number: int, generation: str) -> None:
    """Let an incarnation begin at a generation, by the person who chose it."""
    manifest = runs.described(place, keys.decision(generation))["digest"]
    said = {"incarnation": number, "nonce": put_claim(place, number), "generation": generation, "manifest": manifest}
    runs.put(place, keys.base(number), {**read(place, keys.base(2)), **said, "reason": "chosen", "settled": [], "skipped": []})


def unmark(place: FilePlace) -> None:
    """Take every note away."""
    for key in place.keys("notes/"):
        place.delete(key)


@pytest.fixture
def free(place: FilePlace) -> FilePlace:
    """The run without notes, when a newer incarnation has begun at LAST. Nobody needs THIRD any more."""
    unmark(place)
    put_base(place, 3, LAST)
    return place


def test_what_nobody_needs_may_go(free: FilePlace) -> None:
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    runs.put_retired(free, THIRD)
    assert watched.look()[0] == []
    taken(free, THIRD)
    assert watched.look()[0] == []


KEPT: dict[str, Callable[[FilePlace], Any]] = {
    "newest-base": lambda place: put_base(place, 4, THIRD),
    "pin": lambda place: notes.put_note(place, THIRD, "pin"),
    "tag": lambda place: notes.put_note(place, THIRD, "tag", {"tag": "release"}),
    "opening": lambda place: put_claim(place, 4),
    "undecided": lambda place: runs.edit(
        place, keys.receipt(OPEN, 0), lambda record: record["lead"].update(references={"params": THIRD})
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_has_to_be_kept_stays_though_it_is_retired(free: FilePlace, name: str) -> None:
    """What needs it came after the collector's first look, and before its second (K-7)."""
    runs.put_retired(free, THIRD)
    KEPT[name](free)
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    runs.view(free, THIRD).write("params.w/c/0/0", None).result()
    assert told(watched) == [f"K-7 {keys.folder(THIRD)}"]


@pytest.mark.parametrize(("vouched", "excused"), [([4], False), ([5], False), ([4, 5], True)])
def test_nothing_is_kept_for_openings_that_are_known_to_be_dead(free: FilePlace, vouched: list[int], excused: bool) -> None:  # noqa: FBT001
    runs.put_retired(free, THIRD)
    for number in (4, 5):
        put_claim(free, number)
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    watched.vouch(vouched)
    taken(free, THIRD)
    assert told(watched) == ([] if excused else [f"K-7 {keys.folder(THIRD)}"])


def test_the_source_of_what_is_kept_stays(free: FilePlace) -> None:
    """THIRD is retired and pinned, and has a component that lies in SECOND."""
    for generation in (SECOND, THIRD):
        runs.put_retired(free, generation)
    notes.put_note(free, THIRD, "pin")
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    taken(free, SECOND)
    assert f"K-7 {keys.folder(SECOND)}" in told(watched)


def test_a_pin_of_what_was_deleted_before_is_no_problem(free: FilePlace) -> None:
    """K-15: the data may be gone."""
    runs.put_retired(free, THIRD)
    taken(free, THIRD)
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    notes.put_note(free, THIRD, "pin")
    assert [watched.look()[0] for _ in range(2)] == [[], []]


@pytest.mark.parametrize(("name", "reported"), [("newest-base", True), ("pin", True), ("tag", True), ("opening", False)])
def test_what_has_to_be_kept_is_not_retired(free: FilePlace, name: str, reported: bool) -> None:  # noqa: FBT001
    """While an opening is under way only the data stays (K-7)."""
    KEPT[name](free)
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    runs.put_retired(free, THIRD)
    assert told(watched) == ([f"K-2 {keys.retired(THIRD)}"] if reported else [])


def test_two_resumable_commits_are_left(free: FilePlace) -> None:
    """K-3: LAST is one, and those that are marked are none."""
    for generation in (SECOND, NEXT):
        notes.put_note(free, generation, "damaged", {"text": "by the test"})
    watched = WatchedRun(free)
    assert watched.look()[0] == []
    runs.put_retired(free, THIRD)
    assert told(watched) == ["K-3 ledger/"]
