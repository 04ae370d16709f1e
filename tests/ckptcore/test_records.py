from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ckptcore import canonical, records
from ckptcore.errors import DamageError, ForeignRecord, InvalidRecord, UnsupportedFormat
from ckptcore.records import (
    RECORDS,
    Abort,
    ArrayLeaf,
    Base,
    Claim,
    Committed,
    Delivered,
    Descriptor,
    File,
    Guarantee,
    Index,
    IndexedLeaf,
    Layout,
    LayoutComponent,
    Lead,
    Manifest,
    Mesh,
    Note,
    Parent,
    Receipt,
    Record,
    RetiredRecord,
    Roster,
    Run,
    Settled,
    Skipped,
    StagedRecord,
    StoreFacts,
    Topology,
    ValueLeaf,
    Values,
    Written,
)
from tests.ckptcore.supervised import CAUGHT_UP, ENDED, PLAN

D = "blake3:" + "0" * 64
RUN = "01234567-89ab-cdef-0123-456789abcdef"
TIME = "2026-01-31T12:00:00.5Z"
GENERATION, PARENT = "000002-000000000100-1", "000001-000000000050-1"
NONCE = "0123456789abcdef"
STORED = Descriptor(key="generations/x/y.json", size=10, digest=D)
TOPOLOGY = Topology(framework="jax", platform="cpu", participants=2, devices=4, meshes=[Mesh(axes=["x"], shape=[4], devices=D)])


def array(name: str = "params.w", **changes: Any) -> ArrayLeaf:
    path = tuple(("key", part) for part in name.split(".")[1:])
    facts = {"path": path, "name": name, "dtype": "float32", "stored_dtype": "float32", "shape": (4, 6), "chunk_shape": (2, 6)}
    return ArrayLeaf(**{**facts, **changes})


LEAD = Lead(
    captured=TIME,
    topology=TOPOLOGY,
    parent=PARENT,
    parent_manifest=D,
    versions={"jax": "1"},
    references={"base": PARENT},
    metadata={"a": 1},
)
RECEIPT = Receipt(
    run_id=RUN,
    generation=GENERATION,
    incarnation=2,
    claim=NONCE,
    step=100,
    rank=0,
    participants=2,
    status="complete",
    guarantee=Guarantee(level="replay", derived={"rng": "step"}, replay_samples=5),
    topology=D,
    layout=STORED,
    values=STORED,
    database=NONCE,
    files=[File(path="manifest.ocdbt", size=1, digest=D), File(path="d/0a", size=2)],
    components={"params": Written(bytes=96, chunks={"params.w": [(0, D), (1, D)]})},
    phases={"stage_ns": 5},
    lead=LEAD,
)
FAILED = Receipt(
    run_id=RUN,
    generation=GENERATION,
    incarnation=2,
    claim=NONCE,
    step=100,
    rank=1,
    participants=2,
    status="failed",
    reason="disk full",
)
COMMITTED = Committed(kind="parameters", scope="global", leaves=1, bytes=96, digest=D, index=STORED, source=PARENT)
MANIFEST = Manifest(
    run_id=RUN,
    generation=GENERATION,
    incarnation=2,
    claim=NONCE,
    step=100,
    parent=PARENT,
    parent_manifest=D,
    guarantee=Guarantee(level="exact"),
    topology=TOPOLOGY,
    components={"params": COMMITTED},
    roster=STORED,
    captured=TIME,
    versions={"jax": "1"},
    metadata={"note": ["free", {"$float": "0.5"}]},
)
BASE = Base(
    run_id=RUN,
    incarnation=2,
    nonce=NONCE,
    created=TIME,
    generation=PARENT,
    manifest=D,
    reason="newest",
    guarantee="coverage",
    settled=[Settled(generation=PARENT, decision="commit", reason="proven")],
    skipped=[Skipped(generation=PARENT, reason="damaged")],
    store=StoreFacts(driver="file", put_if_absent=True, read_after_write=True, list_after_write=True),
)
LAYOUT = Layout(
    components={
        "params": LayoutComponent(
            kind="parameters",
            scope="global",
            leaves=[
                array("params"),
                array("params.a", chunk_shape=None, alias="params.w"),
                array("params.b", chunk_shape=None, cuts=((0, 1, 4), (0, 6)), weak_type=True, sharding="P('x')"),
                array("params.c", shape=(), chunk_shape=()),
                array("params.d", shape=(0, 3), chunk_shape=(1, 3)),
                ValueLeaf(path=(("key", "v"), ("index", 0), ("attr", "x"), ("key", 5)), name="params.v.0.x.5"),
                array("params.w", prng_impl="threefry2x32", memory_kind="pinned_host"),
            ],
        ),
        "params2": LayoutComponent(kind="custom", scope="rank", leaves=[]),
    }
)
EXAMPLES: dict[str, Record] = {
    "run": Run(
        run_id=RUN, created=TIME, parent=Parent(run_id=RUN, url="file:///x", generation=PARENT, manifest=D, components=["params"])
    ),
    "claim": Claim(run_id=RUN, incarnation=2, nonce=NONCE, created=TIME, topology=TOPOLOGY),
    "base": BASE,
    "layout": LAYOUT,
    "values": Values(
        generation=GENERATION, rank=1, shared={"params": {"params.v": [1, {"$float": "0.5"}]}}, own={"rng": {"rng.x": None}}
    ),
    "receipt": RECEIPT,
    "index": Index(component="params", leaves={"params.w": IndexedLeaf(digest=D, chunks=[D, D])}),
    "roster": Roster(
        generation=GENERATION,
        ranks=[Delivered(rank=0, receipt=STORED, layout=D, values=STORED, database=NONCE)],
        layouts=[STORED],
    ),
    "manifest": MANIFEST,
    "abort": Abort(run_id=RUN, generation=GENERATION, decided=TIME, decided_by=3, reason="rank 1 is missing", missing=[1]),
    "retired": RetiredRecord(run_id=RUN, generation=GENERATION, manifest=D, decided=TIME, policy="keep last 3"),
    "staged": StagedRecord(run_id=RUN, generation=GENERATION, participants=2, decided=TIME, decided_by=1),
    "note": Note(run_id=RUN, generation=GENERATION, kind="metrics", created=TIME, metrics={"loss": {"$float": "0.5"}}),
    "attempt-node": records.AttemptNode(
        run_id=None,
        attempt=2,
        created=PLAN.created,
        supervisor=PLAN.supervisor,
        node="trainer-8",
        address="10.0.0.8:41234",
        token="8b" * 32,
        slots=8,
        started=PLAN.created,
        since=1,
    ),
    "attempt-plan": PLAN,
    "attempt-resumed": CAUGHT_UP,
    "attempt-end": ENDED,
}
BY_NAME = pytest.mark.parametrize("name", RECORDS)


