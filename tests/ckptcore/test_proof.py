"""The proof: everything that is whole and consistent is proven, every other thing is refuted with its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ckptcore import names, records
from ckptcore.components import PerRank, RankZero
from ckptcore.digests import digest
from ckptcore.errors import UnsupportedFormat
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.proof import Evidence, Proven, Refuted, prove, show_ranks
from tests.ckptcore.support import DERIVED, Job, Sharded, file_store, state

GENERATION = GenerationId(1, 10, 1)
OTHER = digest(b"something else")
States = Callable[[int, int, int], Mapping[str, Any]]


def written(place: Path, state_of: States = state, size: int = 2, **order: Any) -> tuple[str, Evidence]:
    """The run's ID, and the evidence of a save whose ranks have all delivered."""
    job = Job(file_store(place / "run"), size, state_of=state_of)
    run_id = job.open().run.run_id
    generation = job.next_generation(10)
    for rank in range(size):
        job.write(generation, rank, **order)
    coordinator = job.coordinator()
    return run_id, coordinator._evidence(generation, coordinator.receipts(generation))


@pytest.fixture
def case(place: Path) -> tuple[str, Evidence]:
    return written(place)


def receipt(evidence: Evidence, rank: int) -> dict[str, Any]:
    return msgspec.json.decode(evidence.receipts[rank])


def changed(evidence: Evidence, who: int, /, **fields: Any) -> Evidence:
    """The evidence with other fields in one rank's receipt."""
    data = msgspec.json.encode(receipt(evidence, who) | fields)
    return dataclasses.replace(evidence, receipts={**evidence.receipts, who: data})


def reason(case: tuple[str, Evidence], evidence: Evidence) -> str:
    found = prove(case[0], GENERATION, evidence)
    assert isinstance(found, Refuted)
    return found.reason


def test_a_whole_generation_is_proven(case: tuple[str, Evidence]) -> None:
    run_id, evidence = case
    found = prove(run_id, GENERATION, evidence)
    assert isinstance(found, Proven)
    manifest = found.manifest
    assert {name: entry.leaves for name, entry in manifest.components.items()} == {
        "params": 2,
        "optimizer": 4,
        "rng": 2,
        "data": 1,
    }
    assert manifest.guarantee.level == "exact"
    assert {"params.w", "params.b", "optimizer.mu.0", "rank_state.0.rng.key", "rank_state.1.rng.key"} == set(found.arrays)
    for key, data in found.objects.items():
        assert digest(data).split(":")[1] in key
    assert len(records.encode(manifest)) < 8192


def test_the_manifest_is_a_function_of_the_records(case: tuple[str, Evidence]) -> None:
    run_id, evidence = case
    backwards = dataclasses.replace(
        evidence,
        receipts=dict(reversed([*evidence.receipts.items()])),
        layouts=dict(reversed([*evidence.layouts.items()])),
        values=dict(reversed([*evidence.values.items()])),
    )
    one, other = prove(run_id, GENERATION, evidence), prove(run_id, GENERATION, backwards)
    assert isinstance(one, Proven)
    assert isinstance(other, Proven)
    assert records.encode(one.manifest) == records.encode(other.manifest)
    assert one.objects == other.objects


def test_nothing_was_delivered() -> None:
    found = prove("run", GENERATION, Evidence({}, {}, {}, {}))
    assert found == Refuted("no receipt was delivered")


def test_a_missing_rank_is_named(case: tuple[str, Evidence]) -> None:
    run_id, evidence = case
    for rank in (0, 1):
        left = {other: data for other, data in evidence.receipts.items() if other != rank}
        found = prove(run_id, GENERATION, dataclasses.replace(evidence, receipts=left))
        assert isinstance(found, Refuted)
        assert found.missing == (rank,)
        assert f"no receipt from rank {rank} of 2" in found.reason


