"""Strict decoding and canonical encoding of every stored record (spec: records).

`decode` checks `format`, `version` and `requires` before it looks at anything else, then
the types and the bounds of every field. Unknown fields are ignored; whoever copies a record
copies its bytes, so they are kept. `encode` gives the canonical bytes that digests are over.
The types are in `ckptcore.structs` and `ckptcore.attempt_structs`, and offered here too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from ckptcore import canonical, names, structs
from ckptcore.attempt_structs import (
    ATTEMPT_RECORDS,
    AttemptEnd,
    AttemptIncident,
    AttemptNode,
    AttemptNumber,
    AttemptPlan,
    AttemptResumed,
    ExitStatus,
    Stack,
    Supervisor,
)
from ckptcore.errors import ForeignRecord, InvalidRecord, UnsupportedFormat
from ckptcore.structs import (
    KNOWN_FEATURES,
    MAX_CHUNKS,
    MAX_RECORD_BYTES,
    VERSION,
    Abort,
    ArrayLeaf,
    Base,
    Claim,
    Committed,
    ComponentName,
    Count,
    Decision,
    Delivered,
    Descriptor,
    Digest,
    Dimensions,
    Element,
    File,
    Generation,
    Guarantee,
    IncarnationNumber,
    Index,
    IndexedLeaf,
    Key,
    Layout,
    LayoutComponent,
    Lead,
    LeafName,
    Level,
    Manifest,
    Mesh,
    Nonce,
    Note,
    Origin,
    Parent,
    Participants,
    Positive,
    Rank,
    Receipt,
    Record,
    RetiredRecord,
    Roster,
    Run,
    RunId,
    Scope,
    Settled,
    Skipped,
    StagedRecord,
    Step,
    StoreFacts,
    Text,
    Time,
    Topology,
    ValueLeaf,
    Values,
    Word,
    Written,
)

__all__ = [
    "KNOWN_FEATURES",
    "MAX_CHUNKS",
    "MAX_RECORD_BYTES",
    "RECORDS",
    "VERSION",
    "Abort",
    "ArrayLeaf",
    "AttemptEnd",
    "AttemptIncident",
    "AttemptNode",
    "AttemptNumber",
    "AttemptPlan",
    "AttemptResumed",
    "Base",
    "Claim",
    "Committed",
    "ComponentName",
    "Count",
    "Decision",
    "Delivered",
    "Descriptor",
    "Digest",
    "Dimensions",
    "Element",
    "ExitStatus",
    "File",
    "Generation",
    "Guarantee",
    "IncarnationNumber",
    "Index",
    "IndexedLeaf",
    "Key",
    "Layout",
    "LayoutComponent",
    "Lead",
    "LeafName",
    "Level",
    "Manifest",
    "Mesh",
    "Nonce",
    "Note",
    "Origin",
    "Parent",
    "Participants",
    "Positive",
    "Rank",
    "Receipt",
    "Record",
    "RetiredRecord",
    "Roster",
    "Run",
    "RunId",
    "Scope",
    "Settled",
    "Skipped",
    "Stack",
    "StagedRecord",
    "Step",
    "StoreFacts",
    "Supervisor",
    "Text",
    "Time",
    "Topology",
    "ValueLeaf",
    "Values",
    "Word",
    "Written",
    "decode",
    "decode_decision",
    "encode",
    "expect",
]

R = TypeVar("R", bound=Record)

RECORDS: dict[str, type[Record]] = structs.RECORDS | ATTEMPT_RECORDS
"""Every kind of record, by the name of its schema."""


MAX_REASON = 2000
"""Characters of an error's message that a record keeps."""


def clip(text: str) -> str:
    """`text` as a record may hold it: valid Unicode of bounded length. Errors quote what may be neither."""
    return text.encode("utf-8", "replace").decode()[:MAX_REASON]


