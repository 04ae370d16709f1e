"""The merged root: one view over all processes' databases, no data copied (spec: commit, "merge").

It is derived data: merging again, by the same or another coordinator, gives the same view, and
what it serves is proven by the chunk digests.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorstore as ts

from ckptcore.array_spec import MANIFEST, Piece, StoredArray, answer, database, new_root, read_error, write_error
from ckptcore.errors import CallError, CheckpointError, StoreUnavailable
from ckptcore.store import Store
from ckptcore.storereads import exists

SHOWN = 8
MAX_METADATA_BYTES = 64 << 10
AT_ONCE = 64
"""Databases that are copied at a time: enough to hide the latency of a store, few enough for their trees to fit into memory."""
READS = 4096
"""Metadata documents that are read at a time: an array on an irregular grid has one for each chunk."""
NODE_CACHE_BYTES = 32 << 20
"""Memory for the tree of one database while it is merged or checked."""


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
    root = _open(_root(store, state_prefix), store, state_prefix).with_transaction(transaction)
    copying: deque[tuple[str, ts.Future[Any]]] = deque()
    for prefix in databases:
        if len(copying) == AT_ONCE:
            _copied(*copying.popleft())
        copying.append((prefix, _read(store, prefix).experimental_copy_range_to(root)))
    for prefix, copy in copying:
        _copied(prefix, copy)
    answer(transaction.commit_async(), f"merged root of {state_prefix}", _merge_error)
    store.sync(f"{state_prefix}d/")


def _copied(prefix: str, copy: ts.Future[Any]) -> None:
    answer(copy, f"database {prefix}", read_error)


def merged_keys(store: Store, state_prefix: str) -> set[str]:
    """Every key of the merged root. Raises `Damaged` or a `StoreError`."""
    return _keys(_read(store, state_prefix), state_prefix)


def _keys(root: ts.KvStore, state_prefix: str) -> set[str]:
    keys = answer(root.list(), f"merged root of {state_prefix}", read_error)
    return {key.decode("utf-8", "backslashreplace") for key in keys}


def check_merged(store: Store, state_prefix: str, expected: Mapping[str, StoredArray]) -> list[str]:
    """What is wrong with the merged root; empty when it has exactly the keys of `expected`, and their metadata.

    Chunks are not read. The text names a few keys, so that its length is bounded. Raises
    `Damaged` or a `StoreError` when the root cannot be read.
    """
    root = _read(store, state_prefix)
    found = _keys(root, state_prefix)
    wanted, lacking = 0, set[str]()
    for array in expected.values():  # the keys of one array at a time: no two arrays share one
        keys = set(array.all_keys())
        wanted += len(keys)
        lacking |= keys - found
    problems = []
    if lacking:
        problems.append(f"the merged root of {state_prefix} lacks {_some(lacking)}")
    if len(found) > wanted - len(lacking):
        stray = found.difference(*(array.all_keys() for array in expected.values()))
        problems.append(f"the merged root of {state_prefix} has keys that no layout asks for: {_some(stray)}")
    if not problems:
        pieces = [piece for array in expected.values() for piece in array.pieces()]
        problems.extend(_metadata_problems(root, state_prefix, pieces))
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


def _metadata_problems(root: ts.KvStore, state_prefix: str, pieces: Sequence[Piece]) -> list[str]:
    found = []
    for first in range(0, len(pieces), READS):
        reading = [(piece, root.read(piece.metadata_key)) for piece in pieces[first : first + READS]]
        for piece, future in reading:
            result = answer(future, f"{piece.metadata_key} in {state_prefix}", read_error)
            problem = metadata_problem(piece, bytes(result.value))
            if problem:
                found.append(problem)
    return found[:SHOWN]


def _open(spec: dict[str, Any], store: Store, prefix: str) -> ts.KvStore:
    return answer(ts.KvStore.open(spec, context=store.context), f"database {prefix}", read_error)


def _read(store: Store, prefix: str) -> ts.KvStore:
    """A database that is complete. What was read of its tree is kept, so that nothing of it is asked for twice."""
    cache = {"cache_pool": {"total_bytes_limit": NODE_CACHE_BYTES}}
    return _open({**database(store, prefix), **cache}, store, prefix)


def _root(store: Store, state_prefix: str) -> dict[str, Any]:
    """The merged root to write: a new one, or that of a coordinator who has been here before."""
    made = exists(store, f"{state_prefix}{MANIFEST}")
    return database(store, state_prefix) if made else new_root(store, state_prefix)


def _merge_error(error: Exception, what: str) -> CheckpointError:
    # A root that is there already is read on the way: when it is broken, trying again does not help.
    failure = write_error(error, what)
    return read_error(error, what) if isinstance(failure, StoreUnavailable) else failure


def _some(keys: Iterable[str]) -> str:
    shown = sorted(keys)
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
