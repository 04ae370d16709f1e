"""What an Orbax checkpoint says of itself: the tree of `_METADATA`, texts, and which arrays are random keys (pure).

What comes from a file is hostile until it is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ckptcore import canonical
from ckptcore.errors import InvalidRecord, UnsupportedFormat
from ckptcore.names import Path
from ckptcore.orbax_view import EMPTY

Kind = Literal["array", "scalar", "text", "empty"]
T = TypeVar("T")

_SEQUENCE, _DICT = 1, 2
_INDEX = re.compile("0|[1-9][0-9]{0,19}")
_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("jax.Array", "np.ndarray"), "array"),
    "scalar": "scalar",
    "string": "text",
    **dict.fromkeys((*EMPTY, "NamedTuple"), "empty"),
}
_MAX_DEPTH = 128
_KEY_WORDS: Mapping[str, int] = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}
"""The implementations of random keys → how many uint32 a key has."""
_PLAIN_CODECS: Mapping[str, int] = {"bytes": 0, "transpose": 0, "crc32c": 4}
"""Codecs that change no sizes → the bytes that they add to a chunk."""


@dataclass(frozen=True)
class Entry:
    """A leaf of the tree. `name` is what Orbax calls it; `empty` is the node that has no leaves."""

    path: Path
    name: str
    kind: Kind
    empty: Any = None


@dataclass(frozen=True)
class Tree:
    """A checkpoint's tree, and how its arrays are stored. `dense`: a chunk that is not stored is missing, not zero."""

    entries: tuple[Entry, ...]
    zarr3: bool
    dense: bool


class _Key(msgspec.Struct, frozen=True):
    key: str
    key_type: int


class _Value(msgspec.Struct, frozen=True):
    value_type: str


class _Node(msgspec.Struct, frozen=True):
    key_metadata: Annotated[list[_Key], msgspec.Meta(min_length=0, max_length=_MAX_DEPTH)]
    value_metadata: _Value


class _Metadata(msgspec.Struct, frozen=True):
    tree_metadata: dict[str, _Node]
    use_zarr3: bool = False
    store_array_data_equal_to_fill_value: bool = False


class _Extra(msgspec.Struct, frozen=True):
    random_key_impl: str | None = None


class _Array(msgspec.Struct, frozen=True):
    param_name: str
    ext_metadata: _Extra | None = None


class _Described(msgspec.Struct, frozen=True):
    array_metadata: _Array


class _Arrays(msgspec.Struct, frozen=True):
    array_metadatas: list[_Described]


def tree(data: bytes, *, where: str) -> Tree:
    """The tree of a `_METADATA`. Raises `InvalidRecord` for what Orbax does not write, `UnsupportedFormat` for unknown kinds."""
    found = _decoded(data, _Metadata, where)
    entries = [_entry(node, where) for node in found.tree_metadata.values()]
    names = {entry.name for entry in entries}
    if len(names) != len(entries):
        raise InvalidRecord(f"{where}: two leaves have the same name")
    paths = {entry.path for entry in entries}
    inside = next((e.name for e in entries if any(e.path[:length] in paths for length in range(len(e.path)))), None)
    if inside is not None or len(paths) != len(entries):
        raise InvalidRecord(f"{where}: two leaves have the same path, or {str(inside)[:200]!r} lies within another leaf")
    return Tree(tuple(entries), found.use_zarr3, found.store_array_data_equal_to_fill_value)


def random_keys(data: bytes, *, where: str) -> dict[str, str]:
    """Orbax's names of the arrays that are random keys → their implementation, of an `array_metadatas/process_<n>`."""
    described = [each.array_metadata for each in _decoded(data, _Arrays, where).array_metadatas]
    found = {
        array.param_name: array.ext_metadata.random_key_impl
        for array in described
        if array.ext_metadata is not None and array.ext_metadata.random_key_impl is not None
    }
    for name, impl in found.items():
        if impl not in _KEY_WORDS:
            raise UnsupportedFormat(
                f"{where}: {name[:200]!r} has random keys of {impl[:80]!r}, this release knows {', '.join(_KEY_WORDS)}"
            )
    return found