def raw(record: Record, **changes: Any) -> dict[str, Any]:
    return {**json.loads(records.encode(record)), **changes}


def load(value: Any, kind: type[Record]) -> Record:
    return records.decode(canonical.encode(value), kind, key="the/key.json")


def refuse(record: Record, words: str, error: type[DamageError] = InvalidRecord) -> None:
    with pytest.raises(error, match=words) as caught:
        records.decode(records.encode(record), type(record), key="the/key.json")
    assert str(caught.value).startswith("the/key.json: ")


def test_there_is_an_example_of_every_record() -> None:
    assert set(EXAMPLES) == set(RECORDS)


@BY_NAME
def test_a_record_comes_back_as_it_was(name: str) -> None:
    data = records.encode(EXAMPLES[name])
    found = records.decode(data, RECORDS[name], key="k")
    assert found == EXAMPLES[name]
    assert records.encode(found) == data == canonical.encode(json.loads(data))


@BY_NAME
def test_unknown_fields_are_ignored_at_every_depth(name: str) -> None:
    def add(value: Any) -> Any:
        if isinstance(value, list):
            return [add(item) for item in value]
        if not isinstance(value, dict):
            return value
        # Maps by name have no fields of their own; their keys are data.
        is_struct = {"format", "key", "kind", "digest", "size", "rank", "level", "bytes", "axes", "path", "framework"} & set(
            value
        )
        return {**{key: add(item) for key, item in value.items()}, **({"future": [1]} if is_struct else {})}

    assert load(add(raw(EXAMPLES[name])), RECORDS[name]) == EXAMPLES[name]


@BY_NAME
def test_versions_are_checked_first(name: str) -> None:
    kind = RECORDS[name]
    assert load(raw(EXAMPLES[name], version="1.7"), kind) is not None
    for version in ("2.0", "0.9", "10.0"):
        with pytest.raises(UnsupportedFormat, match=rf"the/key.json: format version {version}.*newer release"):
            load({"format": "ckpt/anything", "version": version, "x": 1}, kind)
    for version in (None, 1, "1", "1.0.0", "", "1.x", "1.0\n", "१.0", "1.12345"):
        with pytest.raises(InvalidRecord, match="version"):
            load(raw(EXAMPLES[name], version=version), kind)
    without = raw(EXAMPLES[name])
    del without["version"]
    with pytest.raises(InvalidRecord, match="version"):
        load(without, kind)


@BY_NAME
def test_a_required_feature_that_is_unknown_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match="encryption"):
        load(raw(EXAMPLES[name], requires=["encryption"]), RECORDS[name])
    for requires in ("encryption", [1], None, {"encryption": True}):
        with pytest.raises(InvalidRecord, match="requires"):
            load(raw(EXAMPLES[name], requires=requires), RECORDS[name])


