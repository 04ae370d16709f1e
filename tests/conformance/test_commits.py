"""Commits that do not follow from what was delivered, and data that is not what a commit says: the oracle tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ckpt_conformance.oracle import canonical, checker, digests, keys
from ckpt_conformance.place import FilePlace, Place
from tests.conformance import runs
from tests.conformance.changes import DIGEST, Change, delete, reported, truncate
from tests.conformance.runs import LAST, NEXT, SECOND, content, described, edit, read, rename

RECEIPT, OTHER = keys.receipt(LAST, 0), keys.receipt(LAST, 1)


def receipt(alter: Callable[[Any], object], rank: int = 0) -> Change:
    return lambda place: edit(place, keys.receipt(LAST, rank), alter)


# Commits that do not follow from what was delivered, though every digest in them is right


def cell(array: str, cells: list[int], component: str = "extra") -> Callable[[Any], object]:
    """Let a receipt list other cells of an array."""

    def alter(record: Any) -> None:
        record["components"][component]["chunks"][array] = [[number, DIGEST] for number in cells]

    return alter


def other_layout(alter: Callable[[Any], object]) -> Change:
    """Give rank 1 a layout of its own."""

    def apply(place: Place) -> None:
        key = read(place, OTHER)["layout"]["key"]
        record = read(place, key)
        alter(record["components"])
        target = keys.layout(LAST, digests.digest(canonical.encode(record)))
        place.write(target, canonical.encode(record))
        edit(place, OTHER, lambda record: record.update(layout=described(place, target)))

    return apply


def other_value(place: Place) -> None:
    """Another value than the digest that the receipt states; the record itself is proven."""
    edit(place, keys.values(LAST, 1), lambda record: record["own"]["rng"].update({"rng.note": "another"}))
    edit(place, OTHER, lambda record: record.update(values=described(place, keys.values(LAST, 1))))


def no_value(place: Place) -> None:
    edit(place, keys.values(LAST, 0), lambda record: record["shared"]["optimizer"].pop("optimizer.lr"))
    edit(place, RECEIPT, lambda record: record.update(values=described(place, keys.values(LAST, 0))))


def values_elsewhere(place: Place) -> None:
    place.write(f"{keys.folder(LAST)}values/other.json", content(place, keys.values(LAST, 0)))
    edit(place, RECEIPT, lambda record: record["values"].update(key=f"{keys.folder(LAST)}values/other.json"))


def unproven_coverage(place: Place) -> None:
    """The data cursor is kept in a component of each rank's own."""
    for key in (RECEIPT, OTHER):
        edit(place, key, lambda r: r["guarantee"].update(level="coverage", derived={"schedule": "optimizer", "data": "rng"}))


def unlisted_file(place: Place) -> None:
    nonce = read(place, OTHER)["database"]
    place.write(f"{keys.database(LAST, 1, nonce)}d/00", b"more")


def _leaf(components: Any, name: str) -> Any:
    return next(leaf for leaf in components["extra"]["leaves"] if leaf["name"] == name)


