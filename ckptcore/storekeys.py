"""Checks of keys, prefixes and ranges that every store makes."""

from __future__ import annotations

from ckptcore.errors import CallError, InvalidRecord
from ckptcore.names import check_key

MAX_FOUND_BYTES = 16 << 20
"""How much of a value that was there first a put takes into memory; a longer one is refused, unless ours is as long."""


def directory_key(prefix: str) -> str:
    """The key of a directory: the prefix without its slash, empty for the root. Raises `InvalidRecord`."""
    key = prefix.removesuffix("/")
    return check_key(key) if key else ""


def check_range(key: str, start: int | None, stop: int | None) -> tuple[int, int | None]:
    """Check a byte range. Raises `CallError` for an inverted one, and for a negative end, or start with an end."""
    first = start or 0
    if (first < 0 and stop is not None) or (stop is not None and stop < first):
        raise CallError(f"{start}:{stop} is not a range of bytes of {key}")
    return first, stop


def is_key(key: str) -> bool:
    """Whether a listed name can be a key; temporary and foreign files cannot, nor can TensorStore's locks."""
    try:
        return not check_key(key).endswith(".__lock")
    except InvalidRecord:
        return False
