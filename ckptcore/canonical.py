"""Canonical JSON (RFC 8785) restricted to integers, and its strict decoder.

Records never hold JSON floats (spec: records, "numbers"): a float is a tagged string, so
the only numbers are integers of at most 53 bits and the canonical form needs no float
formatting. The decoder refuses what two readers could understand differently: duplicate
keys, floats, NaN, byte order marks, invalid UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

import msgspec

from ckptcore.errors import InvalidRecord

_BEYOND_BMP = re.compile(rb"[\xf0-\xf4]")
"""The first byte in UTF-8 of each character beyond the basic plane."""

MAX_INT = 2**53 - 1
MAX_DEPTH = 64


def encode(value: Any) -> bytes:
    """Encode to canonical JSON. Raises `InvalidRecord` on floats, big integers or bad text."""
    _check(value, 0)
    try:
        data = msgspec.json.encode(value, enc_hook=_plain, order="sorted")
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"text is not valid Unicode: {error}") from error
    # RFC 8785 sorts by UTF-16 code units, msgspec by code points: they differ beyond the BMP.
    return msgspec.json.encode(_sorted(value), enc_hook=_plain) if _BEYOND_BMP.search(data) else data


def decode(data: bytes, *, what: str) -> Any:
    """Decode strict JSON; `what` names the object in errors.

    Raises `InvalidRecord` for anything that is not one unambiguous JSON document.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
        _check(value, 0)
        if b"\\u" in data:  # an escaped lone surrogate is no text: no key or digest could be made of it
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError, InvalidRecord) as error:
        raise InvalidRecord(f"{what}: {str(error)[:300] or type(error).__name__}") from error
    return value


def _check(value: Any, depth: int) -> None:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidRecord(f"object key {key!r} is not a string")
        _check_items(value.values(), depth + 1)
    elif isinstance(value, list | tuple):
        _check_items(value, depth + 1)
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        return
    elif not isinstance(value, int):
        raise InvalidRecord(f"{type(value).__name__} is not a JSON type of this format")
    elif not -MAX_INT <= value <= MAX_INT:
        raise InvalidRecord("an integer is beyond 53 bits")


def _check_items(items: Collection[Any], depth: int) -> None:
    """Check what lies in one container. Text, of which records have most by far, costs no call."""
    if items and depth > MAX_DEPTH:
        raise InvalidRecord(f"nested deeper than {MAX_DEPTH} levels")
    for item in items:
        if type(item) is not str:
            _check(item, depth)


def _plain(value: Any) -> str | int:
    """What a subclass of text or of integers is, such as the version of a library: msgspec does not know them."""
    return str.__str__(value) if isinstance(value, str) else int(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InvalidRecord(f"duplicate key {twice!r}")
    return result


def _refuse_number(text: str) -> Any:
    raise InvalidRecord(f"number {text[:40]!r} is not an integer")


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value
