"""The training state of the simulated jobs, known from who saved it and when, and the backend that hands it over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptcore import components as parts
from ckptcore import dtypes, nested, records
from ckptcore.backend import Flat, Staged, Target
from ckptcore.channel import Channel
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.names import GenerationId

DERIVED = {"optimizer": "params", "schedule": "params", "data": "params", "rng": "step"}
FROZEN = "frozen"
"""A component that does not change: some saves refer to the one before."""


def state(generation: GenerationId, rank: int, *, arrays: bool, frozen: bool) -> dict[str, Any]:
    """What `rank` saves: every leaf tells generation (P-52) and rank."""
    said = [generation.incarnation, generation.step, generation.attempt]
    found: dict[str, Any] = {"params": {"of": said}, "own": parts.PerRank({"of": said, "rank": rank})}
    if arrays:
        found["params"]["w"] = np.array(said * 20, np.int64)
    if frozen:
        found[FROZEN] = {"constant": "c"}
    return found


def told(components: Mapping[str, Any]) -> str:
    """The generation that a restored state says it is of. Raises `ValueError` where its parts differ."""
    said = {tuple(components["params"]["of"])} | {tuple(components[name]["of"]) for name in ("own",) if name in components}
    if "w" in components["params"]:
        said |= {tuple(part) for part in components["params"]["w"].reshape(-1, 3).tolist()}
    if len(said) != 1:
        raise ValueError(f"the parts of one checkpoint are of several saves: {sorted(said)}")
    return str(GenerationId(*said.pop()))


@dataclass(frozen=True, kw_only=True)
class ValueFlat(Flat):
    """A state of values and small arrays that every rank holds."""

    sources: Mapping[str, np.ndarray] = field(default_factory=dict)

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:  # noqa: ARG002
        """See `Flat.stage`."""
        chunks = {name: [self.sources[name][box.slices()].copy() for box in boxes] for name, boxes in own.items()}
        return Staged(chunks=chunks, whole={name: self.sources[name].copy() for name in replicated}, nbytes=0)


@dataclass(frozen=True)
class PlainBackend:
    """Nested dicts and lists of values and numpy arrays. See `ckptcore.backend.Backend`."""

    link: Channel
    framework: str = "plain"
    partial: bool = False
    computing: frozenset[str] = frozenset()

    def channel(self) -> Channel:
        """See `Backend.channel`."""
        return self.link

    def versions(self) -> dict[str, str]:
        """See `Backend.versions`."""
        return {"plain": "1"}

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:  # noqa: ARG002 - there are none
        """See `Backend.topology`."""
        return records.Topology(framework="plain", platform="cpu", participants=self.link.size, devices=self.link.size)

    def release(self) -> None:
        """See `Backend.release`."""

    def flatten(self, components: Mapping[str, Any]) -> ValueFlat:
        """See `Backend.flatten`."""
        facts, arrays, values, sources = {}, [], [], {}
        for name, component in components.items():
            inner, scope, rank_zero = parts.unwrap(component)
            facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero)
            for path, leaf in nested.split(inner, lambda leaf: isinstance(leaf, np.ndarray), where=name):
                if isinstance(leaf, np.ndarray):
                    arrays.append(self._array(name, path, leaf))
                    sources[arrays[-1].name] = leaf
                else:
                    values.append(ValueFacts(component=name, path=path, value=leaf))
        return ValueFlat(components=facts, arrays=arrays, values=values, meshes=[], sources=sources)

    def target(self, like: Mapping[str, Any], components: Collection[str] | None = None) -> Target:
        """Restores give plain dicts: nobody asks for a target."""
        raise NotImplementedError

    def _array(self, component: str, path: Any, leaf: np.ndarray) -> ArrayFacts:
        dtype = dtypes.name_of(leaf.dtype, where=component)
        return ArrayFacts(
            component=component,
            path=path,
            dtype=dtype,
            stored_dtype=dtypes.stored_name(dtype),
            shape=leaf.shape,
            itemsize=dtypes.itemsize(dtype),
            shards={Box.whole(leaf.shape): tuple(range(self.link.size))},
            host_replicated=True,
            local=True,
        )