def test_a_failed_receipt_gives_its_reason(case: tuple[str, Evidence]) -> None:
    assert "rank 1: disk full" in reason(case, changed(case[1], 1, status="failed", reason="disk full"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"claim": "0123456789abcdef"}, "rank 1 and rank 0 disagree on `claim`"),
        ({"topology": OTHER}, "disagree on `topology`"),
        ({"participants": 3}, "disagree on `participants`"),
        ({"guarantee": {"level": "replay", "replay_samples": 3}}, "disagree on `guarantee`"),
        ({"incarnation": 2}, "receipt of rank 1 is unusable"),
        ({"step": 11}, "receipt of rank 1 is unusable"),
        ({"rank": 0}, "receipt of rank 1 is unusable"),
        ({"run_id": "00000000-0000-4000-8000-000000000000"}, "run_id"),
        ({"generation": "000001-000000000010-2"}, "disagree on `generation`"),
        ({"participants": 10**9}, "receipt of rank 1 is unusable"),
        ({"files": "all"}, "receipt of rank 1 is unusable"),
        ({"layout": None}, "receipt of rank 1 is unusable"),
        ({"components": {}}, "array 'params.w': 2 of 4 chunks were written by no rank: 2, 3"),
    ],
)
def test_a_receipt_that_does_not_fit_is_refuted(case: tuple[str, Evidence], fields: dict[str, Any], expected: str) -> None:
    assert expected in reason(case, changed(case[1], 1, **fields))


def test_all_receipts_of_another_generation_are_refuted(case: tuple[str, Evidence]) -> None:
    evidence = case[1]
    for rank in (0, 1):
        evidence = changed(evidence, rank, generation="000001-000000000010-2")
    assert "rank 0's receipt is of generation 000001-000000000010-2" in reason(case, evidence)


def test_garbage_in_place_of_a_receipt_is_refuted(case: tuple[str, Evidence]) -> None:
    for data in (b"", b"\xff\xfe", b"{}", b"[" * 9999, case[1].receipts[0]):
        evidence = dataclasses.replace(case[1], receipts={**case[1].receipts, 1: data})
        assert "receipt of rank 1 is unusable" in reason(case, evidence)


def test_a_receipt_of_a_newer_format_proves_and_refutes_nothing(case: tuple[str, Evidence]) -> None:
    for fields in ({"version": "2.0"}, {"requires": ["erasure-codes"]}):
        with pytest.raises(UnsupportedFormat):
            prove(case[0], GENERATION, changed(case[1], 1, **fields))


def chunks(evidence: Evidence, rank: int, edit: Callable[[dict[str, Any]], None]) -> Evidence:
    components = receipt(evidence, rank)["components"]
    edit(components["params"]["chunks"])
    return changed(evidence, rank, components=components)


def test_gaps_overlaps_and_unknown_chunks_are_refuted(case: tuple[str, Evidence]) -> None:
    run_id, evidence = case
    own = receipt(evidence, 1)["components"]["params"]["chunks"]
    first, digest_ = own["params.w"][0]
    problems = {
        "gap": lambda table: table["params.w"].pop(0),
        "overlap": lambda table: table["params.w"].append([0, digest_]),
        "twice": lambda table: table["params.w"].append([first, digest_]),
        "outside": lambda table: table["params.w"].append([10**6, digest_]),
        "unknown": lambda table: table.update({"params.x": [[0, digest_]]}),
    }
    reasons = {name: reason((run_id, evidence), chunks(evidence, 1, edit)) for name, edit in problems.items()}
    assert "params.w" in reasons["gap"]
    assert "params.w" in reasons["overlap"]
    assert "params.w" in reasons["twice"]
    assert "params.w" in reasons["outside"]
    assert "'params.x', which no layout has" in reasons["unknown"]


def test_a_layout_that_is_absent_foreign_or_other_is_refuted(case: tuple[str, Evidence]) -> None:
    evidence = case[1]
    descriptor = receipt(evidence, 0)["layout"]
    (data,) = evidence.layouts.values()
    assert "is absent or differs" in reason(case, dataclasses.replace(evidence, layouts={}))
    swapped = dataclasses.replace(evidence, layouts={descriptor["digest"]: data + b" "})
    assert "is absent or differs" in reason(case, swapped)
    elsewhere = descriptor | {"key": descriptor["key"].replace("000001-000000000010-1", "000001-000000000020-1")}
    assert "foreign key" in reason(case, changed(evidence, 0, layout=elsewhere))