@BY_NAME
def test_a_record_of_another_kind_is_refused(name: str) -> None:
    for other, record in EXAMPLES.items():
        if other != name:
            with pytest.raises(InvalidRecord):
                load(raw(record), RECORDS[name])
    for value in ([], None, 5, "x", {}, {"format": 1}, {"format": "other/run", "version": "1.0"}):
        with pytest.raises(InvalidRecord, match="not a checkpoint record"):
            load(value, RECORDS[name])


JUNK = [None, True, 5, -1, 2**53 - 1, "", "x", "../x", "x\n", [], [None], [[1, 2, 3]], {}, {"x": 1}, "9" * 2000]


@BY_NAME
def test_a_field_of_the_wrong_type_is_accepted_or_refused_but_nothing_else_happens(name: str) -> None:
    refused = 0
    for path, _ in list(walk(raw(EXAMPLES[name]))):
        for junk in JUNK:
            value = raw(EXAMPLES[name])
            target = value
            for step in path[:-1]:
                target = target[step]
            target[path[-1]] = junk
            try:
                load(value, RECORDS[name])
            except DamageError as error:
                assert len(str(error)) < 30_000  # noqa: PT017
                refused += 1
    assert refused > 20


def walk(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if path:
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from walk(item, (*path, key))


@BY_NAME
def test_a_field_that_is_missing_is_refused_unless_it_has_a_default(name: str) -> None:
    value = raw(EXAMPLES[name])
    fields = {field.name: field for field in msgspec.structs.fields(RECORDS[name])}
    optional = 0
    for field in value:
        less = {key: item for key, item in value.items() if key != field}
        if field in {"format", "version"} or fields[field].required:
            with pytest.raises(InvalidRecord, match=field):
                load(less, RECORDS[name])
        else:
            optional += 1
    assert optional < len(value)


def test_a_decision_is_a_commit_or_an_abort() -> None:
    assert records.decode_decision(records.encode(MANIFEST), key="k") == MANIFEST
    assert records.decode_decision(records.encode(EXAMPLES["abort"]), key="k") == EXAMPLES["abort"]
    for decision in ("maybe", None, 1, ["abort"], {}):
        with pytest.raises(InvalidRecord, match="decision"):
            records.decode_decision(canonical.encode(raw(MANIFEST, decision=decision)), key="k")
    with pytest.raises(InvalidRecord, match="format"):
        records.decode_decision(canonical.encode(raw(MANIFEST, format="ckpt/note")), key="k")


def test_records_of_another_place_are_foreign() -> None:
    records.expect("k", rank=(1, 1), run_id=("a", "a"))
    with pytest.raises(ForeignRecord, match=r"^k: rank is 2, expected 1; run_id is 'b', expected 'a'$"):
        records.expect("k", rank=(2, 1), run_id=("b", "a"), step=(1, 1))


def test_floats_and_big_integers_have_no_place_in_a_record() -> None:
    for metadata in (0.5, 2**60, {"x": float("nan")}):
        with pytest.raises(InvalidRecord):
            records.encode(change(MANIFEST, metadata=metadata))
    with pytest.raises(InvalidRecord, match="not an integer"):
        records.decode(records.encode(MANIFEST).replace(b'"step":100', b'"step":100.0'), Manifest, key="k")


def test_a_record_beyond_the_limit_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 10)
    with pytest.raises(InvalidRecord, match="more than a record may have"):
        records.decode(b"[" * 11, Run, key="k")


STRINGS: list[tuple[str, str, list[str]]] = [
    ("claim", "nonce", ["", "0123456", "0123456G", "0123456789ABCDEF", "a" * 65, "../../x", NONCE + "\n"]),
    ("claim", "run_id", ["", RUN.upper(), RUN[:-1], RUN + "\n", "../" + RUN]),
    (
        "claim",
        "created",
        ["", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31T12:00:00+01:00", "2026-01-31 12:00:00Z", TIME + "\n"],
    ),
    (
        "abort",
        "generation",
        ["", "1-1-1", "000000-000000000001-1", "000001-000000000001-0", GENERATION + "/..", GENERATION + "\n"],
    ),
    ("retired", "manifest", ["", "0" * 64, "md5:" + "0" * 32, D.upper(), D + "0", D + "\n"]),
    ("index", "component", ["", "a.b", "a/b", "..", "rank_state", "9", "a" * 65, "params\n"]),
]


@pytest.mark.parametrize(("name", "field", "bad"), STRINGS, ids=[f"{name}.{field}" for name, field, _ in STRINGS])
def test_strings_are_checked_to_their_last_character(name: str, field: str, bad: list[str]) -> None:
    for text in bad:
        with pytest.raises(InvalidRecord, match=field):
            load(raw(EXAMPLES[name], **{field: text}), RECORDS[name])


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "a/",
        ".x",
        "a\\b",
        "a\x00",
        "a\n",
        "C:\\x",
        "é",
        "a" * 201,
        "a/" * 16 + "a",
    ],
)
def test_no_key_in_a_record_can_leave_the_run(key: str) -> None:
    with pytest.raises(InvalidRecord, match="key"):
        load(raw(MANIFEST, roster={"key": key, "size": 1, "digest": D}), Manifest)
    with pytest.raises(InvalidRecord, match="path"):
        load(raw(RECEIPT, files=[{"path": key, "size": 1}]), Receipt)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a\\b", "a\x00", "a\n", "\x7f", "a" * 1025])
