"""A backend without a framework, for one process that saves what it reads from somewhere else.

A component is a `Readable` that has a component of that name. Nothing is copied when a snapshot is taken: what is read cannot
change, so the chunks of an array are read when the writer comes to them, a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from ckptcore import dtypes, records
from ckptcore.backend import Flat, Staged, Target
from ckptcore.channel import Channel, LocalChannel
from ckptcore.components import kind_of
from ckptcore.errors import CallError
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.plain import versions
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.records import ArrayLeaf

PART_BYTES = 128 << 20
"""The most bytes that are read ahead: formats keep large pieces together, and read one of them whole for a box of it."""


@dataclass
class Hosting:
    """The backend. `progress` is told of bytes as they are read; `stop` ends a save that is under way with an error."""

    framework: str
    progress: Callable[[int], object] = lambda _: None
    partial: bool = False
    computing: frozenset[str] = frozenset()
    _stopped: bool = False

    def channel(self) -> Channel:
        """The job is this process."""
        return LocalChannel()

    def versions(self) -> dict[str, str]:
        """The libraries that matter to bytes."""
        return versions(("numpy", "tensorstore"))

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:
        """One process, which computes nothing."""
        return records.Topology(framework=self.framework, platform="cpu", participants=1, devices=1, meshes=list(meshes))

    def flatten(self, components: Mapping[str, Readable]) -> Flat:
        """The leaves of each `Readable`, which has a component of that name."""
        facts = {name: ComponentFacts(kind=kind_of(name), scope="global") for name in components}
        leaves = [(source, leaf) for name, source in components.items() for leaf in source.leaves(name).values()]
        arrays = [(source, leaf) for source, leaf in leaves if isinstance(leaf.record, ArrayLeaf)]
        stated = [
            ValueFacts(component=leaf.component, path=tuple(leaf.record.path), value=source.value(leaf))
            for source, leaf in leaves
            if not isinstance(leaf.record, ArrayLeaf)
        ]
        return _Hosted(
            components=facts,
            arrays=[_facts(leaf) for _, leaf in arrays],
            values=stated,
            meshes=[],
            sources={leaf.name: (source, leaf) for source, leaf in arrays},
            host=self,
        )

    def target(self, like: Mapping[str, Any], components: Collection[str]) -> Target:  # noqa: ARG002
        """There is nothing to restore into."""
        raise CallError("this process only saves: restore with jaxckpt, torchckpt or open_run")

    def release(self) -> None:
        """Nothing is kept."""

    def stop(self) -> None:
        """End the save that is under way: the next read raises."""
        self._stopped = True

    def read(self, source: Readable, leaf: StoredLeaf, boxes: Sequence[Box]) -> list[np.ndarray]:
        """Boxes of an array leaf. Raises `CallError` after `stop`."""
        if self._stopped:
            raise CallError("it was interrupted")
        found = source.read([(leaf, boxes)])[0]
        self.progress(sum(array.nbytes for array in found))
        return found


@dataclass(frozen=True, kw_only=True)
class _Hosted(Flat):
    sources: Mapping[str, tuple[Readable, StoredLeaf]]
    host: Hosting

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:  # noqa: ARG002
        """Stage nothing: each chunk reads itself."""
        return Staged(chunks={name: self._chunks(name, boxes) for name, boxes in own.items()}, whole={}, nbytes=0)

    def _chunks(self, name: str, boxes: Sequence[Box]) -> Sequence[np.ndarray]:
        source, leaf = self.sources[name]
        itemsize = dtypes.itemsize(leaf.record.dtype) if isinstance(leaf.record, ArrayLeaf) else 1
        chunks, ahead = list[_Chunk](), _Ahead(self.host, source, leaf)
        held = 0
        for box in boxes:
            nbytes = box.size * itemsize
            if held and held + nbytes > PART_BYTES:
                ahead, held = _Ahead(self.host, source, leaf), 0
            held += nbytes
            ahead.boxes.append(box)
            chunks.append(_Chunk(ahead, box, nbytes))
        return cast("Sequence[np.ndarray]", chunks)


@dataclass
class _Ahead:
    """Boxes of one array that are read together when the first of them is wanted, and let go of one by one."""

    host: Hosting
    source: Readable
    leaf: StoredLeaf
    boxes: list[Box] = field(default_factory=list)
    held: dict[Box, np.ndarray] = field(default_factory=dict)

    def take(self, box: Box) -> np.ndarray:
        """The elements of one of the boxes, in the stored dtype."""
        if box not in self.held:
            self.held = dict(zip(self.boxes, self.host.read(self.source, self.leaf, self.boxes), strict=True))
        return self.held.pop(box)


@dataclass(frozen=True)
class _Chunk:
    """A chunk that is read when numpy asks for its elements: it stands in the place of an array."""

    ahead: _Ahead
    box: Box
    nbytes: int

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001 - numpy's protocol
        """The elements."""
        return np.array(self.ahead.take(self.box), dtype=dtype, copy=bool(copy) or None)


def _facts(leaf: StoredLeaf) -> ArrayFacts:
    record = leaf.record
    if not isinstance(record, ArrayLeaf):
        raise TypeError(f"{leaf.name} is a value")
    return ArrayFacts(
        component=leaf.component,
        path=tuple(record.path),
        dtype=record.dtype,
        stored_dtype=record.stored_dtype,
        shape=tuple(record.shape),
        itemsize=dtypes.itemsize(record.dtype),
        shards={Box.whole(record.shape): (0,)},
        prng_impl=record.prng_impl,
    )