def check_keys(impl: str, dtype: str, shape: Sequence[int], *, where: str) -> None:
    """Raise `InvalidRecord` if an array cannot be the data of random keys of a known implementation."""
    if dtype != "uint32" or tuple(shape[-1:]) != (_KEY_WORDS[impl],):
        raise InvalidRecord(f"{where}: {dtype}{list(shape)} is no data of {impl} keys, which have {_KEY_WORDS[impl]} uint32 each")


def texts(data: bytes, *, where: str) -> dict[str, str]:
    """Orbax's names of texts → the texts, of a `_strings.json`."""
    return _decoded(data, dict[str, str], where)


def chunk_key(data: bytes, place: Sequence[int], *, zarr3: bool, where: str) -> str:
    """The key of the chunk at a place of an array's grid, from its `.zarray` or `zarr.json`."""
    metadata = _object(data, where)
    encoding: Any = metadata.get("chunk_key_encoding") if zarr3 else {"name": "v2", "configuration": _v2(metadata)}
    settings = encoding.get("configuration") if isinstance(encoding, dict) else None
    default = isinstance(encoding, dict) and encoding.get("name") == "default"
    separator = (settings or {}).get("separator", "/" if default else ".") if isinstance(settings or {}, dict) else None
    if separator not in ("/", ".") or not isinstance(encoding, dict):
        raise InvalidRecord(f"{where}: does not say how chunks are called")
    places = [str(number) for number in place]
    return separator.join(["c", *places]) if default else separator.join(places) or "0"


def added_bytes(data: bytes, *, zarr3: bool, where: str) -> int | None:
    """How many more bytes than its elements a stored chunk has; None where it may be compressed."""
    metadata = _object(data, where)
    if not zarr3:
        return None if metadata.get("compressor") or metadata.get("filters") else 0
    codecs = metadata.get("codecs")
    if not isinstance(codecs, list):
        return None
    words = [str(codec.get("name") if isinstance(codec, dict) else codec) for codec in codecs]
    return sum(_PLAIN_CODECS[word] for word in words) if set(words) <= set(_PLAIN_CODECS) else None


def _object(data: bytes, where: str) -> dict[str, Any]:
    metadata = strict(data, where=where)
    if not isinstance(metadata, dict):
        raise InvalidRecord(f"{where}: is no JSON object")
    return metadata


def _v2(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"separator": metadata.get("dimension_separator") or "."}


def strict(data: bytes, *, where: str) -> Any:
    """JSON without duplicate keys or anything else that two readers could understand differently. Raises `InvalidRecord`."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
        if b"\\u" in data:  # an escaped lone surrogate is no text
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{where}: {str(error)[:300] or type(error).__name__}") from error
    return value


def _decoded(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(strict(data, where=where), kind)
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"{where}: {error}") from error


def _entry(node: _Node, where: str) -> Entry:
    path = tuple(_element(key, where) for key in node.key_metadata)
    name = ".".join(key.key for key in node.key_metadata)
    word = node.value_metadata.value_type
    kind = _KINDS.get(word)
    if kind is None:
        raise UnsupportedFormat(f"{where}: {name[:200]!r} is of type {word[:80]!r}, which this release does not know")
    if kind != "empty":
        check_name(name, where)
    return Entry(path, name, kind, EMPTY.get(word, ()) if kind == "empty" else None)


def is_path(name: str) -> bool:
    """Whether an array may have this name: it is the path of its folder in the checkpoint."""
    return "\0" not in name and "\\" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def check_name(name: str, where: str) -> None:
    """Raise `InvalidRecord` for a name of an array that is no path inside of the checkpoint."""
    if not is_path(name):
        raise InvalidRecord(f"{where}: {name[:200]!r} is no path inside of the checkpoint")


def _element(key: _Key, where: str) -> Any:
    if key.key_type == _DICT:
        return ("key", key.key)
    if key.key_type == _SEQUENCE and _INDEX.fullmatch(key.key) and int(key.key) <= canonical.MAX_INT:
        return ("index", int(key.key))
    raise InvalidRecord(f"{where}: {key.key[:80]!r} of type {key.key_type} is neither a key nor an index")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key[:80]!r}")
        result[key] = value
    return result


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number")
