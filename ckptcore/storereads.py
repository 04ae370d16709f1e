"""What is asked of any store: is a value there, has it this size, and the bytes of a record, bounded."""

from __future__ import annotations

from ckptcore.errors import InvalidRecord
from ckptcore.records import MAX_RECORD_BYTES
from ckptcore.store import Store

MAX_UNCERTIFIED_BYTES = 16 << 20
"""The most bytes of a record that no descriptor certifies: run, claim, base, note, decision, retired record."""


def exists(store: Store, key: str) -> bool:
    """Whether there is a value, in one request."""
    return store.get(key, 0, 1) is not None


def has_size(store: Store, key: str, size: int) -> bool:
    """Whether there is a value of exactly `size` bytes, in one request if there is."""
    return store.size(key, guess=size) == size


def record_bytes(store: Store, key: str) -> bytes | None:
    """The bytes of a record that no descriptor certifies, or None. Raises `InvalidRecord` when they are too many.

    Whoever can put a file into a copied run must not decide how much memory its reader needs.
    """
    data = _at_most(store, key, MAX_UNCERTIFIED_BYTES)
    if data is not None and len(data) > MAX_UNCERTIFIED_BYTES:
        raise InvalidRecord(f"{key}: more than the {MAX_UNCERTIFIED_BYTES} bytes that a record of its kind may have")
    return data


def bounded_bytes(store: Store, key: str, size: int | None = None) -> bytes | None:
    """The bytes of a record of `size` bytes, as its descriptor says: never more than one byte beyond that are read.

    On an object store the last `size` bytes are read, in one request: what is longer ends otherwise, as the digest tells that the
    caller compares (spec: H-5). Without `size`, as many as a record may have.
    """
    if size is None:
        return _at_most(store, key, MAX_RECORD_BYTES)
    if size == 0 or size > MAX_RECORD_BYTES or store.driver == "file":
        return store.get(key, 0, min(size, MAX_RECORD_BYTES) + 1)
    return store.get(key, -size)


def _at_most(store: Store, key: str, most: int) -> bytes | None:
    """A value, or one byte more than `most` of a longer one.

    A driver of an object store refuses a range that goes beyond the end once it has transferred what is there. So one byte is
    asked for first: where there is none, the value is not too long.
    """
    if store.driver == "file":
        return store.get(key, 0, most + 1)
    beyond = store.get(key, most, most + 1)
    if beyond is None:
        return None
    return store.get(key, 0, most + 1) if beyond else store.get(key)