def encode(record: Record) -> bytes:
    """The canonical bytes of a record (spec: canonical form)."""
    return canonical.encode(msgspec.to_builtins(record))


def decode(data: bytes, kind: type[R], *, key: str) -> R:
    """Decode and check one record; `key` names it in errors.

    Raises `UnsupportedFormat` for an unknown version or required feature, and
    `InvalidRecord` for anything malformed.
    """
    record = _as_written(data, kind)
    return _convert(_header(data, key), kind, key) if record is None else _checked(record, key)


def says_failed(receipt: bytes) -> bool:
    """Whether the bytes of a receipt say that its rank has failed. Records are canonical, and a quote inside of a string is
    escaped: this text is the field.
    """
    return b'"status":"failed"' in receipt


def decode_decision(data: bytes, *, key: str) -> Decision:
    """Decode a ledger record: a `Manifest` or an `Abort`."""
    raw = _header(data, key)
    decision = raw.get("decision")
    if decision not in ("commit", "abort"):
        raise InvalidRecord(f"{key}: `decision` is {str(decision)[:80]!r}, expected `commit` or `abort`")
    kind = Abort if decision == "abort" else Manifest
    return _convert(raw, kind, key)


def expect(key: str, **pairs: tuple[Any, Any]) -> None:
    """Raise `ForeignRecord` unless each `(found, wanted)` pair is equal."""
    wrong = [f"{name} is {found!r}, expected {wanted!r}" for name, (found, wanted) in pairs.items() if found != wanted]
    if wrong:
        raise ForeignRecord(f"{key}: " + "; ".join(wrong))


def _header(data: bytes, key: str) -> dict[str, Any]:
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidRecord(f"{key}: {len(data)} bytes are more than a record may have ({MAX_RECORD_BYTES})")
    raw = canonical.decode(data, what=key)
    if not isinstance(raw, dict) or not isinstance(raw.get("format"), str) or not raw["format"].startswith("ckpt/"):
        raise InvalidRecord(f"{key}: not a checkpoint record (no `format` that starts with `ckpt/`)")
    version = raw.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", version):
        raise InvalidRecord(f"{key}: `version` is {version!r}, expected `major.minor`")
    if version.split(".", maxsplit=1)[0] != VERSION.split(".", maxsplit=1)[0]:
        raise UnsupportedFormat(f"{key}: format version {version}; this reader knows {VERSION}. Use a newer release.")
    requires = raw.get("requires", [])
    listed = requires if isinstance(requires, list) else []
    unknown = [name for name in listed if isinstance(name, str) and name not in KNOWN_FEATURES]
    if unknown:
        raise UnsupportedFormat(f"{key}: needs features that this reader does not know: {unknown!r}. Use a newer release.")
    return raw


def _convert(raw: dict[str, Any], kind: type[R], key: str) -> R:
    try:
        record = msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"{key}: {error}") from error
    return _checked(record, key)


def _checked(record: R, key: str) -> R:
    """`record`, when what spans several fields is right too."""
    check = _CHECKS.get(type(record))
    if check is not None:
        check(record, key)
    return record


def _as_written(data: bytes, kind: type[R]) -> R | None:
    """The record if `data` is byte for byte what this release writes for it, else None: then the strict way tells.

    That its encoding gives the same bytes again says as much as the strict decoder does: no key is there twice, no field
    is unknown, no number has another form. It takes a fraction of the time, which counts where there are many chunks.
    """
    if kind not in _TYPED or len(data) > MAX_RECORD_BYTES:
        return None
    try:
        record = msgspec.json.decode(data, type=kind)
        plain = record.version == VERSION and not record.requires and not _is_free(record)
        return record if plain and msgspec.json.encode(record, order="sorted") == data else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


_TYPED = frozenset({Receipt, Layout, Index, Roster})
"""Kinds that are large in large jobs, and whose fields have types that bound whatever is in them."""


