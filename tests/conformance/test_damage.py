"""Damage does what its name says, to just the object that is meant."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_conformance.jobs import damage, notes
from ckpt_conformance.oracle import canonical, checker, keys
from ckpt_conformance.place import FilePlace
from tests.conformance import runs
from tests.conformance.runs import LAST, NEXT, SECOND, content, read


def _changed(place: FilePlace, ops: list[dict[str, Any]]) -> tuple[dict[str, tuple[bytes | None, bytes | None]], list[str]]:
    """Key → content before and after, of what the ops changed; and what they say that they touched."""
    before = {key: place.read(key) for key in place.keys("")}
    touched = damage.apply(place, ops)
    after = {key: place.read(key) for key in place.keys("")}
    found = {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)}
    return found, touched


def _bits(one: bytes | None, other: bytes | None) -> int:
    assert one is not None
    assert other is not None
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def test_flip(place: FilePlace) -> None:
    changed, touched = _changed(place, [{"flip": keys.claim(1)}])
    assert list(changed) == touched == [keys.claim(1)]
    assert _bits(*changed[keys.claim(1)]) == 1


def test_truncate(place: FilePlace) -> None:
    changed, touched = _changed(place, [{"truncate": f"generations/{LAST}/roster-*.json"}])
    assert list(changed) == touched
    ((before, after),) = changed.values()
    assert after == (before or b"")[: len(before or b"") // 2]


def test_delete_replace_swap_copy(place: FilePlace) -> None:
    one, other = keys.receipt(LAST, 0), keys.receipt(LAST, 1)
    first, second = content(place, one), content(place, other)
    assert damage.apply(place, [{"swap": one, "with": other}]) == [one, other]
    assert (content(place, one), content(place, other)) == (second, first)
    assert damage.apply(place, [{"copy": other, "to": "ledger/copy"}, {"replace": one, "with": "né"}, {"delete": other}]) == [
        "ledger/copy",
        one,
        other,
    ]
    assert (place.read("ledger/copy"), place.read(one), place.read(other)) == (first, "né".encode(), None)


def test_a_pattern_means_one_key_or_the_first(place: FilePlace) -> None:
    pattern = f"generations/{LAST}/receipts/*.json"
    with pytest.raises(ValueError, match="fits 2 keys"):
        damage.apply(place, [{"delete": pattern}])
    assert damage.apply(place, [{"delete": pattern, "first": True}]) == [keys.receipt(LAST, 0)]
    with pytest.raises(ValueError, match="fits 0 keys"):
        damage.apply(place, [{"flip": "generations/*.json"}])


def test_edit(place: FilePlace) -> None:
    key = keys.receipt(LAST, 0)
    ops = [
        {
            "edit": key,
            "set": {
                "step": 9,
                "lead.topology.devices": 4,
                "files.0.size": 1,
                "components.extra.chunks.extra.ragged": [],
                "guarantee.derived.rng": "step",
            },
        }
    ]
    assert damage.apply(place, ops) == [key]
    record = read(place, key)
    assert (record["step"], record["lead"]["topology"]["devices"], record["files"][0]["size"]) == (9, 4, 1)
    assert record["components"]["extra"]["chunks"]["extra.ragged"] == []
    assert record["guarantee"]["derived"] == {"schedule": "optimizer", "rng": "step"}
    assert canonical.encode(record) == content(place, key)
    with pytest.raises(ValueError, match=r"has no nothing\.at\.all"):
        damage.apply(place, [{"edit": key, "set": {"nothing.at.all": 1}}])


def test_edit_and_rename(place: FilePlace) -> None:
    (before, after) = damage.apply(
        place, [{"edit": f"generations/{LAST}/index/rng-*.json", "set": {"component": "other"}, "rename": True}]
    )
    assert place.read(before) is None
    assert read(place, after)["component"] == "other"
    assert not any(problem.clause == "L-14" and problem.key == after for problem in checker.check(place))
    with pytest.raises(ValueError, match="no digest"):
        damage.apply(place, [{"edit": keys.claim(1), "set": {"incarnation": 2}, "rename": True}])


def test_a_chunk_of_a_large_array(place: FilePlace) -> None:
    op = {"flip": {"chunk": {"array": "params.w", "cell": 3, "generation": NEXT}}}
    changed, touched = _changed(place, [op])
    assert list(changed) == touched
    ((before, after),) = changed.values()
    assert _bits(before, after) == 1
    assert {problem.key for problem in checker.check(place)} == {f"generations/{NEXT}/state/params.w/c/1/1"}


@pytest.mark.parametrize("array", ["extra.four", "extra.ragged", "rank_state.1.rng.key", "extra.scale"])
def test_chunks_of_any_sort(place: FilePlace, array: str) -> None:
    """Small cells lie inside of a node of the database, which has a checksum of its own: more than the cell may be lost."""
    damage.apply(place, [{"flip": {"chunk": {"array": array, "cell": 0, "generation": NEXT, "nth": 0}}}])
    problems = checker.check(place)
    assert problems
    assert all(NEXT in problem.key for problem in problems)


def test_chunks_are_swapped_with_their_checksums(place: FilePlace) -> None:
    """Nothing but the digests can tell."""
    cell = {"array": "params.w", "generation": NEXT}
    damage.apply(place, [{"swap": {"chunk": {**cell, "cell": 0}}, "with": {"chunk": {**cell, "cell": 2}}}])
    assert {(problem.clause, problem.key[-11:]) for problem in checker.check(place)} == {
        ("D-3", "rams.w/c/0/0"[1:]),
        ("D-3", "ams.w/c/1/0"),
    }


def test_a_chunk_is_copied_with_its_checksum(place: FilePlace) -> None:
    """Two cells of one content afterwards: the copy is intact, and in the wrong place."""
    source, target = ({"chunk": {"array": "params.w", "generation": NEXT, "cell": cell}} for cell in (0, 2))
    small = {"chunk": {"array": "params.b", "generation": NEXT, "cell": 0, "nth": 0}}
    with pytest.raises(ValueError, match="of another size"):
        damage.apply(place, [{"copy": source, "to": small}])
    damage.apply(place, [{"copy": source, "to": target}])
    assert {(problem.clause, problem.key[-12:]) for problem in checker.check(place)} == {("D-3", "rams.w/c/1/0")}


def test_a_new_key_and_a_pattern_to_write_to(place: FilePlace) -> None:
    """`replace` and `copy` make an object that is not there; with a `*` it has to be."""
    changed, touched = _changed(place, [{"replace": "ledger/stray", "with": "{}"}, {"copy": "run.json", "to": "kept/run.json"}])
    assert changed == {"ledger/stray": (None, b"{}"), "kept/run.json": (None, place.read("run.json"))}
    assert touched == ["ledger/stray", "kept/run.json"]
    changed, touched = _changed(place, [{"copy": "run.json", "to": f"generations/{LAST}/roster-*.json"}])
    assert list(changed) == touched
    assert [after for _, after in changed.values()] == [place.read("run.json")]
    with pytest.raises(ValueError, match="fits 0 keys"):
        damage.apply(place, [{"copy": "run.json", "to": "nowhere/*.json"}])


def test_chunks_that_are_not_there(place: FilePlace) -> None:
    for chunk, message in (
        ({"array": "params.nothing", "cell": 0}, "has the array"),
        ({"array": "params.w", "cell": 0, "generation": "000009-000000000001-1"}, "has the array"),
    ):
        with pytest.raises(ValueError, match=message):
            damage.apply(place, [{"flip": {"chunk": chunk}}])


@pytest.mark.parametrize("op", [{}, {"flip": "a", "delete": "b"}, {"erase": "run.json"}])
def test_an_op_does_one_thing(place: FilePlace, op: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does one of"):
        damage.apply(place, [op])


def test_notes_are_as_the_spec_says(place: FilePlace) -> None:
    for kind, fields in runs.NOTES:
        assert checker.check(place) == []
        key = notes.put_note(place, LAST, kind, fields)
        assert read(place, key)["kind"] == kind
    assert read(place, f"notes/{SECOND}/tag-best.json")["tag"] == "best"
    with pytest.raises(ValueError, match="holds no run"):
        notes.put_note(FilePlace(place.root / "nothing"), LAST, "pin")
