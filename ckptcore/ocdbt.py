"""OCDBT, the database format of TensorStore, as far as a database is written at once and never changed (spec: databases).

A database is `manifest.ocdbt` and data files. Values lie in data files as they are, and so do the nodes of a B+tree that says
where; small values lie in its leaves. The manifest names the root. Everything here is pure: entries in, bytes out.
Source: the description of the storage format in TensorStore's documentation of the `ocdbt` driver.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import google_crc32c

NODE_BYTES = 512 << 10
"""At which a node is full: half of `max_decoded_node_bytes`."""

_NODE, _MANIFEST = 0x0CDB20DE, 0x0CDB3A2A
_CHECKSUM_BYTES = 4
_ENTRY_BYTES = 24
"""What an entry takes beside its key and an inline value, about."""


@dataclass(frozen=True)
class Place:
    """Bytes of the file `path`, relative to the database."""

    path: str
    start: int
    nbytes: int


@dataclass(frozen=True)
class Entry:
    """A key, and its value or where it lies."""

    key: bytes
    value: bytes | Place


@dataclass(frozen=True)
class Statistics:
    """Of all that lies below a node, and of the node itself."""

    keys: int
    tree_bytes: int
    value_bytes: int


@dataclass(frozen=True)
class Root:
    """The root of a tree: where its node lies, its height (0: it is a leaf), and what is below it."""

    place: Place
    height: int
    statistics: Statistics


@dataclass(frozen=True)
class _Child:
    """A node that is stored. `first` and `last` are its keys; it knows them without `prefix`."""

    first: bytes
    last: bytes
    prefix: bytes
    place: Place
    statistics: Statistics


def tree(entries: Sequence[Entry], store: Callable[[bytes], Place]) -> Root:
    """Make the tree of `entries`, at least one, sorted by key, without doubles. `store` puts a node into a data file."""
    groups = list(_groups(entries, lambda entry: len(entry.key) + (len(entry.value) if isinstance(entry.value, bytes) else 0)))
    level = [_leaf(group, store, alone=len(groups) == 1) for group in groups]
    height = 0
    while len(level) > 1:
        height += 1
        parents = list(_groups(level, lambda child: len(child.first)))
        level = [_inner(group, height, store, alone=len(parents) == 1) for group in parents]
    return Root(level[0].place, height, level[0].statistics)


def manifest(root: Root, config: Mapping[str, Any], identity: bytes) -> bytes:
    """`manifest.ocdbt` of a database of one version. `config`: as TensorStore takes it, no compression; `identity`: 16 bytes.

    It says of no time when it was made: the same tree has the same manifest.
    """
    files = _Files([root.place])
    below = root.statistics
    settings = _varints(0, config["max_inline_value_bytes"], config["max_decoded_node_bytes"])
    version = (
        _varints(1, 1)
        + bytes([root.height])
        + _varints(files.number(root.place), root.place.start, root.place.nbytes)
        + _varints(below.keys, below.tree_bytes, below.value_bytes)
        + bytes(8)
    )
    described = identity + settings + bytes([config["version_tree_arity_log2"], 0])
    return _framed(_MANIFEST, described + files.encode() + version + _varints(0))


def _groups(items: Sequence, nbytes: Callable[..., int]) -> Iterator[list]:
    """The items in order, as many together as fit into a node."""
    group, total = [], 0
    for item in items:
        size = nbytes(item) + _ENTRY_BYTES
        if len(group) > 1 and total + size > NODE_BYTES:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _leaf(entries: Sequence[Entry], store: Callable[[bytes], Place], *, alone: bool) -> _Child:
    prefix = _prefix(entries[0].key, entries[-1].key, alone=alone)
    places = [entry.value for entry in entries if isinstance(entry.value, Place)]
    inline = [entry.value for entry in entries if isinstance(entry.value, bytes)]
    lengths = (entry.value.nbytes if isinstance(entry.value, Place) else len(entry.value) for entry in entries)
    files = _Files(places)
    common, suffixes = _compressed([entry.key[len(prefix) :] for entry in entries])
    node = _framed(
        _NODE,
        bytes([0])
        + files.encode()
        + _varints(len(entries), *common, *map(len, suffixes))
        + b"".join(suffixes)
        + _varints(*lengths)
        + bytes(isinstance(entry.value, Place) for entry in entries)
        + _varints(*map(files.number, places), *(place.start for place in places))
        + b"".join(inline),
    )
    statistics = Statistics(len(entries), len(node), sum(place.nbytes for place in places))
    return _Child(entries[0].key, entries[-1].key, prefix, store(node), statistics)


def _inner(children: Sequence[_Child], height: int, store: Callable[[bytes], Place], *, alone: bool) -> _Child:
    prefix = _prefix(children[0].first, children[-1].last, alone=alone)
    files = _Files([child.place for child in children])
    common, suffixes = _compressed([child.first[len(prefix) :] for child in children])
    below = [child.statistics for child in children]
    node = _framed(
        _NODE,
        bytes([height])
        + files.encode()
        + _varints(len(children), *common, *map(len, suffixes), *(len(child.prefix) - len(prefix) for child in children))
        + b"".join(suffixes)
        + _varints(*(files.number(child.place) for child in children))
        + _varints(*(child.place.start for child in children), *(child.place.nbytes for child in children))
        + _varints(*(each.keys for each in below), *(each.tree_bytes for each in below), *(each.value_bytes for each in below)),
    )
    statistics = Statistics(
        sum(each.keys for each in below),
        sum(each.tree_bytes for each in below) + len(node),
        sum(each.value_bytes for each in below),
    )
    return _Child(children[0].first, children[-1].last, prefix, store(node), statistics)


def _prefix(first: bytes, last: bytes, *, alone: bool) -> bytes:
    """What all keys of a node begin with; the root has them whole."""
    return b"" if alone else first[: _common(first, last)]


class _Files:
    """The table of the data files that a node refers to."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._paths = sorted({place.path for place in places})
        self._numbers = {path: number for number, path in enumerate(self._paths)}

    def number(self, place: Place) -> int:
        return self._numbers[place.path]

    def encode(self) -> bytes:
        common, suffixes = _compressed([path.encode() for path in self._paths])
        bases = [0] * len(suffixes)
        return _varints(len(suffixes), *common, *map(len, suffixes), *bases) + b"".join(suffixes)


def _compressed(texts: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """How long the prefix is that each text but the first has in common with the one before, and what follows it."""
    common = [_common(*pair) for pair in pairwise(texts)]
    return common, [text[length:] for text, length in zip(texts, [0, *common], strict=False)]


def _common(one: bytes, other: bytes) -> int:
    """How long the prefix is that two texts have in common."""
    return next(
        (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other))
    )


def _framed(magic: int, body: bytes) -> bytes:
    """A node or a manifest: magic number, length, version 0, no compression, body, checksum."""
    head = struct.pack(">I", magic)
    length = len(head) + 8 + 2 + len(body) + _CHECKSUM_BYTES
    data = head + struct.pack("<Q", length) + _varints(0, 0) + body
    return data + struct.pack("<I", google_crc32c.value(data))


def _varints(*numbers: int) -> bytes:
    """Numbers in groups of seven bits, the lowest first, with the high bit set in all bytes of a number but its last."""
    out = bytearray()
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7  # noqa: PLW2901 - the loop takes it apart
        out.append(number)
    return bytes(out)