def test_no_leaf_name_can_leave_its_place(name: str) -> None:
    with pytest.raises(InvalidRecord):
        load(raw(EXAMPLES["index"], leaves={name: {"digest": D}}), Index)


BOUNDS: list[tuple[str, str, list[int]]] = [
    ("claim", "incarnation", [0, -1, 1_000_000]),
    ("values", "rank", [-1, 100_000]),
    ("receipt", "participants", [0, 100_001]),
    ("receipt", "step", [-1, 10**12]),
]


@pytest.mark.parametrize(("name", "field", "bad"), BOUNDS, ids=[f"{name}.{field}" for name, field, _ in BOUNDS])
def test_numbers_are_bounded(name: str, field: str, bad: list[int]) -> None:
    for number in [*bad, True]:
        with pytest.raises(InvalidRecord, match=field):
            load(raw(EXAMPLES[name], **{field: number}), RECORDS[name])


def change(record: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(record, **changes)


RECEIPTS: dict[str, tuple[Receipt, str]] = {
    "rank of too many": (change(RECEIPT, rank=2), "rank 2 of 2"),
    "other step": (change(RECEIPT, step=101), "differ from the generation"),
    "other incarnation": (change(RECEIPT, incarnation=3), "differ from the generation"),
    "failed without a reason": (change(FAILED, reason=None), "gives a reason"),
    "no guarantee": (change(RECEIPT, guarantee=None), "has `guarantee`"),
    "no topology": (change(RECEIPT, topology=None), "has `topology`"),
    "no layout": (change(RECEIPT, layout=None), "has `layout`"),
    "rank 0 without lead": (change(RECEIPT, lead=None), "has `lead`"),
    "rank 1 with lead": (change(RECEIPT, rank=1), "has `lead`"),
}


@pytest.mark.parametrize(("record", "words"), RECEIPTS.values(), ids=RECEIPTS.keys())
def test_a_receipt_that_makes_no_sense_is_refused(record: Receipt, words: str) -> None:
    refuse(record, words)


def test_a_failed_receipt_needs_its_identity_and_reason_only() -> None:
    for record in (FAILED, change(FAILED, rank=0), change(RECEIPT, rank=1, lead=None)):
        assert records.decode(records.encode(record), Receipt, key="k") == record


OTHERS: dict[str, tuple[Record, str]] = {
    "manifest of another step": (change(MANIFEST, step=7), "differ from the generation"),
    "manifest of another incarnation": (change(MANIFEST, incarnation=7), "differ from the generation"),
    "parent without its manifest": (change(MANIFEST, parent_manifest=None), "come together"),
    "manifest without its parent": (change(MANIFEST, parent=None), "come together"),
    "base without its manifest": (change(BASE, manifest=None), "come together"),
    "base manifest without generation": (change(BASE, generation=None), "come together"),
    "empty roster": (Roster(generation=GENERATION, ranks=[], layouts=[]), "ranks are not 0"),
    "roster with a gap": (
        Roster(generation=GENERATION, ranks=[Delivered(rank=1, receipt=STORED, layout=D)], layouts=[]),
        "ranks are not 0",
    ),
    "roster with a rank twice": (
        Roster(generation=GENERATION, ranks=[Delivered(rank=0, receipt=STORED, layout=D)] * 2, layouts=[]),
        "ranks are not 0",
    ),
}


@pytest.mark.parametrize(("record", "words"), OTHERS.values(), ids=OTHERS.keys())
def test_records_that_contradict_themselves_are_refused(record: Record, words: str) -> None:
    refuse(record, words)


def test_the_beginning_of_a_run_has_no_parent() -> None:
    for record in (
        change(MANIFEST, parent=None, parent_manifest=None),
        change(BASE, generation=None, manifest=None, reason="new"),
    ):
        assert records.decode(records.encode(record), type(record), key="k") == record
