"""Values of JSON leaves: their one encoding, and what is wrong with another (spec: chapter 5)."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Any

from ckpt_conformance.oracle.canonical import LIMIT

_DEPTH = 48
_BYTES = 65_536
_BITS = 8_192
_INTEGER = re.compile(r"-?[1-9][0-9]*")
_FLOAT = re.compile(r"nan|-?inf|-?[0-9]+\.[0-9]+|-?[0-9](\.[0-9]+)?e[+-][0-9]{2,3}")


def encode(value: Any) -> Any:
    """The encoding of a value. Raises `TypeError` for one that has none (V-2)."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= LIMIT else {"$int": str(value)}
    if isinstance(value, float):
        return {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return _encode_dict(value)
    raise TypeError(f"{type(value).__name__} is no type of a value")


def _encode_dict(value: dict[Any, Any]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: encode(item) for key, item in value.items()}
    keys = sorted(value, key=lambda key: (isinstance(key, str), key))
    return {"$dict": [[encode(key), encode(value[key])] for key in keys]}


def problem(encoded: Any, depth: int = 0) -> tuple[str, str] | None:
    """The clause that an encoded value breaks, and how; None if it is right."""
    if depth > _DEPTH:
        return "V-9", f"a value deeper than {_DEPTH}"
    if isinstance(encoded, list):
        return _first(encoded, depth + 1)
    if not isinstance(encoded, dict):
        return None
    tags = [key for key in encoded if key.startswith("$")]
    if not tags:
        return _first(encoded.values(), depth + 1)
    if len(encoded) > 1 or tags[0] not in _TAGS:
        return "V-1", f"an object with the key {tags[0]!r} that is no tagged value"
    return _TAGS[tags[0]](encoded[tags[0]], depth)


def _first(items: Any, depth: int) -> tuple[str, str] | None:
    return next((found for item in items if (found := problem(item, depth)) is not None), None)


def _tuple(items: Any, depth: int) -> tuple[str, str] | None:
    if not isinstance(items, list):
        return "V-1", "a $tuple that holds no array"
    return _first(items, depth + 2)


def _dict(items: Any, depth: int) -> tuple[str, str] | None:
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 2 for item in items):
        return "V-1", "a $dict that holds no pairs"
    keys: list[Any] = [_key(item[0]) for item in items]
    if None in keys or keys != sorted(set(keys)):
        return "V-6", "keys of a $dict that are no integers and text, in order, each once"
    if not any(isinstance(key, int) or key.startswith("$") for _, key in keys):
        return "V-6", "a $dict whose keys are all those of a plain object"
    return _first((part for item in items for part in item), depth + 3)


def _key(encoded: Any) -> Any:
    """What orders the keys of a `$dict`: integers first. None for what is no key."""
    if isinstance(encoded, str):
        return True, encoded
    if isinstance(encoded, int) and not isinstance(encoded, bool):
        return False, encoded
    if isinstance(encoded, dict) and list(encoded) == ["$int"] and problem(encoded) is None:
        return False, int(encoded["$int"])
    return None


def _int(text: Any, depth: int) -> tuple[str, str] | None:  # noqa: ARG001 - all tags are judged with a depth
    if not isinstance(text, str) or len(text) > 2_500 or not _INTEGER.fullmatch(text):
        return "V-3", "an $int that is no decimal"
    number = int(text)
    if abs(number) <= LIMIT or abs(number).bit_length() > _BITS:
        return "V-3", "an $int that fits into the plain form, or is too large"
    return None


def _float(text: Any, depth: int) -> tuple[str, str] | None:  # noqa: ARG001
    if not isinstance(text, str) or not _FLOAT.fullmatch(text) or repr(float(text)) != text:
        return "V-4", f"the $float {str(text)[:40]!r}, which is not how the number is written"
    return None


def _bytes(text: Any, depth: int) -> tuple[str, str] | None:  # noqa: ARG001
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        data = None
    if data is None or base64.b64encode(data).decode() != text:
        return "V-5", "$bytes that are no base64"
    return ("V-5", f"$bytes of more than {_BYTES}") if len(data) > _BYTES else None


_TAGS = {"$int": _int, "$float": _float, "$bytes": _bytes, "$tuple": _tuple, "$dict": _dict}


def is_number(encoded: Any) -> bool:
    """Whether an encoded value is a finite floating-point number, as a metric has to be (R-70)."""
    tagged = isinstance(encoded, dict) and list(encoded) == ["$float"] and problem(encoded) is None
    return tagged and math.isfinite(float(encoded["$float"]))
