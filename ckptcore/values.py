"""JSON leaves: Python values to tagged JSON and back, without loss (spec: values).

| value | encoded |
| --- | --- |
| None, bool, str, int of at most 53 bits | itself |
| larger int, up to 8,192 bits | `{"$int": "<decimal>"}` |
| float | `{"$float": "<shortest decimal that reads back>"}`, also `nan`, `inf`, `-inf`, `-0.0` |
| bytes, up to 64 KiB | `{"$bytes": "<base64>"}` |
| list | array |
| tuple | `{"$tuple": [...]}` |
| dict of str keys, none starting with `$` | object |
| any other dict of str and int keys | `{"$dict": [[key, value], ...]}`, ints first, each in order |

Types are exact: a bool is no int, a NamedTuple no tuple, a numpy scalar no number. Each value
has one encoding, so equal values have equal digests; the order of a dict is not kept, nor are
the payload bits of a NaN.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from ckptcore.canonical import MAX_INT
from ckptcore.errors import InvalidRecord, UnsupportedLeaf

MAX_BYTES = 64 << 10
"""The most bytes a bytes value may have; larger ones are stored as uint8 arrays."""
MAX_INT_BITS = 8_192
"""The largest int, in bits."""
MAX_DEPTH = 48
"""The deepest nesting of the encoded form, so that it fits into a record."""

_BIG_INT = re.compile(r"-?[1-9][0-9]{0,2499}")


def encode(value: Any, *, where: str) -> Any:
    """`value` as tagged JSON; `where` names the leaf in errors.

    Raises `UnsupportedLeaf`, naming place and type, for anything that the table above lacks.
    """
    return _encode(value, where, 0)


def decode(encoded: Any, *, where: str) -> Any:
    """The value of tagged JSON; `where` names the leaf in errors.

    Raises `InvalidRecord` for anything that `encode` does not write.
    """
    return _decode(encoded, where, 0)


def _encode(value: Any, where: str, depth: int) -> Any:
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise UnsupportedLeaf(
            f"{where}: {_type_name(value)} has no place in a checkpoint. Supported are None, bool, int, float, str, bytes, "
            "list, tuple, dict with str or int keys, and arrays; convert it (a numpy scalar: `.item()`) or leave it out"
        )
    if depth > MAX_DEPTH:
        raise UnsupportedLeaf(f"{where}: nested too deeply (or within itself)")
    return encoder(value, where, depth)


def _encode_same(value: Any, _where: str, _depth: int) -> Any:
    return value


def _encode_int(value: int, where: str, _depth: int) -> Any:
    if -MAX_INT <= value <= MAX_INT:
        return value
    if value.bit_length() > MAX_INT_BITS:
        raise UnsupportedLeaf(f"{where}: an int of {value.bit_length()} bits is too large ({MAX_INT_BITS}); store it as bytes")
    return {"$int": str(value)}


def _encode_float(value: float, _where: str, _depth: int) -> Any:
    return {"$float": repr(value)}


def _encode_str(value: str, where: str, _depth: int) -> Any:
    if not _is_text(value):
        raise UnsupportedLeaf(f"{where}: the string {value[:40]!r} holds a lone surrogate, so it is not valid Unicode")
    return value


def _encode_bytes(value: bytes, where: str, _depth: int) -> Any:
    if len(value) > MAX_BYTES:
        raise UnsupportedLeaf(f"{where}: {len(value)} bytes are more than a value may have ({MAX_BYTES}); make it a uint8 array")
    return {"$bytes": base64.b64encode(value).decode("ascii")}


def _encode_list(value: list[Any], where: str, depth: int) -> Any:
    return [_encode(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]


def _encode_tuple(value: tuple[Any, ...], where: str, depth: int) -> Any:
    return {"$tuple": _encode_list(list(value), where, depth + 1)}


def _encode_dict(value: dict[Any, Any], where: str, depth: int) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise UnsupportedLeaf(f"{where}: the dict key {key!r} is a {_type_name(key)}; only str and int keys are supported")
    if not _needs_pairs(value):
        return {_encode_str(key, where, depth): _encode(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    return {
        "$dict": [
            [_encode(key, where, depth + 3), _encode(value[key], f"{where}[{key!r}]", depth + 3)]
            for key in sorted(value, key=_key_order)
        ]
    }


def _needs_pairs(keys: Any) -> bool:
    return any(type(key) is int or key.startswith("$") for key in keys)


def _key_order(key: str | int) -> tuple[bool, Any]:
    return (isinstance(key, str), key)


def _decode(encoded: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidRecord(f"{where}: nested too deeply")
    if encoded is None or isinstance(encoded, bool):
        return encoded
    if isinstance(encoded, str):
        _require(_is_text(encoded), where, "a string is not valid Unicode")
        return encoded
    if isinstance(encoded, int):
        _require(-MAX_INT <= encoded <= MAX_INT, where, "an integer beyond 53 bits is not tagged")
        return encoded
    if isinstance(encoded, list):
        return [_decode(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(encoded)]
    _require(isinstance(encoded, dict), where, f"{_type_name(encoded)} is not an encoded value")
    return _decode_object(encoded, where, depth)


def _decode_object(encoded: dict[str, Any], where: str, depth: int) -> Any:
    tags = [key for key in encoded if key.startswith("$")]
    if not tags:
        return {key: _decode(item, f"{where}[{key!r}]", depth + 1) for key, item in encoded.items()}
    _require(len(encoded) == 1 and tags[0] in _DECODERS, where, f"unknown or misplaced tag {tags[0][:40]!r}")
    decoder, kind = _DECODERS[tags[0]]
    content = encoded[tags[0]]
    _require(isinstance(content, kind), where, f"{tags[0]} holds a {_type_name(content)}")
    return decoder(content, where, depth)


def _decode_int(text: str, where: str, _depth: int) -> int:
    _require(_BIG_INT.fullmatch(text) is not None, where, f"{text[:40]!r} is not a large integer")
    value = int(text)
    _require(not -MAX_INT <= value <= MAX_INT, where, f"{text!r} is tagged although it is small")
    _require(value.bit_length() <= MAX_INT_BITS, where, f"an int of {value.bit_length()} bits is too large")
    return value


def _decode_float(text: str, where: str, _depth: int) -> float:
    try:
        value = float(text[:40])
    except ValueError:
        raise InvalidRecord(f"{where}: {text[:40]!r} is not a float") from None
    _require(repr(value) == text, where, f"{text[:40]!r} is not the shortest form of a float")
    return value


def _decode_bytes(text: str, where: str, _depth: int) -> bytes:
    _require(len(text) <= MAX_BYTES * 4 // 3 + 4, where, f"{len(text)} characters of base64 are too many")
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRecord(f"{where}: {text[:40]!r} is not base64") from None
    _require(len(value) <= MAX_BYTES, where, f"{len(value)} bytes are more than a value may have")
    _require(base64.b64encode(value).decode("ascii") == text, where, "base64 is not in its canonical form")
    return value


def _decode_tuple(items: list[Any], where: str, depth: int) -> tuple[Any, ...]:
    return tuple(_decode(items, where, depth + 1))


def _decode_dict(pairs: list[Any], where: str, depth: int) -> dict[str | int, Any]:
    result: dict[str | int, Any] = {}
    for pair in pairs:
        _require(isinstance(pair, list) and len(pair) == 2, where, "$dict does not hold pairs")
        key = _decode(pair[0], where, depth + 3)
        _require(type(key) in (str, int), where, f"a dict key is a {_type_name(key)}")
        _require(key not in result, where, f"the dict key {key!r} is there twice")
        result[key] = _decode(pair[1], f"{where}[{key!r}]", depth + 3)
    _require(_needs_pairs(result), where, "$dict is used for plain keys")
    _require(list(result) == sorted(result, key=_key_order), where, "the keys of $dict are not in order")
    return result


def _require(condition: object, where: str, problem: str) -> None:
    if not condition:
        raise InvalidRecord(f"{where}: {problem}")


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


_ENCODERS: dict[type, Callable[[Any, str, int], Any]] = {
    type(None): _encode_same,
    bool: _encode_same,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
}

_DECODERS: dict[str, tuple[Callable[[Any, str, int], Any], type]] = {
    "$int": (_decode_int, str),
    "$float": (_decode_float, str),
    "$bytes": (_decode_bytes, str),
    "$tuple": (_decode_tuple, list),
    "$dict": (_decode_dict, list),
}