def with_layout(evidence: Evidence, edit: Callable[[dict[str, Any]], Any]) -> Evidence:
    """The evidence with another layout, properly content-addressed, in every receipt."""
    (data,) = evidence.layouts.values()
    raw = msgspec.json.decode(data)
    edit(raw)
    encoded = msgspec.json.encode(raw)
    descriptor = {"key": names.layout_key(GENERATION, digest(encoded)), "size": len(encoded), "digest": digest(encoded)}
    for rank in evidence.receipts:
        evidence = changed(evidence, rank, layout=descriptor)
    return dataclasses.replace(evidence, layouts={digest(encoded): encoded})


def test_a_layout_that_is_no_layout_is_refuted(case: tuple[str, Evidence]) -> None:
    assert "layouts/" in reason(case, with_layout(case[1], lambda raw: raw.update(components=3)))
    with pytest.raises(UnsupportedFormat):
        prove(case[0], GENERATION, with_layout(case[1], lambda raw: raw.update(version="7.0")))


@pytest.mark.parametrize("field", [{"size": 3}, {"key": "generations/x/y.json"}])
def test_a_layout_that_one_rank_describes_otherwise_is_refuted(case: tuple[str, Evidence], field: dict[str, Any]) -> None:
    """The roster describes each layout once: what a rank says of it otherwise would be what readers are told."""
    evidence = changed(case[1], 1, layout=receipt(case[1], 1)["layout"] | field)
    assert "rank 1's layout has another key or size" in reason(case, evidence)


def test_leaves_that_no_receipt_has_are_refuted(case: tuple[str, Evidence]) -> None:
    def add(raw: dict[str, Any]) -> None:
        leaf = {"kind": "value", "path": [["key", "zz"]], "name": "params.zz"}
        raw["components"]["params"]["leaves"].append(leaf)

    assert "no digest of the value 'params.zz'" in reason(case, with_layout(case[1], add))


def test_values_that_are_not_stored_as_stated_are_refuted(case: tuple[str, Evidence]) -> None:
    evidence = case[1]
    without = dataclasses.replace(evidence, values={})
    assert "values/00000.json" in reason(case, without)
    assert "values lack 'optimizer.count'" in reason(case, changed(evidence, 0, values=None))
    components = receipt(evidence, 0)["components"]
    components["optimizer"]["values"]["optimizer.count"] = OTHER
    both = changed(changed(evidence, 0, components=components), 1, components=components | {"rng": {}})
    assert "optimizer.count" in reason(case, both) or "unusable" in reason(case, both)


def test_unequal_values_are_refused_with_the_way_out(place: Path) -> None:
    def differing(step: int, rank: int, size: int) -> dict[str, Any]:
        return state(step, rank, size) | {"data": {"position": rank}}

    found = prove(*_args(written(place, differing)))
    assert isinstance(found, Refuted)
    assert "'data' differs between rank 0 and rank 1" in found.reason
    assert "PerRank" in found.reason
    assert "RankZero" in found.reason


def test_unequal_host_arrays_are_refused_by_name(place: Path) -> None:
    def differing(step: int, rank: int, size: int) -> dict[str, Any]:
        found = state(step, rank, size)
        found["params"]["b"] = np.full(3, step + rank, np.float64)
        return found

    found = prove(*_args(written(place, differing, size=3)))
    assert isinstance(found, Refuted)
    assert "'params.b' differs between rank 0 and ranks 1, 2" in found.reason


def test_rank_zeros_copy_counts_where_the_caller_says_so(place: Path) -> None:
    def differing(step: int, rank: int, size: int) -> dict[str, Any]:
        return state(step, rank, size) | {"stats": RankZero({"mean": np.full(2, rank), "count": rank})}

    assert isinstance(prove(*_args(written(place, differing))), Proven)


def test_rank_scoped_components_may_differ_in_everything(place: Path) -> None:
    def differing(step: int, rank: int, size: int) -> dict[str, Any]:
        own = {"key": np.zeros(rank + 1, np.uint8)} if rank else {"other": [1, 2]}
        return state(step, rank, size) | {"rng": PerRank(own)}

    found = prove(*_args(written(place, differing)))
    assert isinstance(found, Proven)
    assert set(found.arrays) == {"params.w", "params.b", "optimizer.mu.0", "rank_state.1.rng.key"}


