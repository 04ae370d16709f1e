"""The minimal reader, first part: the store, records, digests and arrays (spec: chapters 2, 4, 6 and 7).

Written from the documents in `spec/v1` alone, with TensorStore and BLAKE3. `minimal_reader` makes checkpoints of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import tensorstore as ts
from blake3 import blake3

Json = Any
WAIT = 60.0


class Refused(Exception):
    """An error that a user would see; `kind` is one of the contract's."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- The store (chapter 2): bytes by key, and arrays ---


class Store:
    """Where a run lies: a directory, or a prefix of an S3 bucket."""

    def __init__(self, url: str, storage: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self.root = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self.spec: dict[str, Json] = {"driver": "file", "path": f"{self.root}/"}
        if self.root is None:
            self.spec = {"driver": "s3", "bucket": parts.netloc, "path": parts.path.strip("/") + "/"}
            self.spec |= {
                name: storage[field] for name, field in (("endpoint", "endpoint"), ("aws_region", "region")) if field in storage
            }
        self.kvstore = ts.KvStore.open(self.spec).result(timeout=WAIT)

    def read(self, key: str) -> bytes | None:
        """An object's bytes, or None if it is absent. An error is neither (S-6)."""
        found = self.kvstore.read(key).result(timeout=WAIT)
        return bytes(found.value) if found.state == "value" else None

    def size(self, key: str) -> int | None:
        """An object's size, or None if it is absent (S-10)."""
        if self.root is not None:
            return (self.root / key).stat().st_size if (self.root / key).is_file() else None
        data = self.read(key)
        return None if data is None else len(data)

    def list(self, prefix: str) -> list[str]:
        """The keys below a prefix that ends in a slash; names with a dot in front are none (S-11)."""
        below = ts.KvStore.KeyRange(prefix, prefix[:-1] + "0")  # "0" is the character after "/"
        keys = (key.decode() for key in self.kvstore.list(below).result(timeout=WAIT))
        return sorted(key for key in keys if "/." not in key)

    def array(self, state: str, path: str) -> ts.TensorStore:
        """A zarr array in the merged view at `state` (chapter 10, "By hand"). Raises `ValueError`."""
        kvstore = {"driver": "ocdbt", "base": {**self.spec, "path": self.spec["path"] + state}, "path": f"{path}/"}
        return ts.open({"driver": "zarr3", "fill_missing_data_reads": False, "kvstore": kvstore}, read=True).result(timeout=WAIT)


# --- Records (chapter 4): the type of every field, a header, strict JSON ---


def text(pattern: str) -> re.Pattern[str]:
    """The type of text that matches a pattern as a whole."""
    return re.compile(pattern, re.DOTALL | re.ASCII)


def table(keys: Json, items: Json) -> tuple[str, Json, Json]:
    """The type of an object whose keys and whose items are of one type."""
    return "table", keys, items


def maybe(of: Json) -> tuple[str, Json]:
    """A type, or null."""
    return "maybe", of


LIMIT = 2**53 - 1
COUNT, INTEGER, POSITIVE = range(LIMIT + 1), range(-LIMIT, LIMIT + 1), range(1, LIMIT + 1)
INCARNATION, STEP, RANK, PROCESSES = range(1, 10**6), range(10**12), range(10**5), range(1, 10**5 + 1)
ANY, BOOLEAN, WORD, TEXT = None, bool, text(r".{0,200}"), text(r".{0,20000}")
RUN_ID, NONCE = text(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), text(r"[0-9a-f]{8,64}")
GENERATION, DIGEST = text(r"(?!000000)\d{6}-\d{12}-[1-9]\d{0,5}"), text(r"(blake3|sha256):[0-9a-f]{64}")
KEY = text(r"(?=.{1,900}$)[A-Za-z0-9_][\w.\-]{0,199}(/[A-Za-z0-9_][\w.\-]{0,199}){0,15}")
NAME, LEAF = text(r"(?!rank_state$)[A-Za-z_][\w\-]{0,63}"), text(r"[^/\\\x00-\x1f\x7f]{1,1024}")
TIME = text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
SCOPE, LEVEL, DEPTH = text("global|rank"), text("exact|coverage|replay|weights"), text("shallow|deep")
NOTE, REASON = text("metrics|tag|pin|verified|quarantine|damaged"), text("new|newest|rolled-forward|fallen-back|chosen")

DESCRIPTOR = {"key": KEY, "size": COUNT, "digest": DIGEST}
MESH = {"axes": [WORD], "shape": [POSITIVE], "devices": DIGEST}
TOPOLOGY = {"framework": WORD, "platform": WORD, "participants": PROCESSES, "devices": COUNT, "meshes?": [MESH]}
GUARANTEE = {"level": LEVEL, "derived?": table(WORD, WORD), "replay_samples?": maybe(COUNT)}
PARENT = {"run_id": RUN_ID, "url": TEXT, "generation": GENERATION, "manifest": DIGEST, "components": [NAME]}
ORIGIN = {"format": WORD, "url": TEXT, "digest": DIGEST}
PROBED = {
    "driver": WORD,
    "put_if_absent": BOOLEAN,
    "read_after_write": BOOLEAN,
    "list_after_write": BOOLEAN,
    "single_writer?": BOOLEAN,
}
SETTLED = {"generation": GENERATION, "decision": text("commit|abort"), "reason": TEXT}
GRID = {"chunk_shape?": maybe([POSITIVE]), "cuts?": maybe([[COUNT]]), "alias?": maybe(LEAF)}
MORE = {"weak_type?": BOOLEAN, "prng_impl?": maybe(WORD), "memory_kind?": maybe(WORD), "sharding?": maybe(TEXT)}
ARRAY = {"kind": text("array"), "path": [], "name": LEAF, "dtype": WORD, "stored_dtype": WORD, "shape": [COUNT], **GRID, **MORE}
VALUE = {"kind": text("value"), "path": [], "name": LEAF}
LAYOUT = {
    "kind": WORD,
    "scope": SCOPE,
    "leaves": [lambda leaf: (fits(ARRAY, leaf) or fits(VALUE, leaf)) and is_path(leaf["path"])],
}
COMMITTED = {"kind": WORD, "scope": SCOPE, "leaves": COUNT, "bytes": COUNT, "digest": DIGEST, "index": DESCRIPTOR}
ENTRY = {"rank": RANK, "receipt": DESCRIPTOR, "layout": DIGEST, "values?": maybe(DESCRIPTOR), "database?": maybe(NONCE)}
FILE = {"path": KEY, "size": COUNT, "digest?": maybe(DIGEST)}
CHUNK = [lambda pair: isinstance(pair, list) and len(pair) == 2 and fits(COUNT, pair[0]) and fits(DIGEST, pair[1])]
WRITTEN = {"bytes": COUNT, "chunks": table(LEAF, CHUNK), "values?": table(LEAF, DIGEST), "replicas?": table(LEAF, DIGEST)}
LEAD = {"captured": TIME, "topology": TOPOLOGY, "parent": maybe(GENERATION), "parent_manifest": maybe(DIGEST)}
LEAD |= {"versions": table(WORD, WORD), "references?": table(NAME, GENERATION)}
OF_RUN = {"run_id": RUN_ID, "generation": GENERATION}
OF_SAVE = {**OF_RUN, "incarnation": INCARNATION, "claim": NONCE, "step": STEP}
FIELDS: dict[str, dict[str, Json]] = {
    "run": {"run_id": RUN_ID, "created": TIME, "parent?": maybe(PARENT), "origin?": maybe(ORIGIN)},
    "claim": {"run_id": RUN_ID, "incarnation": INCARNATION, "nonce": NONCE, "created": TIME, "topology": TOPOLOGY},
    "base": {"run_id": RUN_ID, "incarnation": INCARNATION, "nonce": NONCE, "created": TIME, "generation": maybe(GENERATION)}
    | {"manifest": maybe(DIGEST), "reason": REASON, "guarantee?": maybe(LEVEL), "settled?": [SETTLED], "store": PROBED}
    | {"skipped?": [{"generation": GENERATION, "reason": TEXT}]},
    "commit": {
        **OF_SAVE,
        "parent": maybe(GENERATION),
        "parent_manifest": maybe(DIGEST),
        "guarantee": GUARANTEE,
        "topology": TOPOLOGY,
    }
    | {"components": table(NAME, COMMITTED | {"source?": maybe(GENERATION)}), "roster": DESCRIPTOR}
    | {"captured": TIME, "versions": table(WORD, WORD)},
    "abort": {**OF_RUN, "decided": TIME, "decided_by": INCARNATION, "reason": TEXT, "missing?": [RANK]},
    "note": {**OF_RUN, "kind": NOTE, "created": TIME, "text?": TEXT, "tag?": maybe(WORD), "depth?": maybe(DEPTH)}
    | {"metrics?": table(WORD, table(text(r"\$float"), WORD))},
    "roster": {"generation": GENERATION, "ranks": [ENTRY], "layouts": [DESCRIPTOR]},
    "layout": {"components": table(NAME, LAYOUT)},
    "values": {
        "generation": GENERATION,
        "rank": RANK,
        "shared?": table(NAME, table(LEAF, ANY)),
        "own?": table(NAME, table(LEAF, ANY)),
    },
    "index": {"component": NAME, "leaves": table(LEAF, {"digest": DIGEST, "chunks?": [DIGEST]})},
    "receipt": {**OF_SAVE, "rank": RANK, "participants": PROCESSES, "status": text("complete"), "reason?": maybe(TEXT)}
    | {"guarantee": GUARANTEE, "topology": DIGEST, "layout": DESCRIPTOR, "values?": maybe(DESCRIPTOR), "database?": maybe(NONCE)}
    | {"files?": [FILE], "components?": table(NAME, WRITTEN), "phases?": table(WORD, COUNT), "lead?": maybe(LEAD)},
}
"""Of each kind of record that a reader sees: field → type. Fields with `?` are OPTIONAL."""


def fits(kind: Json, value: Json) -> bool:
    """Whether a value is of a type of the tables above. Fields that are not in them are ignored (R-8)."""
    if isinstance(kind, re.Pattern):
        return isinstance(value, str) and kind.fullmatch(value) is not None
    if isinstance(kind, range):
        return type(value) is int and value in kind
    if isinstance(kind, list):
        return isinstance(value, list) and (not kind or all(fits(kind[0], item) for item in value))
    if isinstance(kind, dict):
        known = {name.removesuffix("?"): of for name, of in kind.items()}
        there = isinstance(value, dict) and all(name.endswith("?") or name in value for name in kind)
        return there and all(fits(known[name], item) for name, item in value.items() if name in known)
    if isinstance(kind, tuple) and kind[0] == "maybe":
        return value is None or fits(kind[1], value)
    if isinstance(kind, tuple):
        return isinstance(value, dict) and all(fits(kind[1], key) and fits(kind[2], item) for key, item in value.items())
    if kind is bool:
        return isinstance(value, bool)
    return kind is None or kind(value)


def is_path(path: list[Json]) -> bool:
    """Whether the elements of a leaf's path are of their kinds (R-37)."""
    kinds = {"key": lambda element: isinstance(element, str) or fits(INTEGER, element)}
    kinds |= {"index": lambda element: fits(INTEGER, element), "attr": lambda element: isinstance(element, str)}
    return all(fits([ANY], part) and len(part) == 2 and kinds.get(str(part[0]), lambda _: False)(part[1]) for part in path)


def is_consistent(kind: str, record: Json) -> bool:
    """What single fields cannot tell: which of them come together, and with what."""
    pairs = {"base": ("generation", "manifest"), "commit": ("parent", "parent_manifest")}
    if kind in pairs:
        one, other = pairs[kind]
        if (record[one] is None) != (record[other] is None):
            return False
    promise = record.get("guarantee") if kind in ("commit", "receipt") else None
    if promise is not None and (promise["level"] == "replay") != (promise.get("replay_samples") is not None):
        return False
    if kind in ("commit", "receipt") and (record["incarnation"], record["step"]) != order(record["generation"])[:2]:
        return False
    if kind == "receipt":
        lead = record.get("lead")
        in_pairs = lead is None or (lead["parent"] is None) == (lead["parent_manifest"] is None)
        return record["rank"] < record["participants"] and in_pairs and (lead is not None) == (record["rank"] == 0)
    if kind == "roster":
        return [entry["rank"] for entry in record["ranks"]] == list(range(len(record["ranks"]))) != []
    if kind == "run":
        return record.get("parent") is None or record.get("origin") is None
    return kind != "note" or (record["kind"] == "tag") == (record.get("tag") is not None)


def order(generation: str) -> tuple[int, ...]:
    """Generations are ordered as numbers (L-8)."""
    return tuple(map(int, generation.split("-")))


def decode(data: bytes, kind: str, key: str) -> Json:
    """The record in `data`; `kind` is a row of `FIELDS`, or `decision`."""

    def refuse(reason: object) -> Json:
        raise Refused("invalid-record", f"{key}: {reason}")

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        return dict(pairs) if len(dict(pairs)) == len(pairs) else refuse("a key is there twice (R-4)")

    def integer(digits: str) -> int:
        return int(digits) if len(digits) < 18 and abs(int(digits)) <= LIMIT else refuse("more than 53 bits (R-3)")

    try:
        record = json.loads(data.decode(), object_pairs_hook=unique, parse_int=integer, parse_float=refuse, parse_constant=refuse)
        canonical(record)  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        return refuse(f"not JSON of the format: {error}")
    if not isinstance(record, dict) or depth(record) > 64:
        return refuse("no object, or nested too deep (R-1, R-5)")
    form, version, requires = record.get("format"), record.get("version", ""), record.get("requires", [])  # in the order of R-11
    if not isinstance(form, str) or not form.startswith("ckpt/") or not fits(text(r"\d{1,4}\.\d{1,4}"), version):
        return refuse("no header of the format (R-10)")
    if not version.startswith("1.") or requires != []:
        raise Refused("unsupported-format", f"{key} is of version {version} and requires {requires} (R-11)")
    if form != f"ckpt/{kind}":
        return refuse(f"it is a {form} (R-12)")
    if kind == "decision":
        kind = record["decision"] if record.get("decision") in ("commit", "abort") else refuse("commit or abort? (R-66)")
    if not fits(FIELDS[kind], record) or not is_consistent(kind, record):
        return refuse("a field is absent, of another type, or not as another asks for (R-6, R-7)")
    return record


def depth(value: Json) -> int:
    """How deep a value is nested (R-5)."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + depth(item) for item in items), default=0)


# --- Digests (chapter 7) ---


def is_digest(expected: str, data: bytes) -> bool:
    """Whether bytes have a digest (D-1)."""
    found = hashlib.sha256(data) if expected.startswith("sha256:") else blake3(data)
    return found.hexdigest() == expected.partition(":")[2]


def canonical(value: Json) -> bytes:
    """Canonical JSON (R-1): keys are sorted by UTF-16 code units, as `sort_keys` would not do it."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return b"{" + b",".join(canonical(name) + b":" + canonical(value[name]) for name in names) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    """The digest that this reader makes."""
    return f"blake3:{blake3(data).hexdigest()}"


# --- Arrays (chapter 6) ---

_INTEGERS = ("int2", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = (
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3fn",
)
_MORE_FLOATS = ("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_AS_BYTES = ("int1", "uint1", "uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3")
STORED = {name: name for name in ("bool", *_INTEGERS, *_FLOATS, *_MORE_FLOATS)} | dict.fromkeys(_AS_BYTES, "uint8")
"""Logical → stored dtype (A-9)."""
NARROW = {"int1": 1, "uint1": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4}
NARROW |= {"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
"""Bits of elements that have less than a byte."""


def logical_bytes(array: np.ndarray, dtype: str) -> bytes:
    """The elements in C order, as digests are over them (D-3)."""
    if dtype in NARROW:
        array = np.ascontiguousarray(array).view(np.uint8) & np.uint8(2 ** NARROW[dtype] - 1)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def cells(leaf: Mapping[str, Json]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Places and box of every cell in grid order (A-1 to A-4)."""
    grid = (
        leaf["cuts"]
        if leaf.get("cuts") is not None
        else [[*range(0, n, size), n] if n else [] for n, size in zip(leaf["shape"], leaf["chunk_shape"], strict=True)]
    )
    for cell in itertools.product(*(enumerate(itertools.pairwise(edges)) for edges in grid)):
        yield tuple(place for place, _ in cell), tuple(slice(*bounds) for _, bounds in cell)


def is_named(component: str, leaf: Mapping[str, Json]) -> bool:
    """Whether a leaf has the name of its path (L-19)."""
    escaped = (re.sub(r"[%/\\\x00-\x1f\x7f]", lambda found: f"%{ord(found[0]):02X}", str(part[-1])) for part in leaf["path"])
    return leaf["name"] == ".".join([component, *escaped])


def is_sound(leaf: Mapping[str, Json], leaves: Mapping[str, Json]) -> bool:
    """Whether an array leaf has one grid, which covers it, or is an alias of one that has (R-37 to R-40, A-3, A-4, A-9, A-13)."""
    grids = [field for field in ("chunk_shape", "cuts", "alias") if leaf.get(field) is not None]
    shape, dtype, stored = leaf.get("shape"), leaf.get("dtype", ""), leaf.get("stored_dtype")
    if len(grids) != 1 or shape is None or len(shape) > 32 or stored is None or STORED.get(dtype, stored) != stored:
        return False
    if grids == ["alias"]:
        other = leaves.get(leaf["alias"], {"alias": ""})
        return other.get("alias") is None and [other.get(field) for field in ("shape", "dtype", "stored_dtype")] == [
            shape,
            dtype,
            stored,
        ]
    if len(leaf[grids[0]]) != len(shape) or math.prod(shape) > LIMIT:
        return False
    if grids == ["chunk_shape"]:
        return math.prod(-(-n // size) for n, size in zip(shape, leaf["chunk_shape"], strict=True)) <= 2**20
    covers = all(
        cuts[:1] == [0] and cuts[-1] == n and cuts == sorted(set(cuts)) for n, cuts in zip(shape, leaf["cuts"], strict=True)
    )
    return covers and 0 < math.prod(len(cuts) - 1 for cuts in leaf["cuts"]) <= 2**20
