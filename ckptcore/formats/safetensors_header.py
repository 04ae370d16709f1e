"""The safetensors format: the header of a file, and the index over several files (pure).

A file is: 8 bytes, the header's length in little endian; the header, a JSON object from each tensor's
name to `{"dtype", "shape", "data_offsets": [begin, end]}`, with text about the file under
`__metadata__`; the bytes of all tensors, in C order and little endian, without holes or overlaps.
Sources: https://github.com/huggingface/safetensors#format.

What comes from a file is hostile until it is checked. Nothing in here allocates what a header merely claims.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from ckptcore import canonical, dtypes
from ckptcore.errors import Damaged, InvalidRecord, UnsupportedFormat, UnsupportedLeaf

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""As many as the format allows."""
METADATA = "__metadata__"
_ALIGNMENT = 8
_MAX_DIMENSIONS = 32

DTYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""The format's name of a dtype → the logical one. Those of less than a byte are left out: they are packed."""
_FORMAT_NAMES = {logical: name for name, logical in DTYPES.items()}

_Count = Annotated[int, msgspec.Meta(ge=0, le=canonical.MAX_INT)]
T = TypeVar("T")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[_Count]
    data_offsets: tuple[_Count, _Count]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True)
class Slot:
    """A tensor of a file: its logical dtype, its shape, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def header_length(first: bytes, size: int, *, where: str) -> int:
    """The length of the header, from the first 8 bytes of a file of `size` bytes. Raises a `DamageError`."""
    if len(first) < LENGTH_BYTES:
        raise Damaged(f"{where}: {len(first)} bytes are no safetensors file, which has a header")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise InvalidRecord(f"{where}: a header of {length} bytes is more than a safetensors file may have ({MAX_HEADER_BYTES})")
    if LENGTH_BYTES + length > size:
        raise Damaged(f"{where}: the header has {length} bytes, the file {size} in all: it is cut short")
    return length


def parse(header: bytes, size: int, *, where: str) -> dict[str, Slot]:
    """The tensors of a file of `size` bytes, by name, in the order of their bytes.

    Raises `InvalidRecord` for anything that the format does not allow, `UnsupportedFormat` for a dtype that this release
    does not know, `Damaged` for a file that is shorter or longer than its header says; each names the file and the tensor.
    """
    if not header.startswith(b"{"):
        raise InvalidRecord(f"{where}: the header does not start with '{{': not a safetensors file")
    raw = _object(header, where)
    if METADATA in raw:
        _convert(raw.pop(METADATA), dict[str, str], f"{where}: {METADATA}")
    base = LENGTH_BYTES + len(header)
    entries = [(_named(name, where), _convert(entry, _Entry, _named(name, where)), name) for name, entry in raw.items()]
    entries.sort(key=lambda item: item[1].data_offsets)
    end = 0
    slots: dict[str, Slot] = {}
    for what, entry, name in entries:
        nbytes = _checked_size(entry, what)
        begin, stop = entry.data_offsets
        if begin != end:
            raise InvalidRecord(f"{what} begins at byte {begin}, the one before it ends at {end}: a hole or an overlap")
        if stop - begin != nbytes:
            raise InvalidRecord(f"{what} has {stop - begin} bytes, {entry.dtype}{entry.shape} takes {nbytes}")
        slots[name], end = Slot(DTYPES[entry.dtype], tuple(entry.shape), base + begin, nbytes), stop
    if base + end != size:
        raise Damaged(f"{where}: the tensors end at byte {base + end}, the file has {size}: it is cut short, or not one file")
    return slots


def parse_index(data: bytes, *, where: str) -> dict[str, str]:
    """Tensor → file, from an `*.index.json`. Raises `InvalidRecord`, also for a file that is not beside the index."""
    files = _convert(_object(data, where), _Index, where).weight_map
    for name, file in files.items():
        if not file or "/" in file or "\\" in file or "\0" in file or file in (".", ".."):
            raise InvalidRecord(f"{_named(name, where)} lies in {file[:200]!r}, which is no plain file name")
    return files


def layout(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, list[str]]:
    """The header of a new file (its length included), and the order in which the tensors' bytes follow it.

    `tensors` maps names to logical dtype and shape. The widest types come first, so that each tensor is aligned.
    """
    order = sorted(tensors, key=lambda name: (-dtypes.itemsize(tensors[name][0]), name))
    described: dict[str, Any] = {METADATA: {"format": "pt"}}
    end = 0
    for name in order:
        dtype, shape = tensors[name]
        begin, end = end, end + math.prod(shape) * dtypes.itemsize(dtype)
        described[name] = {"dtype": format_name(dtype, where=repr(name)), "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, order


def index_text(files: Mapping[str, str], total: int) -> bytes:
    """The index over several files: `files` maps tensors to files, `total` is the number of bytes of all tensors."""
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def format_name(dtype: str, *, where: str) -> str:
    """The format's name of a logical dtype. Raises `UnsupportedLeaf`, naming `where`, if it has none."""
    if dtype not in _FORMAT_NAMES:
        known = ", ".join(sorted(_FORMAT_NAMES))
        raise UnsupportedLeaf(f"{where}: safetensors files hold no {dtype}, only {known}; export it with dtype=, or leave it out")
    return _FORMAT_NAMES[dtype]


def _checked_size(entry: _Entry, what: str) -> int:
    if entry.dtype not in DTYPES:
        raise UnsupportedFormat(f"{what} has dtype {entry.dtype[:80]!r}, this release knows {', '.join(DTYPES)}")
    if len(entry.shape) > _MAX_DIMENSIONS:
        raise InvalidRecord(f"{what} has {len(entry.shape)} dimensions, more than {_MAX_DIMENSIONS}")
    itemsize = dtypes.itemsize(DTYPES[entry.dtype])
    if math.prod(filter(None, entry.shape)) * itemsize > canonical.MAX_INT:  # also where a zero hides it
        raise InvalidRecord(f"{what} has shape {entry.shape}, which is no array's")
    return math.prod(entry.shape) * itemsize


def _named(name: str, where: str) -> str:
    return f"{where}: tensor {name[:200]!r}"


def _object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object, strictly: no duplicate keys, no invalid UTF-8. (Numbers may be fractions: indexes have such.)"""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
        if b"\\u" in data:  # an escaped lone surrogate is no text
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{where}: not JSON as safetensors has it: {str(error)[:300] or type(error).__name__}") from error
    if not isinstance(value, dict):
        raise InvalidRecord(f"{where}: a JSON object is expected there")
    return value


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"two values for {key[:200]!r}")
        result[key] = value
    return result


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _convert(value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"{what}: {error}") from error