def test_ranks_that_see_an_array_otherwise_are_refuted(place: Path) -> None:
    def differing(step: int, rank: int, size: int) -> dict[str, Any]:
        found = state(step, rank, size)
        found["params"]["w"] = Sharded.of(np.zeros((8, 96 + rank), np.float32), rank, size)
        return found

    found = prove(*_args(written(place, differing)))
    assert isinstance(found, Refuted)
    assert "'params.w' with another type, shape or grid" in found.reason


def test_ranks_that_see_a_component_otherwise_are_refuted(place: Path) -> None:
    def differing(step: int, rank: int, size: int) -> dict[str, Any]:
        found = state(step, rank, size)
        return found | {"data": PerRank(found["data"])} if rank else found

    found = prove(*_args(written(place, differing)))
    assert isinstance(found, Refuted)
    assert "component 'data'" in found.reason or "disagree" in found.reason


def test_a_guarantee_that_the_components_cannot_give_is_refuted(case: tuple[str, Evidence]) -> None:
    run_id, evidence = case
    for rank in (0, 1):
        evidence = changed(evidence, rank, guarantee={"level": "exact", "derived": {}})
    assert "guarantee 'exact': schedule" in reason((run_id, evidence), evidence)


def test_a_reference_without_its_source_is_refuted(case: tuple[str, Evidence]) -> None:
    lead = receipt(case[1], 0)["lead"]
    evidence = changed(case[1], 0, lead=lead | {"references": {"frozen": "000001-000000000005-1"}})
    assert "component 'frozen' is declared unchanged" in reason(case, evidence)
    evidence = changed(case[1], 0, lead=lead | {"references": {"params": "000001-000000000005-1"}})
    assert "both written and declared unchanged" in reason(case, evidence)


@pytest.mark.parametrize(("component", "size", "refuted"), [("rng", 3, True), ("rng", 2, False), ("data", 3, False)])
def test_the_state_of_ranks_is_referred_to_by_as_many_ranks(place: Path, component: str, size: int, refuted: Any) -> None:
    derived = DERIVED | {"data": "step", "rng": "step"}
    source = prove(*_args(written(place / "before", size=size, derived=derived)))
    assert isinstance(source, Proven)
    commit = Decided(GENERATION, source.manifest, OTHER)
    case = written(place, lambda *args: {key: part for key, part in state(*args).items() if key != component}, derived=derived)
    lead = receipt(case[1], 0)["lead"] | {"references": {component: str(GENERATION)}}
    evidence = dataclasses.replace(changed(case[1], 0, lead=lead), references={component: commit})
    found = prove(case[0], GENERATION, evidence)
    assert isinstance(found, Refuted) == refuted
    if isinstance(found, Refuted):
        assert "component 'rng' is declared unchanged" in found.reason
        assert "holds that of 3 ranks, not of 2: save it again" in found.reason


def test_a_topology_that_is_not_the_digested_one_is_refuted(case: tuple[str, Evidence]) -> None:
    lead = receipt(case[1], 0)["lead"]
    lead["topology"]["devices"] = 99
    assert "topology differs from its digest" in reason(case, changed(case[1], 0, lead=lead))


def test_the_text_of_many_problems_is_bounded(place: Path) -> None:
    def many(step: int, rank: int, size: int) -> dict[str, Any]:
        return state(step, rank, size) | {"extra": {f"a{i}": np.full(1, rank) for i in range(100)}}

    found = prove(*_args(written(place, many)))
    assert isinstance(found, Refuted)
    assert "and 88 more" in found.reason
    assert len(found.reason) < 5000


def test_ranks_are_shown_up_to_a_number() -> None:
    assert show_ranks([7]) == "rank 7"
    assert show_ranks([0, 3]) == "ranks 0, 3"
    assert show_ranks(range(1000)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, … (1000 in all)"


def _args(case: tuple[str, Evidence]) -> tuple[str, GenerationId, Evidence]:
    return case[0], GENERATION, case[1]


def test_a_leaf_on_one_rank_and_a_container_on_another_are_refuted(place: Path) -> None:
    def ragged(step: int, rank: int, size: int) -> dict[str, Any]:
        inner: Any = {"y": np.arange(3.0)} if rank else np.arange(2.0)
        return {**state(step, rank, size), "extra": RankZero({"x": inner, "x.z": np.zeros(1)})}

    case = written(place, ragged)
    assert "leaf 'extra.x' of rank 0 is elsewhere a container, which holds 'extra.x.y'" in reason(case, case[1])