def _is_free(record: Record) -> bool:
    """Whether a record has a field of any type: what is in it has to be looked at one by one."""
    return isinstance(record, Receipt) and record.lead is not None


_ELEMENT_TYPES: Mapping[str, tuple[type, ...]] = {"key": (str, int), "index": (int,), "attr": (str,)}


def _check_layout(layout: Layout, key: str) -> None:
    for component, table in layout.components.items():
        listed = [leaf.name for leaf in table.leaves]
        if listed != sorted(set(listed)):
            raise InvalidRecord(f"{key}: leaves of {component!r} are not sorted by name, each once")
        stored = {leaf.name: leaf for leaf in table.leaves if isinstance(leaf, ArrayLeaf) and leaf.alias is None}
        for leaf in table.leaves:
            if leaf.name != names.array_name(component, leaf.path) or len(leaf.name.encode()) > names.MAX_NAME_BYTES:
                raise InvalidRecord(f"{key}: leaf {leaf.name!r} of {component!r} is not named after its path")
            if any(not isinstance(value, _ELEMENT_TYPES[kind]) for kind, value in leaf.path):
                raise InvalidRecord(f"{key}: leaf {leaf.name!r} has an index that is no integer, or an attribute that is no name")
            if isinstance(leaf, ArrayLeaf):
                _check_array(leaf, stored, key)


