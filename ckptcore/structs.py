"""The types of every stored record: frozen structs with bounded fields (spec: records).

Types alone; `ckptcore.records` decodes, and checks what spans several fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ckptcore import canonical

VERSION = "1.0"
KNOWN_FEATURES: frozenset[str] = frozenset()
MAX_CHUNKS = 1 << 20
"""The most chunks one array may have: a bound on what a hostile record can make a reader allocate."""
MAX_RECORD_BYTES = 1 << 30

# `$(?!\n)`: Python's `$` also matches before a last newline, other languages' does not.
Count = Annotated[int, Meta(ge=0, le=canonical.MAX_INT)]
Positive = Annotated[int, Meta(ge=1, le=canonical.MAX_INT)]
Rank = Annotated[int, Meta(ge=0, le=99_999)]
Participants = Annotated[int, Meta(ge=1, le=100_000)]
IncarnationNumber = Annotated[int, Meta(ge=1, le=999_999)]
Step = Annotated[int, Meta(ge=0, le=999_999_999_999)]
Digest = Annotated[str, Meta(pattern=r"^(blake3|sha256):[0-9a-f]{64}$(?!\n)")]
Generation = Annotated[str, Meta(pattern=r"^(?!000000)[0-9]{6}-[0-9]{12}-[1-9][0-9]{0,5}$(?!\n)")]
Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}$(?!\n)")]
RunId = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)")]
Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$(?!\n)")]
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}"
Key = Annotated[str, Meta(pattern=rf"^{_SEGMENT}(/{_SEGMENT}){{0,15}}$(?!\n)", max_length=900)]
ComponentName = Annotated[str, Meta(pattern=r"^(?!rank_state$)[A-Za-z_][A-Za-z0-9_\-]{0,63}$(?!\n)")]
LeafName = Annotated[str, Meta(pattern=r"^[^/\\\u0000-\u001f\u007f]+$(?!\n)", max_length=1024)]
Word = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=20_000)]
Dimensions = Annotated[tuple[Count, ...], Meta(max_length=32)]
Element = tuple[Literal["key", "index", "attr"], str | Annotated[int, Meta(ge=-canonical.MAX_INT, le=canonical.MAX_INT)]]
Level = Literal["exact", "coverage", "replay", "weights"]
Scope = Literal["global", "rank"]


class Record(Struct, frozen=True, kw_only=True):
    """What every stored record has."""

    format: str
    version: str = VERSION
    requires: list[Word] = []


class Descriptor(Struct, frozen=True, kw_only=True):
    """A stored object, proven: its key from the run's root, its bytes, its digest."""

    key: Key
    size: Count
    digest: Digest


class Mesh(Struct, frozen=True, kw_only=True):
    """One device mesh: axis names and sizes, and a digest over the order of its devices."""

    axes: list[Word]
    shape: list[Positive]
    devices: Digest


class Topology(Struct, frozen=True, kw_only=True):
    """What `exact` means by "the same topology"."""

    framework: Word
    platform: Word
    participants: Participants
    devices: Count
    meshes: list[Mesh] = []


class Guarantee(Struct, frozen=True, kw_only=True):
    """The resume contract of a generation (spec: guarantees).

    `derived` maps a need to the component that meets it, or to `step`.
    `replay_samples` bounds the samples repeated or skipped, for `replay`.
    """

    level: Level
    derived: dict[Word, Word] = {}
    replay_samples: Count | None = None


class Parent(Struct, frozen=True, kw_only=True):
    """The checkpoint of another run from which this one was forked or warm-started."""

    run_id: RunId
    url: Text
    generation: Generation
    manifest: Digest
    components: list[ComponentName]


class Origin(Struct, frozen=True, kw_only=True):
    """The checkpoint in another format from which a run was warm-started."""

    format: Word
    url: Text
    digest: Digest


class Run(Record, frozen=True, kw_only=True):
    """`run.json`: the identity of a run. It has a parent, or an origin, or neither."""

    format: Literal["ckpt/run"] = "ckpt/run"
    run_id: RunId
    created: Time
    parent: Parent | None = None
    origin: Origin | None = None


class Claim(Record, frozen=True, kw_only=True):
    """`claim.json`: one launch of the run's job."""

    format: Literal["ckpt/claim"] = "ckpt/claim"
    run_id: RunId
    incarnation: IncarnationNumber
    nonce: Nonce
    created: Time
    topology: Topology