DELIVERIES: dict[str, tuple[Change, str]] = {
    "a-cell-twice": (receipt(cell("extra.ragged", [0, 1, 2])), "P-35"),
    "a-cell-missing": (receipt(cell("extra.ragged", [0])), "P-35"),
    "a-cell-of-no-grid": (receipt(cell("extra.ragged", [0, 1, 99])), "P-35"),
    "an-array-of-no-layout": (receipt(cell("extra.unknown", [0])), "P-35"),
    "an-array-of-another-rank-alone": (receipt(cell("rng.unknown", [0], "rng")), "P-35"),
    "another-participant": (receipt(lambda r: r.update(participants=3), 1), "P-35"),
    "another-guarantee": (receipt(lambda r: r["guarantee"].update(level="coverage"), 1), "P-35"),
    "another-topology": (receipt(lambda r: r.update(topology=DIGEST)), "P-35"),
    "a-lead-of-another-topology": (receipt(lambda r: r["lead"]["topology"].update(devices=9)), "D-9"),
    "a-lead-of-more-processes": (receipt(lambda r: r["lead"]["topology"].update(participants=3)), "O-4"),
    "a-claim-of-nobody": (receipt(lambda r: r.update(claim="0123456789abcdef")), "R-50"),
    "a-value-of-another-digest": (receipt(lambda r: r["components"]["data"]["values"].update({"data": DIGEST}), 1), "P-35"),
    "a-value-of-no-digest": (receipt(lambda r: r["components"]["rng"]["values"].clear(), 1), "P-35"),
    "a-replica-of-another-digest": (
        receipt(lambda r: r["components"]["extra"]["replicas"].update({"extra.scale": DIGEST}), 1),
        "P-35",
    ),
    "more-bytes": (receipt(lambda r: r["components"]["extra"].update(bytes=1)), "R-51"),
    "a-file-of-another-size": (receipt(lambda r: r["files"][0].update(size=1)), "P-35"),
    "a-file-of-another-digest": (receipt(lambda r: r["files"][-1].update(digest=DIGEST)), "P-35"),
    "a-file-twice": (receipt(lambda r: r["files"].append(r["files"][-1])), "A-22"),
    "a-file-without-digest": (receipt(lambda r: r["files"][-1].update(digest=None)), "A-22"),
    "files-without-database": (receipt(lambda r: r.update(database=None), 1), "L-15"),
    "a-file-that-is-not-listed": (unlisted_file, "A-22"),
    "values-elsewhere": (values_elsewhere, "O-4"),
    "another-value": (other_value, "D-6"),
    "no-value": (no_value, "P-35"),
    "nothing-for-schedule": (receipt(lambda r: r["guarantee"].update(derived={})), "G-4"),
    "derived-from-nothing": (receipt(lambda r: r["guarantee"].update(derived={"schedule": "nothing"})), "G-4"),
    "unproven-coverage": (unproven_coverage, "G-4"),
    "another-kind": (other_layout(lambda c: c["extra"].update(kind="other")), "P-35"),
    "another-dtype": (other_layout(lambda c: _leaf(c, "extra.scale").update(dtype="float16", stored_dtype="float16")), "P-35"),
    "another-grid": (other_layout(lambda c: _leaf(c, "extra.z").update(chunk_shape=[20])), "P-35"),
    "a-path-in-a-path": (
        other_layout(
            lambda c: c["extra"]["leaves"].insert(
                next(i for i, leaf in enumerate(c["extra"]["leaves"]) if leaf["name"] == "extra.scale") + 1,
                {"kind": "value", "name": "extra.scale.inner", "path": [["key", "scale"], ["key", "inner"]]},
            )
        ),
        "P-35",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DELIVERIES)
def test_a_commit_that_nobody_proved_is_reported(place: FilePlace, name: str) -> None:
    apply, clause = DELIVERIES[name]
    apply(place)
    before = checker.check(place)
    try:
        runs.derive_anew(place, LAST)
    except (AssertionError, KeyError, TypeError):  # what cannot be derived was not
        assert before
        return
    reported(place, clause, LAST)


def test_a_layout_elsewhere_is_reported(place: FilePlace) -> None:
    key = read(place, OTHER)["layout"]["key"]
    place.write(f"generations/{LAST}/layouts/other.json", content(place, key))
    edit(place, OTHER, lambda record: record["layout"].update(key=f"generations/{LAST}/layouts/other.json"))
    roster = place.keys(f"generations/{LAST}/roster-")[0]
    edit(place, roster, lambda record: record["ranks"][1].update(receipt=described(place, OTHER)))
    edit(place, keys.decision(LAST), lambda record: record.update(roster=described(place, rename(place, roster))))
    reported(place, "L-14", OTHER)


def test_an_index_that_follows_from_nothing_is_reported(place: FilePlace) -> None:
    """Every descriptor fits, but the index does not say what the receipts do."""
    index = place.keys(f"generations/{LAST}/index/rng")[0]
    edit(place, index, lambda record: record["leaves"]["rank_state.0.rng.key"].update(chunks=[DIGEST]))
    renamed = rename(place, index)
    edit(place, keys.decision(LAST), lambda record: record["components"]["rng"].update(index=described(place, renamed)))
    reported(place, "R-60", keys.decision(LAST))


def test_a_reference_to_what_is_no_commit_is_reported(place: FilePlace) -> None:
    edit(place, RECEIPT, lambda record: record["lead"]["references"].update(params=runs.ABORTED))
    roster = place.keys(f"generations/{LAST}/roster-")[0]
    edit(place, roster, lambda record: record["ranks"][0].update(receipt=described(place, RECEIPT)))
    edit(place, keys.decision(LAST), lambda record: record.update(roster=described(place, rename(place, roster))))
    reported(place, "P-35", RECEIPT)


# Data


def put_in_view(key: str, data: bytes | None) -> Change:
    def apply(place: Place) -> None:
        runs.view(place, NEXT).write(key, data).result()

    return apply


def relist(place: Place, rank: int) -> None:
    """List the files of a rank's database as they are now, and derive all that follows."""
    at = keys.receipt(LAST, rank)
    folder = keys.database(LAST, rank, read(place, at)["database"])
    files = [
        {"path": key.removeprefix(folder), "size": place.size(key), "digest": digests.digest(content(place, key))}
        for key in place.keys(folder)
    ]
    edit(place, at, lambda record: record.update(files=files))
    runs.derive_anew(place, LAST)


def more_in_a_database(place: Place) -> None:
    folder = keys.database(LAST, 1, read(place, OTHER)["database"])
    runs.database(place, folder).write("extra.more/zarr.json", b"{}").result()
    relist(place, 1)


def less_in_a_database(place: Place) -> None:
    folder = keys.database(LAST, 1, read(place, OTHER)["database"])
    runs.database(place, folder).write("extra.flags/c/0", None).result()
    relist(place, 1)


def another_configuration(place: Place) -> None:
    """The same content in a database that was made otherwise."""
    folder = keys.database(LAST, 1, read(place, OTHER)["database"])
    old = runs.database(place, folder)
    held = {key: old.read(key).result().value for key in old.list().result()}
    for key in place.keys(folder):
        place.delete(key)
    new = runs.database(place, folder, max_inline_value_bytes=100)
    for key, value in held.items():
        new.write(key, value).result()
    relist(place, 1)


DATA: dict[str, tuple[Change, str, str]] = {
    "file-truncated": (truncate(f"generations/{NEXT}/state/ranks/00000"), "P-35", "state/ranks/00000"),
    "file-deleted": (delete(f"generations/{NEXT}/state/ranks/00000"), "P-35", "state/ranks/00000"),
    "view-deleted": (delete(f"generations/{NEXT}/state/manifest.ocdbt"), "A-25", "params.w/zarr.json"),
    "view-garbage": (truncate(f"generations/{NEXT}/state/manifest.ocdbt"), "A-24", "state/"),
    "view-with-more": (put_in_view("params.more/zarr.json", b"{}"), "A-25", "params.more"),
    "view-with-less": (put_in_view("params.w/c/0/0", None), "A-25", "params.w/c/0/0"),
    "view-with-other-metadata": (put_in_view("params.w/zarr.json", b"{}"), "A-16", "params.w/zarr.json"),
    "view-with-another-cell": (put_in_view("params.b/c/0", b"\0" * 28), "A-17", "params.b/c/0"),
    "database-with-more": (more_in_a_database, "A-23", "extra.more"),
    "database-with-less": (less_in_a_database, "A-22", "extra.flags/c/0"),
    "database-made-otherwise": (another_configuration, "A-19", "state/ranks/00001"),
}


@pytest.mark.parametrize("name", DATA)
def test_a_change_to_data_is_reported(place: FilePlace, name: str) -> None:
    apply, clause, key = DATA[name]
    apply(place)
    reported(place, clause, key)


def test_a_view_of_another_step_is_reported(place: FilePlace) -> None:
    """A cell with a right checksum and another content."""
    other = runs.view(place, SECOND).read("params.w/c/0/0").result().value
    put_in_view("params.w/c/0/0", bytes(other))(place)
    reported(place, "D-3", f"{NEXT}/state/params.w/c/0/0")


def test_the_data_of_a_source_is_read_too(place: FilePlace) -> None:
    """SECOND holds a component of THIRD; if it is retired, nobody else looks at it."""
    runs.retire(place, SECOND)
    reported(place, "A-17", f"{SECOND}/state/extra")
