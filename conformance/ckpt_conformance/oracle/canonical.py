"""JSON as records have it: strict when read (R-3 to R-5), canonical when written (R-1)."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

LIMIT = 2**53 - 1
DEPTH = 64

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


class NotCanonical(ValueError):
    """Text that is not JSON of the format; `clause` says which rule it breaks."""

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(text)
        self.clause = clause


def decode(data: bytes) -> Any:
    """The JSON value of a record's bytes. Raises `NotCanonical`."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise NotCanonical("R-1", "begins with a byte order mark")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotCanonical("R-4", f"is not UTF-8: {error.reason} at byte {error.start}") from None
    if _too_deep(text):
        raise NotCanonical("R-5", f"is nested deeper than {DEPTH}")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_fraction, parse_constant=_fraction, parse_int=_integer)
    except json.JSONDecodeError as error:
        clause = "R-1" if error.msg == "Extra data" else "R-4"
        raise NotCanonical(clause, f"is not JSON: {error.msg} at character {error.pos}") from None
    if _depth(value) > DEPTH:
        raise NotCanonical("R-5", f"is nested deeper than {DEPTH}")
    if _half_of_a_pair(value):
        raise NotCanonical("R-4", "has a lone surrogate")
    return value


def encode(value: Any) -> bytes:
    """The canonical form of a value of objects, arrays, text, integers, booleans and null. Raises `NotCanonical`."""
    return _encode(value).encode()


def _encode(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        if abs(value) > LIMIT:
            raise NotCanonical("R-3", f"{value} has more than 53 bits")
        return str(value)
    if isinstance(value, str):
        return '"' + _ESCAPED.sub(_escape, value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ",".join(_encode(item) for item in value) + "]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_encode(key)}:{_encode(value[key])}" for key in keys) + "}"
    raise NotCanonical("R-3", f"{value!r} has no place in a record")


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotCanonical("R-4", "has a key twice in one object")
    return found


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > LIMIT:
        raise NotCanonical("R-3", f"{text[:40]} has more than 53 bits")
    return int(text)


def _fraction(text: str) -> NoReturn:
    raise NotCanonical("R-3", f"{text[:40]} is not an integer")


def _too_deep(text: str) -> bool:
    """Whether brackets are nested deeper than any allowed value's: looked at before the parser, which recurses."""
    depth = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > DEPTH + 1:
            return True
    return False


def _depth(value: Any) -> int:
    """How deep a value is nested; a scalar and an empty container are at depth 0."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + _depth(item) for item in items), default=0)


def _half_of_a_pair(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_half_of_a_pair(key) or _half_of_a_pair(item) for key, item in value.items())
    return isinstance(value, list) and any(_half_of_a_pair(item) for item in value)