class StoreFacts(Struct, frozen=True, kw_only=True):
    """What the probe of this incarnation found out about the store."""

    driver: Word
    put_if_absent: bool
    read_after_write: bool
    list_after_write: bool
    single_writer: bool = False


class Skipped(Struct, frozen=True, kw_only=True):
    """A generation that was passed over when the base was chosen, and why."""

    generation: Generation
    reason: Text


class Settled(Struct, frozen=True, kw_only=True):
    """What an incarnation decided about a generation that an older one had left undecided."""

    generation: Generation
    decision: Literal["commit", "abort"]
    reason: Text


class Base(Record, frozen=True, kw_only=True):
    """`base.json`: the generation an incarnation starts from, or none."""

    format: Literal["ckpt/base"] = "ckpt/base"
    run_id: RunId
    incarnation: IncarnationNumber
    nonce: Nonce
    created: Time
    generation: Generation | None
    manifest: Digest | None
    reason: Literal["new", "newest", "rolled-forward", "fallen-back", "chosen"]
    guarantee: Level | None = None
    settled: list[Settled] = []
    skipped: list[Skipped] = []
    store: StoreFacts


class ArrayLeaf(Struct, frozen=True, kw_only=True, tag_field="kind", tag="array"):
    """An array leaf. Exactly one of `chunk_shape` and `cuts` is there, or `alias` alone.

    `cuts` holds, per dimension, the boundaries of the cells, 0 and the extent included.
    """

    path: tuple[Element, ...]
    name: LeafName
    dtype: Word
    stored_dtype: Word
    shape: Dimensions
    chunk_shape: Dimensions | None = None
    cuts: Annotated[tuple[tuple[Count, ...], ...], Meta(max_length=32)] | None = None
    alias: LeafName | None = None
    weak_type: bool = False
    prng_impl: Word | None = None
    memory_kind: Word | None = None
    sharding: Text | None = None


class ValueLeaf(Struct, frozen=True, kw_only=True, tag_field="kind", tag="value"):
    """A JSON leaf; its value is in a values record."""

    path: tuple[Element, ...]
    name: LeafName


class LayoutComponent(Struct, frozen=True, kw_only=True):
    """One component's leaves, sorted by name."""

    kind: Word
    scope: Scope
    leaves: list[ArrayLeaf | ValueLeaf]


class Layout(Record, frozen=True, kw_only=True):
    """`layouts/<digest>.json`: a leaf table, content-addressed."""

    format: Literal["ckpt/layout"] = "ckpt/layout"
    components: dict[ComponentName, LayoutComponent]


class Values(Record, frozen=True, kw_only=True):
    """`values/<rank>.json`: encoded JSON leaves by component and leaf name.

    `shared` are global leaves, stored by the lowest rank that has them; `own` are rank-scoped ones.
    """

    format: Literal["ckpt/values"] = "ckpt/values"
    generation: Generation
    rank: Rank
    shared: dict[ComponentName, dict[LeafName, Any]] = {}
    own: dict[ComponentName, dict[LeafName, Any]] = {}


class File(Struct, frozen=True, kw_only=True):
    """A file of a rank's database: path below the database, bytes, and a digest for `manifest.ocdbt`."""

    path: Key
    size: Count
    digest: Digest | None = None


class Written(Struct, frozen=True, kw_only=True):
    """What a rank knows and wrote of one component.

    `bytes`: logical bytes written; `chunks`: per array leaf, `[chunk index, digest]` of each chunk written;
    `values`: the value digest of every JSON leaf as this rank sees it; `replicas`: the digest of the whole
    of every replicated host array as this rank sees it.
    """

    bytes: Count
    chunks: dict[LeafName, list[tuple[Count, Digest]]]
    values: dict[LeafName, Digest] = {}
    replicas: dict[LeafName, Digest] = {}


class Lead(Struct, frozen=True, kw_only=True):
    """What the manifest needs and only rank 0's receipt carries."""

    captured: Time
    topology: Topology
    parent: Generation | None
    parent_manifest: Digest | None
    versions: dict[Word, Word]
    references: dict[ComponentName, Generation] = {}
    metadata: Any = None


