"""The formula of chapter 15 of the spec once more: one element at a time, in plain Python, without numpy.

It is what the worked examples of the chapter were made with. Run as a program, it prints them.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from blake3 import blake3

MODULUS = 2**64
INTEGERS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (1, 2, 4, 8, 16, 32, 64)} | {"bool": 1}
FLOATS = {  # bits, bits of the exponent; whether the highest exponent is infinite or no number, as in IEEE 754
    "float16": (16, 5),
    "bfloat16": (16, 8),
    "float32": (32, 8),
    "float64": (64, 11),
    "float8_e3m4": (8, 3),
    "float8_e4m3": (8, 4),
    "float8_e5m2": (8, 5),
}
NO_NUMBERS = {  # the others: bits, and the patterns that are no number
    "float4_e2m1fn": (4, ()),
    "float6_e2m3fn": (6, ()),
    "float6_e3m2fn": (6, ()),
    "float8_e4m3fn": (8, (0x7F, 0xFF)),
    "float8_e4m3fnuz": (8, (0x80,)),
    "float8_e4m3b11fnuz": (8, (0x80,)),
    "float8_e5m2fnuz": (8, (0x80,)),
    "float8_e8m0fnu": (8, (0xFF,)),
}
COMPLEX = {"complex64": "float32", "complex128": "float64"}
DTYPES = [*INTEGERS, *FLOATS, *NO_NUMBERS, *COMPLEX]
SORTS = ("null", "bool", "int", "bigint", "float", "string", "bytes", "empty-dict", "empty-list")


def mix(y: int) -> int:
    y = (y ^ (y >> 30)) * 0xBF58476D1CE4E5B9 % MODULUS
    y = (y ^ (y >> 27)) * 0x94D049BB133111EB % MODULUS
    return y ^ (y >> 31)


def z(name: str, step: int, i: int) -> int:
    h = int.from_bytes(blake3(f"ckpt/fixture/1/{name}/{step}".encode()).digest()[:8], "little")
    return mix((h + (i + 1) * 0x9E3779B97F4A7C15) % MODULUS)


def element(name: str, dtype: str, step: int, i: int) -> bytes:
    """The logical bytes of one element."""
    if dtype in COMPLEX:
        return b"".join(_real(COMPLEX[dtype], z(name, step, part)) for part in (2 * i, 2 * i + 1))
    return _real(dtype, z(name, step, i))


def _real(dtype: str, number: int) -> bytes:
    bits = INTEGERS[dtype] if dtype in INTEGERS else (FLOATS.get(dtype) or NO_NUMBERS[dtype])[0]
    pattern = number % 2**bits
    if (dtype in FLOATS and _special(pattern, *FLOATS[dtype])) or (dtype in NO_NUMBERS and pattern in NO_NUMBERS[dtype][1]):
        pattern = 0
    return pattern.to_bytes(max(1, bits // 8), "little")


def _special(pattern: int, bits: int, exponent: int) -> bool:
    highest = 2**exponent - 1
    return (pattern >> (bits - 1 - exponent)) & highest == highest


def box(  # noqa: PLR0917 - in the order of `fixture.array`
    name: str, dtype: str, shape: Sequence[int], step: int, start: Sequence[int], stop: Sequence[int]
) -> bytes:
    """The logical bytes of a box."""
    places = itertools.product(*(range(first, last) for first, last in zip(start, stop, strict=True)))
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return b"".join(element(name, dtype, step, sum(p * s for p, s in zip(place, strides, strict=True))) for place in places)


def value(sort: str, name: str, step: int) -> Any:
    """The encoded value of a leaf."""
    number = z(name, step, 0)
    as_float = struct.unpack("<d", number.to_bytes(8, "little"))[0]
    encoded = {
        "null": None,
        "bool": number % 2 == 1,
        "int": number % 2**53,
        "bigint": {"$int": str(2**64 + number)},
        "float": {"$float": repr(as_float if math.isfinite(as_float) else 0.0)},
        "string": f"{name}@{step}",
        "bytes": {"$bytes": _base64(number.to_bytes(8, "little"))},
        "empty-dict": {},
        "empty-list": [],
    }
    return encoded[sort]


def _base64(data: bytes) -> str:
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    bits = int.from_bytes(data + b"\0", "big")  # 8 bytes: 11 digits and one of padding
    return "".join(digits[bits >> 6 * place & 63] for place in range(11, 0, -1)) + "="


BOXES = (
    ("params.scale", "float32", [], 1, [], []),
    ("params.w", "float32", [8, 96], 1, [0, 0], [1, 3]),
    ("params.w", "float32", [8, 96], 2, [0, 0], [1, 3]),
    ("params.w", "float32", [8, 96], 2, [3, 94], [5, 96]),
    ("rank_state.1.rng.key", "uint32", [3], 7, [0], [3]),
    ("extra.cube", "int64", [2, 3, 4], 5, [1, 1, 2], [2, 3, 3]),
    ("extra.empty", "float64", [0, 4], 1, [0, 0], [0, 4]),
    ("extra.naïve%2F", "int16", [3], 999999999999, [1], [3]),
)


def vectors() -> dict[str, list[dict[str, Any]]]:
    """The worked examples of X-5, by the tag of their block."""
    numbers = [("params.w", 1, 0), ("params.w", 1, 1), ("params.w", 2, 0), ("rank_state.0.rng.key", 1, 0)]
    numbers += [("sample", 49, 3), ("step", 999999999999, 2**40)]
    boxes = [*BOXES, *(("params.any", dtype, [4], 3, [0], [4]) for dtype in DTYPES), *_with_special()]
    keys = ("name", "dtype", "shape", "step", "start", "stop")
    return {
        "vectors-z": [{"name": n, "step": s, "i": i, "z": f"{z(n, s, i):016x}"} for n, s, i in numbers],
        "vectors-fixture": [dict(zip(keys, given, strict=True)) | {"hex": box(*given).hex()} for given in boxes],
        "vectors-fixture-value": [
            {"sort": sort, "name": "data.some", "step": 4, "encoded": value(sort, "data.some", 4)} for sort in SORTS
        ],
    }


def _with_special() -> Iterator[tuple[str, str, list[int], int, list[int], list[int]]]:
    """For each dtype that is not always finite a box of one element that has zero bits instead, where one is found soon."""
    often = {dtype: bits for dtype, (bits, _) in FLOATS.items() if bits < 64}
    often |= {dtype: bits for dtype, (bits, patterns) in NO_NUMBERS.items() if patterns}
    for dtype, bits in often.items():
        replaced = (i for i in range(5000) if z("params.odd", 3, i) % 2**bits and not any(element("params.odd", dtype, 3, i)))
        place = next(replaced)
        yield "params.odd", dtype, [5000], 3, [place], [place + 1]
    place = next(i for i in range(5000) if element("params.odd", "complex64", 3, i)[4:] == bytes(4))
    yield "params.odd", "complex64", [5000], 3, [place], [place + 1]


def _print() -> None:
    for tag, lines in vectors().items():
        text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        print(f"```{tag}\n{text}\n```\n")  # noqa: T201 - what it is for


if __name__ == "__main__":
    _print()
