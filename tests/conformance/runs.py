"""Real runs for the oracle: made by the core with plain numpy arrays, two ranks in one process, every kind of object."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts

from ckpt_conformance.jobs import notes
from ckpt_conformance.oracle import canonical, digests, evidence, keys, manifests
from ckpt_conformance.oracle.run import Run
from ckpt_conformance.place import FilePlace, Place
from ckptcore import components as parts
from ckptcore.keep import Keep
from ckptcore.proof import Refuted
from ckptcore.retention import Collector
from tests.ckptcore.support import FakeClock, Job, Sharded, file_store, state

FIRST, SECOND, THIRD = "000001-000000000001-1", "000001-000000000002-1", "000001-000000000003-1"
ABORTED, NEXT, LAST, OPEN = "000001-000000000004-1", "000002-000000000005-1", "000002-000000000006-1", "000002-000000000007-1"
"""Generations of `run`, by what became of them; FIRST is retired, and OPEN has every receipt and no decision."""

UNCHANGED = {3: ("extra",), 6: ("params",)}
"""Step → components that are saved by reference."""


def rich(step: int, rank: int, size: int) -> dict[str, Any]:
    """`state` with more: arrays without cells or dimensions, padded cells, narrow dtypes, another shape on each rank."""
    ragged = np.arange(5 * 64, dtype=np.float64).reshape(5, 64) * step
    more = {
        "ragged": Sharded.of(ragged, rank, size),
        "empty": np.zeros((0, 4), np.int32),
        "scale": np.array(step, ml_dtypes.bfloat16),
        "four": (np.arange(900) % 15 - 7).astype(ml_dtypes.int4),
        "six": (np.arange(700) % 7).astype(ml_dtypes.float6_e2m3fn),
        "flags": np.arange(600) % 3 == 0,
        "z": np.arange(40, dtype=np.complex64) * (1 + 2j) * step,
        "zz": np.arange(40, dtype=np.complex64) * (2 + 1j) * step,
    }
    own = {"key": np.arange(2 + rank, dtype=np.uint32), "note": f"rank {rank}"}
    whole = {**state(step, rank, size), "extra": more, "rng": parts.PerRank(own)}
    return {name: component for name, component in whole.items() if name not in UNCHANGED.get(step, ())}


def run(folder: Path) -> None:
    """A run with two incarnations and every kind of record."""
    store = file_store(folder)
    job = Job(store, state_of=rich)
    job.open()
    job.save(1)
    job.save(2)
    job.save(3, unchanged=UNCHANGED[3])
    generation = job.next_generation(4)
    job.write(generation, 0)
    job.coordinator().abort(generation, Refuted("to have an abort", (1,)))
    job = Job(store, state_of=rich)
    job.open()
    job.save(5)
    job.save(6, unchanged=UNCHANGED[6])
    Collector(store, 2, FakeClock()).collect(Keep(last=5))
    generation = job.next_generation(7)
    for rank in (0, 1):
        job.write(generation, rank)
    place = FilePlace(folder)
    retire(place, FIRST)
    for kind, fields in NOTES:
        notes.put_note(place, SECOND, kind, fields)


NOTES: list[tuple[str, dict[str, Any]]] = [
    ("metrics", {"metrics": {"loss": 0.25}}),
    ("tag", {"tag": "best"}),
    ("pin", {"text": "kept"}),
    ("pin", {"name": "pin"}),
    ("verified", {"depth": "deep"}),
    ("quarantine", {"text": "bad data"}),
    ("damaged", {"text": "a bit"}),
]


def retire(place: Place, generation: str) -> None:
    """Retire a generation as a collector would, with a part of its data deleted."""
    put_retired(place, generation)
    for key in place.keys(f"{keys.state(generation)}ranks/00001"):
        place.delete(key)


def put_retired(place: Place, generation: str) -> None:
    """Retire a generation; all of its data is left."""
    digest = digests.digest(content(place, keys.decision(generation)))
    header = {"format": "ckpt/retired", "version": "1.0", "requires": [], "run_id": read(place, "run.json")["run_id"]}
    record = {**header, "generation": generation, "manifest": digest, "decided": "2026-01-01T00:00:00Z", "policy": "by the test"}
    put(place, keys.retired(generation), record)


def put(place: Place, key: str, record: Any) -> None:
    """Write a record in canonical form."""
    place.write(key, canonical.encode(record))


def database(place: Place, folder: str, **config: Any) -> ts.KvStore:
    """A database to write to, past all that a writer does."""
    pinned = {"max_inline_value_bytes": 512, "max_decoded_node_bytes": 2**20, "version_tree_arity_log2": 4, "compression": None}
    return ts.KvStore.open(
        {"driver": "ocdbt", "base": place.kvstore(folder), "config": pinned | config}, context=ts.Context()
    ).result()


def view(place: Place, generation: str) -> ts.KvStore:
    """The merged view of a generation."""
    return database(place, keys.state(generation))


def content(place: Place, key: str) -> bytes:
    found = place.read(key)
    assert found is not None, key
    return found


def read(place: Place, key: str) -> Any:
    return json.loads(content(place, key))


def edit(place: Place, key: str, change: Callable[[Any], object]) -> None:
    """Change a record in place, in canonical form."""
    record = read(place, key)
    change(record)
    place.write(key, canonical.encode(record))


def rename(place: Place, key: str) -> str:
    """Move a content-addressed record to the key of its bytes."""
    data = content(place, key)
    stem, _, _ = key.rpartition("blake3-")
    target = f"{stem}{keys.in_key(digests.digest(data))}.json"
    place.delete(key)
    place.write(target, data)
    return target


def described(place: Place, key: str) -> dict[str, Any]:
    """The descriptor of what lies at `key` now."""
    data = content(place, key)
    return {"key": key, "size": len(data), "digest": digests.digest(data)}


def derive_anew(place: Place, generation: str) -> None:
    """Make indexes, roster and manifest of what the receipts say by now, right or wrong: as one that proves nothing would."""
    delivery, problems = evidence.delivery(Run(place), generation)
    assert delivery is not None, problems
    derived = manifests.derive(delivery)
    for key in place.keys(f"{keys.folder(generation)}index/") + place.keys(f"{keys.folder(generation)}roster-"):
        place.delete(key)
    for key, data in derived.objects.items():
        place.write(key, data)
    place.write(keys.decision(generation), derived.manifest)
