"""The merged root: one view over all processes' databases, no data copied (spec: commit, "merge").

It is derived data: merging again, by the same or another coordinator, gives the same view, and
what it serves is proven by the chunk digests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import tensorstore as ts

from ckptcore.array_spec import MANIFEST, Piece, StoredArray, answer, database, read_error, write_error
from ckptcore.digests import digest
from ckptcore.errors import CallError, CheckpointError, StoreUnavailable
from ckptcore.store import Store
from ckptcore.storereads import exists

SHOWN = 8
MAX_METADATA_BYTES = 64 << 10


def merge(store: Store, state_prefix: str, databases: Sequence[str]) -> None:
    """Make the database at `state_prefix` a view of all `databases` (prefixes below it), durably.

    One transaction, so that a reader sees all of it or nothing. A database that does not exist
    counts as empty: `check_merged` tells. Raises `Damaged` or a `StoreError`, naming a database.
    """
    if any(not prefix.startswith(state_prefix) for prefix in databases):
        raise CallError(f"only databases below {state_prefix} can be merged into it")
    if not databases:
        return
    transaction = ts.Transaction(atomic=False)
    root = _open(store, state_prefix, **_identity(store, state_prefix)).with_transaction(transaction)
    copying = [(prefix, _open(store, prefix).experimental_copy_range_to(root)) for prefix in databases]
    for prefix, copy in copying:
        answer(copy, f"database {prefix}", read_error)
    answer(transaction.commit_async(), f"merged root of {state_prefix}", _merge_error)
    store.sync(f"{state_prefix}d/")


def merged_keys(store: Store, state_prefix: str) -> set[str]:
    """Every key of the merged root. Raises `Damaged` or a `StoreError`."""
    keys = answer(_open(store, state_prefix).list(), f"merged root of {state_prefix}", read_error)
    return {key.decode("utf-8", "backslashreplace") for key in keys}


def check_merged(store: Store, state_prefix: str, expected: Mapping[str, StoredArray]) -> list[str]:
    """What is wrong with the merged root; empty when it has exactly the keys of `expected`, and their metadata.

    Chunks are not read. The text names a few keys, so that its length is bounded. Raises
    `Damaged` or a `StoreError` when the root cannot be read.
    """
    wanted = {key for array in expected.values() for key in array.all_keys()}
    found = merged_keys(store, state_prefix)
    problems = []
    if wanted - found:
        problems.append(f"the merged root of {state_prefix} lacks {_some(wanted - found)}")
    if found - wanted:
        problems.append(f"the merged root of {state_prefix} has keys that no layout asks for: {_some(found - wanted)}")
    if not problems:
        pieces = [piece for array in expected.values() for piece in array.pieces()]
        problems.extend(_metadata_problems(store, state_prefix, pieces))
    return problems


def metadata_problem(piece: Piece, data: bytes) -> str | None:
    """What is wrong with a stored `zarr.json`: anything but what the layout says is refused."""
    try:
        found = json.loads(data) if len(data) <= MAX_METADATA_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if found == piece.metadata:
        return None
    return f"{piece.metadata_key} does not describe {piece.dtype}{list(piece.shape)} in chunks of {list(piece.chunk_shape)}"


def _metadata_problems(store: Store, state_prefix: str, pieces: Sequence[Piece]) -> list[str]:
    root = _open(store, state_prefix)
    reading = [(piece, root.read(piece.metadata_key)) for piece in pieces]
    found = []
    for piece, future in reading:
        result = answer(future, f"{piece.metadata_key} in {state_prefix}", read_error)
        problem = metadata_problem(piece, bytes(result.value))
        if problem:
            found.append(problem)
    return found[:SHOWN]


def _open(store: Store, prefix: str, **config: str) -> ts.KvStore:
    spec = database(store, prefix)
    spec["config"] = {**spec["config"], **config}
    return answer(ts.KvStore.open(spec, context=store.context), f"database {prefix}", read_error)


def _identity(store: Store, state_prefix: str) -> dict[str, str]:
    """The OCDBT identity of a root that is yet to be made: coordinators that make it at the same time must agree on it."""
    if exists(store, f"{state_prefix}{MANIFEST}"):
        return {}
    return {"uuid": digest(state_prefix.encode()).partition(":")[2][:32]}


def _merge_error(error: Exception, what: str) -> CheckpointError:
    # A root that is there already is read on the way: when it is broken, trying again does not help.
    failure = write_error(error, what)
    return read_error(error, what) if isinstance(failure, StoreUnavailable) else failure


def _some(keys: Iterable[str]) -> str:
    shown = sorted(keys)
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