def _check_array(leaf: ArrayLeaf, stored: Mapping[str, ArrayLeaf], key: str) -> None:
    where = f"{key}: leaf {leaf.name!r}"
    if leaf.alias is not None:
        _check_alias(leaf, stored.get(leaf.alias), where)
        return
    if math.prod(leaf.shape) > canonical.MAX_INT:
        raise InvalidRecord(f"{where}: shape {leaf.shape} has more elements than an array may have (2**53 - 1)")
    if (leaf.chunk_shape is None) == (leaf.cuts is None):
        raise InvalidRecord(f"{where}: exactly one of `chunk_shape` and `cuts` is needed")
    cells = 1
    if leaf.chunk_shape is not None:
        if len(leaf.chunk_shape) != len(leaf.shape) or any(size < 1 for size in leaf.chunk_shape):
            raise InvalidRecord(f"{where}: chunk shape {leaf.chunk_shape} does not fit shape {leaf.shape}")
        for extent, size in zip(leaf.shape, leaf.chunk_shape, strict=True):
            cells *= -(-extent // size)
    elif leaf.cuts is not None:
        if len(leaf.cuts) != len(leaf.shape):
            raise InvalidRecord(f"{where}: {len(leaf.cuts)} lists of cuts for {len(leaf.shape)} dimensions")
        for extent, cuts in zip(leaf.shape, leaf.cuts, strict=True):
            if extent < 1 or cuts[:1] != (0,) or cuts[-1:] != (extent,) or list(cuts) != sorted(set(cuts)):
                raise InvalidRecord(f"{where}: cuts must rise from 0 to the extent {extent}")
            cells *= len(cuts) - 1
    if cells > MAX_CHUNKS:
        raise InvalidRecord(f"{where}: {cells} chunks are more than an array may have ({MAX_CHUNKS})")


def _check_alias(leaf: ArrayLeaf, target: ArrayLeaf | None, where: str) -> None:
    if target is None or leaf.chunk_shape is not None or leaf.cuts is not None:
        raise InvalidRecord(f"{where}: an alias names a stored array of its component and has no chunks of its own")
    if (leaf.dtype, leaf.stored_dtype, leaf.shape) != (target.dtype, target.stored_dtype, target.shape):
        raise InvalidRecord(f"{where}: differs in dtype or shape from {target.name!r}, of which it is an alias")


def _check_receipt(receipt: Receipt, key: str) -> None:
    if receipt.rank >= receipt.participants:
        raise InvalidRecord(f"{key}: rank {receipt.rank} of {receipt.participants} participants")
    if not receipt.generation.startswith(f"{receipt.incarnation:06d}-{receipt.step:012d}-"):
        raise InvalidRecord(f"{key}: incarnation or step differ from the generation ID {receipt.generation}")
    if receipt.status == "failed":
        if receipt.reason is None:
            raise InvalidRecord(f"{key}: a failed receipt gives a reason")
        return
    for field in ("guarantee", "topology", "layout"):
        if getattr(receipt, field) is None:
            raise InvalidRecord(f"{key}: a complete receipt has `{field}`")
    if (receipt.rank == 0) != (receipt.lead is not None):
        raise InvalidRecord(f"{key}: rank 0's receipt, and no other, has `lead`")
    if receipt.lead is not None:
        _check_parent(receipt.lead, key)
    _check_guarantee(receipt.guarantee, key)


def _check_roster(roster: Roster, key: str) -> None:
    if [entry.rank for entry in roster.ranks] != list(range(len(roster.ranks))) or not roster.ranks:
        raise InvalidRecord(f"{key}: ranks are not 0, 1, 2, …")


def _check_manifest(manifest: Manifest, key: str) -> None:
    if not manifest.generation.startswith(f"{manifest.incarnation:06d}-{manifest.step:012d}-"):
        raise InvalidRecord(f"{key}: incarnation or step differ from the generation ID {manifest.generation}")
    _check_parent(manifest, key)
    _check_guarantee(manifest.guarantee, key)


def _check_parent(record: Manifest | Lead, key: str) -> None:
    if (record.parent is None) != (record.parent_manifest is None):
        raise InvalidRecord(f"{key}: `parent` and `parent_manifest` come together")


def _check_guarantee(guarantee: Guarantee | None, key: str) -> None:
    if guarantee is not None and (guarantee.level == "replay") != (guarantee.replay_samples is not None):
        raise InvalidRecord(f"{key}: `replay`, and no other level, has `replay_samples`")


def _check_note(note: Note, key: str) -> None:
    if (note.kind == "tag") != (note.tag is not None):
        raise InvalidRecord(f"{key}: a note of kind `tag`, and no other, has `tag`")


def _check_run(run: Run, key: str) -> None:
    if run.parent is not None and run.origin is not None:
        raise InvalidRecord(f"{key}: a run has `parent` or `origin`, not both")


def _check_base(base: Base, key: str) -> None:
    if (base.generation is None) != (base.manifest is None):
        raise InvalidRecord(f"{key}: `generation` and `manifest` come together")


def _check_plan(plan: AttemptPlan, key: str) -> None:
    if not len(plan.slots) == len(plan.nodes) == plan.processes:
        raise InvalidRecord(f"{key}: {len(plan.slots)} slots and {len(plan.nodes)} nodes for {plan.processes} processes")
    if len(set(zip(plan.nodes, plan.slots, strict=True))) != plan.processes:
        raise InvalidRecord(f"{key}: two ranks have the same slot of a node")
    runs = [node for node, _ in groupby(plan.nodes)]
    if plan.members and [member.node for member in plan.members] != runs:
        raise InvalidRecord(f"{key}: the members are not the nodes of the ranks, in their order")
    if plan.members and len(set(runs)) != len(runs):
        raise InvalidRecord(f"{key}: the ranks of a node are not next to each other")


def _check_end(end: AttemptEnd, key: str) -> None:
    if end.incident is None and end.outcome == "failed":
        raise InvalidRecord(f"{key}: an attempt that failed has an incident")
    if end.incident is not None and end.outcome == "finished":
        raise InvalidRecord(f"{key}: an attempt that finished has no incident")


_CHECKS: dict[type[Record], Callable[[Any, str], None]] = {
    Run: _check_run,
    Layout: _check_layout,
    Receipt: _check_receipt,
    Roster: _check_roster,
    Manifest: _check_manifest,
    Base: _check_base,
    Note: _check_note,
    AttemptPlan: _check_plan,
    AttemptEnd: _check_end,
}
