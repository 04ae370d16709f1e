"""The oracle: real runs have no problem, and every single change to one is reported, with the clause that it breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt_conformance.jobs import notes
from ckpt_conformance.oracle import checker, keys
from ckpt_conformance.place import FilePlace, Place
from tests.ckptcore.support import Job, Sharded, file_store, state
from tests.conformance import runs
from tests.conformance.changes import DIGEST, Change, change, delete, flip, reported, truncate
from tests.conformance.runs import FIRST, LAST, NEXT, OPEN, SECOND, THIRD, content, edit, read

RECEIPT, OTHER = keys.receipt(LAST, 0), keys.receipt(LAST, 1)


def test_a_real_run_has_no_problem(place: FilePlace) -> None:
    assert checker.check(place) == []
    kinds = {keys.named(key).kind for key in place.keys("") if keys.named(key)}  # pyright: ignore[reportOptionalMemberAccess]
    assert kinds == {"run", "claim", "base", "layout", "values", "receipt", "index", "roster", "decision", "retired", "note"}


def test_nothing_is_no_problem(tmp_path: Path) -> None:
    assert checker.check(FilePlace(tmp_path / "nothing")) == []


def test_irregular_grids_and_four_ranks(tmp_path: Path) -> None:
    def four(step: int, rank: int, size: int) -> dict[str, Any]:
        uneven = Sharded.of(np.arange(2 * 10007, dtype=np.int16).reshape(10007, 2), rank, size)
        return {**state(step, rank, size), "extra": {"uneven": uneven}}

    job = Job(file_store(tmp_path), size=4, state_of=four)
    job.open()
    generation = str(job.save(1).generation)
    place = FilePlace(tmp_path)
    assert checker.check(place) == []
    (layout,) = place.keys(f"generations/{generation}/layouts/")
    (rows, columns) = read(place, layout)["components"]["extra"]["leaves"][0]["cuts"]
    assert {0, 2501, 5003, 7505, 10007} < set(rows)
    assert columns == [0, 2]


# Single changes to records


def not_canonical(place: Place) -> None:
    key = keys.claim(1)
    place.write(key, json.dumps(read(place, key), sort_keys=True).encode())


def left_out(place: Place) -> None:
    edit(place, keys.base(1), lambda record: record.pop("skipped"))


def a_note(**fields: Any) -> Change:
    return lambda place: notes.put_note(place, SECOND, fields.pop("kind"), fields)


def retire(generation: str) -> Change:
    return lambda place: runs.retire(place, generation)


RECORDS: dict[str, tuple[Change, str, str]] = {
    "run-truncated": (truncate("run.json"), "R-4", "run.json"),
    "run-deleted": (delete("run.json"), "P-5", "run.json"),
    "run-of-version-2": (change("run.json", version="2.0"), "R-11", "run.json"),
    "claim-requires-a-feature": (change(keys.claim(2), requires=["org.example.x"]), "R-11", keys.claim(2)),
    "claim-not-canonical": (not_canonical, "R-1", keys.claim(1)),
    "claim-of-another-number": (change(keys.claim(2), incarnation=3), "R-12", keys.claim(2)),
    "claim-with-a-mesh-of-one-axis-too-few": (
        change(keys.claim(2), topology__meshes=[{"axes": ["x"], "shape": [1, 2], "devices": DIGEST}]),
        "R-6",
        keys.claim(2),
    ),
    "claim-deleted": (delete(keys.claim(1)), "P-8", keys.claim(1)),
    "claim-skipped": (lambda p: p.write(keys.claim(4), content(p, keys.claim(1))), "P-8", keys.claim(3)),
    "base-deleted": (delete(keys.base(1)), "P-20", keys.base(1)),
    "base-without-an-optional-field": (left_out, "R-7", keys.base(1)),
    "base-of-another-run": (change(keys.base(2), run_id="0" * 8 + "-0000-4000-8000-" + "0" * 12), "R-12", keys.base(2)),
    "base-of-another-nonce": (change(keys.base(2), nonce="0123456789abcdef"), "R-30", keys.base(2)),
    "base-of-the-same-incarnation": (change(keys.base(2), generation=NEXT), "R-31", keys.base(2)),
    "base-of-another-manifest": (change(keys.base(2), manifest=DIGEST), "R-30", keys.base(2)),
    "base-is-an-abort": (change(keys.base(2), generation=runs.ABORTED), "R-30", keys.base(2)),
    "base-that-is-new-and-old": (change(keys.base(2), reason="new"), "P-28", keys.base(2)),
    "base-rolled-forward-by-nobody": (change(keys.base(2), reason="rolled-forward"), "P-28", keys.base(2)),
    "base-settled-otherwise": (
        change(keys.base(2), settled=[{"generation": SECOND, "decision": "abort", "reason": ""}]),
        "P-10",
        keys.base(2),
    ),
    "base-settled-its-own": (
        change(keys.base(2), settled=[{"generation": NEXT, "decision": "commit", "reason": ""}]),
        "P-10",
        keys.base(2),
    ),
    "base-settled-out-of-order": (
        change(keys.base(2), settled=[{"generation": g, "decision": "commit", "reason": ""} for g in (THIRD, SECOND)]),
        "R-30",
        keys.base(2),
    ),
    "decision-of-no-kind": (change(keys.decision(LAST), decision="perhaps"), "R-66", keys.decision(LAST)),
    "decision-of-another-generation": (
        change(keys.decision(runs.ABORTED), generation=LAST),
        "R-12",
        keys.decision(runs.ABORTED),
    ),
    "abort-by-nobody": (change(keys.decision(runs.ABORTED), decided_by=9), "R-65", keys.decision(runs.ABORTED)),
    "abort-by-a-collector": (change(keys.decision(runs.ABORTED), decided_by=None), "R-6", keys.decision(runs.ABORTED)),
    "abort-without-incarnation": (
        lambda p: edit(p, keys.decision(runs.ABORTED), lambda r: r.pop("decided_by")),
        "R-7",
        keys.decision(runs.ABORTED),
    ),
    "abort-without-reason": (
        lambda p: edit(p, keys.decision(runs.ABORTED), lambda r: r.pop("reason")),
        "R-7",
        keys.decision(runs.ABORTED),
    ),
    "retired-another-manifest": (change(keys.retired(FIRST), manifest=DIGEST), "R-68", keys.retired(FIRST)),
    "retired-without-decision": (delete(keys.decision(FIRST)), "R-68", keys.retired(FIRST)),
    "retired-the-newest": (retire(LAST), "K-2", keys.retired(LAST)),
    "note-of-another-name": (
        a_note(kind="verified", name="verified-000000000000"),
        "R-72",
        f"notes/{SECOND}/verified-000000000000.json",
    ),
    "note-tag-without-tag": (a_note(kind="pin", name="pin", tag="x"), "R-70", f"notes/{SECOND}/pin.json"),
    "note-with-infinite-metric": (
        a_note(kind="metrics", name="m", metrics={"x": float("inf")}),
        "R-70",
        f"notes/{SECOND}/m.json",
    ),
    "manifest-at-another-time": (change(keys.decision(LAST), captured="2026-01-01T00:00:00Z"), "R-60", keys.decision(LAST)),
    "manifest-of-another-claim": (change(keys.decision(LAST), claim="0123456789abcdef"), "R-60", keys.decision(LAST)),
    "manifest-of-another-parent-digest": (change(keys.decision(LAST), parent_manifest=DIGEST), "R-60", keys.decision(LAST)),
    "manifest-with-more-bytes": (change(keys.decision(LAST), components__rng__bytes=5), "R-60", keys.decision(LAST)),
    "manifest-of-another-source": (change(keys.decision(LAST), components__params__source=THIRD), "O-5", keys.decision(LAST)),
    "manifest-of-a-source-index-elsewhere": (
        change(keys.decision(LAST), components__params__index__key=f"generations/{LAST}/index/params-x.json"),
        "L-14",
        keys.decision(LAST),
    ),
    "manifest-promises-more": (change(keys.decision(NEXT), guarantee__derived={}), "G-4", keys.decision(NEXT)),
    "manifest-of-another-step": (change(keys.decision(LAST), step=7), "R-54", keys.decision(LAST)),
    "roster-flipped": (flip(f"generations/{LAST}/roster-"), "D-4", "roster-"),
    "roster-deleted": (delete(f"generations/{LAST}/roster-"), "D-4", "roster-"),
    "index-flipped": (flip(f"generations/{LAST}/index/rng"), "L-14", "index/rng"),
    "index-deleted": (delete(f"generations/{LAST}/index/rng"), "D-4", "index/rng"),
    "layout-flipped": (flip(f"generations/{LAST}/layouts/"), "D-4", "layouts/"),
    "layout-of-a-retired-generation-flipped": (flip(f"generations/{FIRST}/layouts/"), "L-14", "layouts/"),
    "values-flipped": (flip(f"generations/{LAST}/values/00001"), "D-4", "values/00001"),
    "values-deleted": (delete(f"generations/{LAST}/values/00001"), "D-4", "values/00001"),
    "receipt-changed": (change(OTHER, phases={}), "D-4", OTHER),
    "receipt-deleted": (delete(OTHER), "D-4", OTHER),
    "values-of-another-rank": (change(keys.values(LAST, 1), rank=0), "R-12", keys.values(LAST, 1)),
    "receipt-of-another-claim": (change(keys.receipt(OPEN, 1), claim="0123456789abcdef"), "R-50", keys.receipt(OPEN, 1)),
    "receipt-for-lost-values": (delete(f"generations/{OPEN}/values/00001"), "P-32", keys.receipt(OPEN, 1)),
    "receipt-for-a-lost-layout": (delete(f"generations/{OPEN}/layouts/"), "P-32", f"{OPEN}/receipts/"),
    "receipt-for-a-lost-file": (delete(f"generations/{OPEN}/state/ranks/00001"), "P-32", keys.receipt(OPEN, 1)),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_change_to_a_record_is_reported(place: FilePlace, name: str) -> None:
    apply, clause, key = RECORDS[name]
    apply(place)
    reported(place, clause, key)


# What is excused


HIDING = {
    "manifest": keys.decision(THIRD),
    "roster": f"generations/{THIRD}/roster-",
    "receipt": keys.receipt(THIRD, 1),
    "index": f"generations/{THIRD}/index/params",
    "values": keys.values(THIRD, 1),
}


@pytest.mark.parametrize("name", HIDING)
def test_what_is_damaged_hides_nothing_else_of_its_generation(place: FilePlace, name: str) -> None:
    """One object is excused; a cell of the same commit that has another content is told of all the same."""
    (key,) = place.keys(HIDING[name])
    flip(key)(place)
    assert checker.check(place, damaged=[key]) == []
    other = bytes(runs.view(place, SECOND).read("params.w/c/0/0").result().value)
    runs.view(place, THIRD).write("params.w/c/0/0", other).result()
    found = {(problem.clause, problem.key) for problem in checker.check(place, damaged=[key])}
    assert found == {("D-3", f"generations/{THIRD}/state/params.w/c/0/0")}


def test_no_generation_is_excused_as_a_whole(place: FilePlace) -> None:
    flip(f"generations/{LAST}/roster-")(place)
    assert checker.check(place, damaged=[LAST]) == checker.check(place) != []


@pytest.mark.parametrize("key", [keys.claim(1), keys.base(2), "run.json", keys.retired(FIRST), keys.decision(FIRST)])
@pytest.mark.parametrize("how", [delete, flip, truncate])
def test_a_damaged_record_is_excused_and_nothing_follows_from_it(
    place: FilePlace, key: str, how: Callable[[str], Change]
) -> None:
    how(key)(place)
    assert checker.check(place)
    assert checker.check(place, damaged=[key]) == []


def test_objects_of_no_place_are_ignored(place: FilePlace) -> None:
    for key in (
        "latest",
        "probe/x",
        "ledger/readme.txt",
        "incarnations/000001/other",
        f"generations/{LAST}/more/x",
        "generations/000000-000000000001-1/x",
    ):
        place.write(key, b"whatever")
    assert checker.check(place) == []


def test_decisive_records(place: FilePlace) -> None:
    found = checker.decisive(place)
    assert {key.split("/")[0] for key in found} == {"run.json", "incarnations", "ledger"}
    assert len(found) == 1 + 4 + 6 + 1
    assert all(place.read(key) == data for key, data in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_run_of_a_backend_has_no_problem(tmp_path: Path, backend: str) -> None:
    """Of a framework, through its adapter: sharded, replicated and host arrays, aliases, values."""
    w = {"component": "params", "dtype": "bfloat16", "shape": [8, 96], "sharding": ["x", None]}
    leaves = [
        {**w, "path": [["key", "w"]], "name": "params.w"},
        {**w, "path": [["key", "tied"]], "name": "params.tied", "alias": "params.w"},
        {"component": "params", "path": [["key", "e"]], "name": "params.e", "dtype": "float32", "shape": [0, 4]},
        {"component": "params", "path": [["key", "n"]], "name": "params.n", "value": "bigint"},
    ]
    request = {
        "contract": 1,
        "verb": "save",
        "store": (tmp_path / "run").as_uri(),
        "rank": 0,
        "processes": 1,
        "mesh": {"axes": ["x"], "shape": [1]},
        "rendezvous": "127.0.0.1:1",
        "state": {"components": {"params": {"scope": "global"}}, "leaves": leaves},
        "resume": "head",
        "derived": dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step"),
        "saves": [{"step": 1}, {"step": 2, "metrics": {"loss": 0.5}}],
    }
    command = [sys.executable, "-m", f"ckpt_conformance.adapters.{backend}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(checker.__file__).parents[depth]) for depth in (1, 2))}
    given: dict[str, Any] = {"input": json.dumps(request), "capture_output": True, "text": True, "timeout": 100, "check": False}
    done = subprocess.run(command, **given, env=environment)  # noqa: PLW1510 - `check` is given
    assert done.returncode == 0, done.stderr
    place = FilePlace(tmp_path / "run")
    assert [save["outcome"] for save in json.loads(done.stdout.splitlines()[-1])["saves"]] == ["committed", "committed"]
    assert checker.check(place) == []
    flip("generations/000001-000000000002-1/state/ranks/")(place)
    assert {keys.generation_of(problem.key) for problem in checker.check(place)} == {"000001-000000000002-1"}
