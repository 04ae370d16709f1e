"""The survey of a store: the facts that scenarios name, and how they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_conformance.oracle import keys
from ckpt_conformance.oracle.survey import Facts, survey
from ckpt_conformance.place import FilePlace
from ckptcore.proof import Refuted
from tests.ckptcore.support import Job, file_store, memory_directory
from tests.conformance import runs
from tests.conformance.runs import FIRST, LAST, NEXT, OPEN, edit


def _facts(place: FilePlace, generation: str) -> Facts:
    return survey(place).generations[generation]


def test_a_run_at_a_glance(place: FilePlace) -> None:
    found = survey(place)
    assert found.incarnations == {1: "base", 2: "base"}
    assert found.generations[LAST] == Facts("commit", False, [0, 1], [], [], "whole", "whole", "")  # noqa: FBT003
    assert found.generations[OPEN] == Facts("none", False, [0, 1], [], [], "whole", "none", "")  # noqa: FBT003
    assert found.generations[runs.ABORTED] == Facts("abort", False, [], [], [1], "none", "none", "to have an abort")  # noqa: FBT003
    assert found.generations[FIRST].retired
    assert (found.generations[FIRST].data, found.generations[FIRST].derived) == ("some", "some")
    assert json.loads(json.dumps(found.to_json()))["incarnations"] == {"1": "base", "2": "base"}


def test_nothing_is_there() -> None:
    with memory_directory() as folder:
        assert survey(FilePlace(folder / "run")).to_json() == {"incarnations": {}, "generations": {}}


@pytest.mark.parametrize("prefix", ["values/00001", "state/ranks/00000", "layouts/", "receipts/00000"])
def test_data_that_is_not_whole(place: FilePlace, prefix: str) -> None:
    place.delete(place.keys(f"{keys.folder(LAST)}{prefix}")[0])
    facts = _facts(place, LAST)
    assert facts.derived == "some"
    assert facts.data == ("some" if prefix.startswith(("values", "state")) else "whole")


@pytest.mark.parametrize("prefix", ["index/rng", "roster-", "state/manifest.ocdbt"])
def test_derived_objects_that_are_not_whole(place: FilePlace, prefix: str) -> None:
    place.delete(place.keys(f"{keys.folder(NEXT)}{prefix}")[0])
    facts = _facts(place, NEXT)
    assert (facts.data, facts.derived) == ("whole", "some")


def test_claims_without_base_and_unreadable_records(place: FilePlace) -> None:
    place.write(keys.claim(3), b"{}")
    place.write(keys.decision(LAST), b"{}")
    place.write(keys.receipt(LAST, 0), b"{}")
    found = survey(place)
    assert found.incarnations == {1: "base", 2: "base", 3: "claim"}
    assert found.generations[LAST].decision == "unreadable"
    assert found.generations[LAST].complete == [1]


def test_receipts_of_every_sort(tmp_path: Path) -> None:
    job = Job(file_store(tmp_path), size=3)
    job.open()
    generation = job.next_generation(1)
    for rank in (0, 2):
        job.write(generation, rank)
    place = FilePlace(tmp_path)
    edit(place, keys.receipt(str(generation), 2), lambda record: record.update(status="failed", reason="no room"))
    facts = _facts(place, str(generation))
    assert (facts.complete, facts.failed, facts.data, facts.derived) == ([0], [2], "whole", "none")
    job.coordinator().abort(generation, Refuted("rank 2 failed", (1,)))
    assert _facts(place, str(generation)).missing == [1]
