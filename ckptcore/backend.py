"""What a framework's backend gives to the core, and what it gets back.

A backend does what needs its framework and nothing else: say which leaves a state has and
who holds what (`flatten`), take a snapshot (`Flat.stage`), say what a restore target needs
(`target`), and put what was read in its place (`Target.place`). All of it runs in the main
thread. Between them lie host arrays, so the core knows no framework.

Staged arrays have a leaf's *stored* dtype; found arrays have its *logical* one (see
`ckptcore.dtypes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from ckptcore import nested, records
from ckptcore.channel import Channel
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.names import Path, array_name
from ckptcore.records import ArrayLeaf

WantedKind = Literal["array", "value", "empty", "any"]


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A snapshot that no later training step can change.

    `chunks` holds, per layout name, one array for each box that was asked for, in the same
    order. `whole` holds the whole value of each replicated host leaf. Arrays have the stored
    dtype and may be views that are not contiguous; views of one leaf share its memory.
    `nbytes` is what the snapshot was counted as.
    """

    chunks: Mapping[str, Sequence[np.ndarray]]
    whole: Mapping[str, np.ndarray]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Flat(ABC):
    """The leaves of a state: facts now, bytes when `stage` is called."""

    components: Mapping[str, ComponentFacts]
    arrays: Sequence[ArrayFacts]
    values: Sequence[ValueFacts]
    meshes: Sequence[records.Mesh]

    @abstractmethod
    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:
        """Copy to host memory what this rank writes; return when it is safe.

        `own` gives boxes by layout name (global coordinates, each inside one shard that this
        rank holds). `replicated` names the leaves with `host_replicated`, whose whole value
        is needed for a digest whoever writes it. `limit` is in bytes of stored dtype; when the
        snapshot needs more, `StagingLimit` is raised before anything is staged.
        """


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One leaf of a restore target.

    `kind` says what the target holds there, and what it may be restored from:

    - `array`: an array of `dtype` and `shape` (None: any). From such an array; if `shape` is `()`,
      also from a Python number of the dtype's kind that it holds (`ckptcore.match`).
    - `value`: the JSON value `value`; `scalar` is its kind if it is a number. From a number of that kind or a
      0-d array of that kind; text and bytes only from text and bytes.
    - `empty`: None or a node without children, `value` being `None`, `{}`, `[]` or `()`. From the same.
    - `any`: an object that takes whatever was stored at and below `path`. `boxes_of` says which boxes
      of an array below, given its path from here and its record, this process needs; by default the whole.

    `boxes` are the distinct boxes this process needs: global coordinates, one whole box for host
    arrays and for numbers, none for a whole array of whatever shape. `dtype` is logical; `prng_impl`
    is set for typed random keys, whose `dtype` and `shape` are those of their key data.
    `rank_scoped` says that the leaf belongs to this rank alone, and is stored under
    `names.rank_array_name`. `tied` are other names that the target has for this same array: the checkpoint has
    to have the same content under each that it has. An `optional` leaf may be absent there.
    """

    component: str
    path: Path
    kind: WantedKind
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    boxes: tuple[Box, ...] = ()
    prng_impl: str | None = None
    weak_type: bool | None = None
    value: Any = None
    scalar: Literal["bool", "int", "float"] | None = None
    rank_scoped: bool = False
    tied: tuple[str, ...] = ()
    optional: bool = False
    boxes_of: Callable[[Path, ArrayLeaf], tuple[Box, ...]] | None = None

    @cached_property
    def name(self) -> str:
        """The layout name: component and path joined by `.`."""
        return array_name(self.component, self.path)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was read for one `Wanted`.

    An array: `boxes` maps each wanted box to an array of its shape and of the numpy type
    of the logical `dtype` (casts done), fresh memory that the backend may keep; `weak_type` and `prng_impl` are
    those recorded. Of an `any`, `below` maps each path from the wanted one to what was found there.
    Otherwise `value` is the decoded value or the empty node. `converted`: it was not saved, but made for the target
    by a conversion.
    """

    boxes: Mapping[Box, np.ndarray] | None = None
    below: Mapping[Path, Found] | None = None
    value: Any = None
    weak_type: bool = False
    prng_impl: str | None = None
    memory_kind: str | None = None
    converted: bool = False

    def tree(self, *, where: str) -> Any:
        """An `any` as nested dicts and lists of host arrays and values (`ckptcore.nested`); `where` names it in errors."""
        if self.below is None:
            raise TypeError(f"{where}: not found as a tree")
        plain = {path: leaf.value if leaf.boxes is None else next(iter(leaf.boxes.values())) for path, leaf in self.below.items()}
        return nested.build(plain, where=where)


@dataclass(frozen=True, kw_only=True)
class Target(ABC):
    """A restore target: what it needs, and how to fill it."""

    wanted: Sequence[Wanted]
    components: Mapping[str, ComponentFacts]
    meshes: Sequence[records.Mesh] = field(default=())

    @abstractmethod
    def place(self, found: Mapping[str, Found]) -> Mapping[str, Any]:
        """Build the components, as containers like the target's, from what was found by layout name.

        A wanted leaf that `found` lacks stays as it is in the target, which must then hold a
        concrete value there; otherwise `StructureMismatch` names it. Objects that are filled in place (modules, stateful
        loaders) are returned too.
        """


class Backend(Protocol):
    """A framework, seen from the core."""

    @property
    def framework(self) -> str:
        """`jax`, `torch` or `host`."""
        ...

    @property
    def partial(self) -> bool:
        """Whether `flatten` knows this rank's leaves and holders only: then the ranks exchange them (`ckptcore.union`)."""
        ...

    def channel(self) -> Channel:
        """A new channel over the ranks of the job; every rank opens it at the same point."""
        ...

    def versions(self) -> dict[str, str]:
        """Library names and versions, for the manifest."""
        ...

    @property
    def computing(self) -> frozenset[str]:
        """Of the libraries that `versions` can name those whose code computes a step: `exact` needs them unchanged."""
        ...

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:
        """What `exact` means by "the same topology": the job's processes, devices and meshes."""
        ...

    def flatten(self, components: Mapping[str, Any]) -> Flat:
        """The leaves of `components`. Raises `UnsupportedLeaf` naming the path and the type."""
        ...

    def target(self, like: Mapping[str, Any], components: Collection[str]) -> Target:
        """What a restore into `components` of `like` needs; they may refer to the others, as an optimizer does to its parameters.

        Raises `UnsupportedLeaf` naming the path and the type.
        """
        ...

    def release(self) -> None:
        """Let go of what is kept from one save to the next. Called when the last one has ended."""
        ...
