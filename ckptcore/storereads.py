"""What is asked of any store: is a value there, has it this size, and the bytes of a record, bounded."""

from __future__ import annotations

from ckptcore.errors import InvalidRecord
from ckptcore.records import MAX_RECORD_BYTES
from ckptcore.store import Store

MAX_UNCERTIFIED_BYTES = 16 << 20
"""The most bytes of a record that no descriptor certifies: run, claim, base, note, decision, retired record."""

THREADS = 16
"""How many questions are asked at a time where there are many."""


def exists(store: Store, key: str) -> bool:
    """Whether there is a value, in one request."""
    return store.get(key, 0, 1) is not None


def has_size(store: Store, key: str, size: int) -> bool:
    """Whether there is a value of exactly `size` bytes.

    File systems tell sizes; of an object two bytes tell whether it ends where it should (spec: S-10).
    """
    if store.driver == "file":
        return store.size(key) == size
    return (size == 0 or bool(store.get(key, size - 1, size))) and store.get(key, size, size + 1) == b""


def record_bytes(store: Store, key: str) -> bytes | None:
    """The bytes of a record that no descriptor certifies, or None. Raises `InvalidRecord` when they are too many.

    Whoever can put a file into a copied run must not decide how much memory its reader needs.
    """
    data = store.get(key, 0, MAX_UNCERTIFIED_BYTES + 1)
    if data is not None and len(data) > MAX_UNCERTIFIED_BYTES:
        raise InvalidRecord(f"{key}: more than the {MAX_UNCERTIFIED_BYTES} bytes that a record of its kind may have")
    return data


def bounded_bytes(store: Store, key: str, size: int = MAX_RECORD_BYTES) -> bytes | None:
    """The bytes of a record of `size` bytes, as its descriptor says; at most one more, which tells that it is longer."""
    return store.get(key, 0, min(size, MAX_RECORD_BYTES) + 1)
