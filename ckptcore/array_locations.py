"""Where a database keeps its values: OCDBT's B+tree, read as TensorStore decodes it (spec: the merged view).

Knowing the places lets a reader fetch a value straight to where it is wanted. Nothing here is trusted: what
is read from a place is proven by its digest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any
from urllib.parse import unquote

import tensorstore as ts

from ckptcore.array_spec import answer, read_error
from ckptcore.errors import Damaged
from ckptcore.ocdbt import Place

KEPT_NODES = 16
"""Decoded nodes that are kept for the next search: about 7,000 keys and 2 MiB each at most."""

AHEAD = 8
"""Nodes that are read at a time."""


@dataclass(frozen=True)
class _Search:
    """The keys that lie below one node, if they are there at all."""

    location: str
    height: int
    prefix: bytes
    wanted: Sequence[bytes]

    @property
    def node(self) -> tuple[str, bytes]:
        """What tells the node from others."""
        return self.location, self.prefix


@dataclass(frozen=True)
class _Node:
    """`keys` are in order, without the `prefix` that all below the node have; `values` are TensorStore's entries for them."""

    height: int
    prefix: bytes
    keys: Sequence[bytes]
    values: Sequence[Mapping[str, Any]]

    def found(self, wanted: Sequence[bytes]) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
        """Of a leaf: the entries of those of `wanted` that it has."""
        for key in wanted:
            own = key.removeprefix(self.prefix)
            at = bisect_left(self.keys, own)
            if at < len(self.keys) and self.keys[at] == own and key.startswith(self.prefix):
                yield key, self.values[at]

    def below(self, wanted: Sequence[bytes]) -> Iterator[_Search]:
        """Of an inner node: what is to be searched below it. A child begins with its own key and ends before the next one's."""
        firsts = [self.prefix + key for key in self.keys]
        low = 0
        while low < len(wanted):
            child = max(0, bisect_right(firsts, wanted[low]) - 1)
            high = bisect_left(wanted, firsts[child + 1], lo=low) if child + 1 < len(firsts) else len(wanted)
            value = self.values[child]
            yield _Search(value["location"], self.height - 1, self.prefix + value["subtree_common_prefix"], wanted[low:high])
            low = high


class Locations:
    """The places of the values of the database in `base`; `what` names it in errors. Safe to use from several threads."""

    def __init__(self, base: ts.KvStore, context: ts.Context, what: str) -> None:
        self._base = base
        self._context = context
        self._what = what
        self._kept: OrderedDict[tuple[str, bytes], _Node] = OrderedDict()
        self._lock = Lock()

    def find(self, keys: Iterable[str]) -> dict[str, Place | bytes]:
        """Key → where its value lies, or the value itself if it is so small that it lies in the tree. Absent keys are left out.

        Reads only the nodes that lead to `keys`. Raises `Damaged`, or a `StoreError`.
        """
        found: dict[str, Place | bytes] = {}
        searches = deque(self._first(sorted({key.encode() for key in keys})))
        while searches:
            now = [searches.popleft() for _ in range(min(AHEAD, len(searches)))]
            for search, node in zip(now, self._nodes(now), strict=True):
                if node.height:
                    searches.extend(node.below(search.wanted))
                else:
                    found.update((key.decode(), self._value(entry)) for key, entry in node.found(search.wanted))
        return found

    def _first(self, wanted: Sequence[bytes]) -> Iterator[_Search]:
        root = self._version["root"]
        if wanted and "location" in root:
            yield _Search(root["location"], self._version["root_height"], b"", wanted)

    @cached_property
    def _version(self) -> Mapping[str, Any]:
        """The newest version: no other is ever read."""
        return self._answer(self._dump(None))["versions"][-1]

    def _dump(self, location: str | None) -> ts.Future[Any]:
        return ts.ocdbt.dump(self._base, location, context=self._context)

    def _answer(self, future: ts.Future[Any]) -> Any:
        return answer(future, self._what, read_error)

    def _nodes(self, searches: Sequence[_Search]) -> list[_Node]:
        with self._lock:
            nodes = {search.node: self._kept[search.node] for search in searches if search.node in self._kept}
        reading = [(search, self._dump(search.location)) for search in searches if search.node not in nodes]
        nodes.update({search.node: self._node(search, self._answer(read)) for search, read in reading})
        with self._lock:
            for key, node in nodes.items():
                self._kept[key] = node
                self._kept.move_to_end(key)
            while len(self._kept) > KEPT_NODES:
                self._kept.popitem(last=False)
        return [nodes[search.node] for search in searches]

    def _node(self, search: _Search, dumped: Mapping[str, Any]) -> _Node:
        # A tree that leads back to itself would be searched for ever.
        if dumped["height"] != search.height or not dumped["entries"]:
            raise Damaged(f"{self._what}: its tree is broken at {search.location}. Use another checkpoint")
        entries = dumped["entries"]
        return _Node(search.height, search.prefix, [entry["key"] for entry in entries], entries)

    def _value(self, entry: Mapping[str, Any]) -> Place | bytes:
        if "inline_value" in entry:
            return bytes(entry["inline_value"])
        # value:<base path>:<path below it>:<start>:<length>, the paths percent-encoded
        _, base, path, start, nbytes = entry["indirect_value"].split(":")
        return Place(unquote(base + path), int(start), int(nbytes))