class Receipt(Record, frozen=True, kw_only=True):
    """`receipts/<rank>.json`: a rank's signed-off list of what it wrote.

    A failed receipt has only its identity, `status` and `reason`.
    `guarantee`, `topology` and `layout` are None in a failed receipt alone.
    """

    format: Literal["ckpt/receipt"] = "ckpt/receipt"
    run_id: RunId
    generation: Generation
    incarnation: IncarnationNumber
    claim: Nonce
    step: Step
    rank: Rank
    participants: Participants
    status: Literal["complete", "failed"]
    reason: Text | None = None
    guarantee: Guarantee | None = None
    topology: Digest | None = None
    layout: Descriptor | None = None
    values: Descriptor | None = None
    database: Nonce | None = None
    files: list[File] = []
    components: dict[ComponentName, Written] = {}
    phases: dict[Word, Count] = {}
    lead: Lead | None = None


class IndexedLeaf(Struct, frozen=True, kw_only=True):
    """A leaf's digest and, for an array, its chunk digests in grid order."""

    digest: Digest
    chunks: list[Digest] = []


class Index(Record, frozen=True, kw_only=True):
    """`index/<component>-<digest>.json`: leaf and chunk digests, by stored name."""

    format: Literal["ckpt/index"] = "ckpt/index"
    component: ComponentName
    leaves: dict[LeafName, IndexedLeaf]


class Delivered(Struct, frozen=True, kw_only=True):
    """One participant in the roster."""

    rank: Rank
    receipt: Descriptor
    layout: Digest
    values: Descriptor | None = None
    database: Nonce | None = None


class Roster(Record, frozen=True, kw_only=True):
    """`roster-<digest>.json`: who delivered what; one entry a participant, in rank order."""

    format: Literal["ckpt/roster"] = "ckpt/roster"
    generation: Generation
    ranks: list[Delivered]
    layouts: list[Descriptor]


class Committed(Struct, frozen=True, kw_only=True):
    """One component of a commit. `source` names the generation that holds it, when it is not this one."""

    kind: Word
    scope: Scope
    leaves: Count
    bytes: Count
    digest: Digest
    index: Descriptor
    source: Generation | None = None


class Manifest(Record, frozen=True, kw_only=True):
    """`ledger/<generation>.json`, commit: a pure function of the stored receipts and layouts."""

    format: Literal["ckpt/decision"] = "ckpt/decision"
    decision: Literal["commit"] = "commit"
    run_id: RunId
    generation: Generation
    incarnation: IncarnationNumber
    claim: Nonce
    step: Step
    parent: Generation | None
    parent_manifest: Digest | None
    guarantee: Guarantee
    topology: Topology
    components: dict[ComponentName, Committed]
    roster: Descriptor
    captured: Time
    versions: dict[Word, Word]
    metadata: Any = None


class Abort(Record, frozen=True, kw_only=True):
    """`ledger/<generation>.json`, abort."""

    format: Literal["ckpt/decision"] = "ckpt/decision"
    decision: Literal["abort"] = "abort"
    run_id: RunId
    generation: Generation
    decided: Time
    decided_by: IncarnationNumber
    reason: Text
    missing: list[Rank] = []


class RetiredRecord(Record, frozen=True, kw_only=True):
    """`ledger/<generation>.retired.json`: a commit that may be deleted."""

    format: Literal["ckpt/retired"] = "ckpt/retired"
    run_id: RunId
    generation: Generation
    manifest: Digest
    decided: Time
    policy: Text


class StagedRecord(Record, frozen=True, kw_only=True):
    """`ledger/<generation>.staged.json`: a generation that is whole on the nodes, and not durable yet. No decision."""

    format: Literal["ckpt/staged"] = "ckpt/staged"
    run_id: RunId
    generation: Generation
    participants: Participants
    decided: Time
    decided_by: IncarnationNumber


class Note(Record, frozen=True, kw_only=True):
    """`notes/<generation>/<name>.json`: what is learned about a generation later."""

    format: Literal["ckpt/note"] = "ckpt/note"
    run_id: RunId
    generation: Generation
    kind: Literal["metrics", "tag", "pin", "verified", "quarantine", "damaged"]
    created: Time
    text: Text = ""
    tag: Word | None = None
    metrics: dict[Word, Any] = {}
    depth: Literal["shallow", "deep"] | None = None


Decision = Manifest | Abort

RECORDS: dict[str, type[Record]] = {
    "run": Run,
    "claim": Claim,
    "base": Base,
    "layout": Layout,
    "values": Values,
    "receipt": Receipt,
    "index": Index,
    "roster": Roster,
    "manifest": Manifest,
    "abort": Abort,
    "retired": RetiredRecord,
    "staged": StagedRecord,
    "note": Note,
}
