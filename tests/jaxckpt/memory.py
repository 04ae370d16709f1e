"""A checkpoint in memory: what the core does between a backend's two ends, without a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptcore import dtypes, records
from ckptcore.backend import Flat, Found, Staged, Target, Wanted
from ckptcore.geometry import Box, tiling_problems
from ckptcore.layout import Plan, grid_of, make_plan
from jaxckpt.backend import flatten, target


@dataclass
class Memory:
    """The chunks and values of one save, from one or more ranks."""

    layout: records.Layout
    values: dict[str, Any]
    chunks: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)

    def add(self, own: Mapping[str, tuple[int, ...]], staged: Staged) -> None:
        """Take a rank's chunks. Fails when another rank has written one of them."""
        for name, cells in own.items():
            held = self.chunks.setdefault(name, {})
            for cell, array in zip(cells, staged.chunks[name], strict=True):
                assert cell not in held, f"{name}: chunk {cell} twice"
                held[cell] = array

    def leaf(self, name: str) -> records.ArrayLeaf:
        """An array leaf of the layout by name."""
        leaf = next(leaf for table in self.layout.components.values() for leaf in table.leaves if leaf.name == name)
        assert isinstance(leaf, records.ArrayLeaf)
        return leaf

    def read(self, name: str, box: Box) -> np.ndarray:
        """A box of an array, in its logical dtype, in fresh memory."""
        leaf = self.leaf(name)
        grid = grid_of(leaf)
        assert not tiling_problems(grid.size, {cell: [0] for cell in self.chunks[name]})
        result = np.empty(box.shape, dtypes.numpy_dtype(leaf.stored_dtype))
        for cell, chunk in self.chunks[name].items():
            common = grid.cell(cell).intersect(box)
            assert chunk.shape == grid.cell(cell).shape
            assert chunk.dtype == result.dtype
            if common is not None:
                result[common.slices(box.start)] = chunk[common.slices(grid.cell(cell).start)]
        return dtypes.from_stored(result, leaf.dtype)

    def restore(self, wanted: Target) -> Mapping[str, Any]:
        """Restore into a target, leaf by leaf of the same name."""
        return wanted.place({leaf.name: self._find(leaf) for leaf in wanted.wanted})

    def _find(self, wanted: Wanted) -> Found:
        if wanted.kind == "any":
            return Found(below=self._below(wanted))
        if wanted.name in self.values:
            return Found(value=self.values[wanted.name])
        leaf = self.leaf(wanted.name)
        assert wanted.kind == "value" or (leaf.dtype, leaf.prng_impl) == (wanted.dtype, wanted.prng_impl)
        boxes = wanted.boxes or (Box.whole(leaf.shape),)
        return Found(
            boxes={box: self.read(leaf.name, box) for box in boxes},
            weak_type=leaf.weak_type,
            prng_impl=leaf.prng_impl,
            memory_kind=leaf.memory_kind,
        )

    def _below(self, wanted: Wanted) -> dict[Any, Any]:
        leaves = [
            leaf for leaf in self.layout.components[wanted.component].leaves if leaf.path[: len(wanted.path)] == wanted.path
        ]
        return {
            tuple(leaf.path[len(wanted.path) :]): Found(boxes={(whole := Box.whole(leaf.shape)): self.read(leaf.name, whole)})
            if isinstance(leaf, records.ArrayLeaf)
            else Found(value=self.values[leaf.name])
            for leaf in leaves
        }


def plan_of(flat: Flat, *, rank: int = 0, chunk_bytes: int = 64) -> Plan:
    """A plan with chunks so small that most arrays have several."""
    return make_plan(flat.components, flat.arrays, flat.values, rank=rank, chunk_bytes=chunk_bytes)


def stage(flat: Flat, plan: Plan, limit: int | None = None) -> Staged:
    """Stage what the plan says, and every replicated leaf whole."""
    own = {name: [plan.grids[name].cell(cell) for cell in cells] for name, cells in plan.own.items()}
    return flat.stage(own, [array.name for array in flat.arrays if array.host_replicated], limit)


def save(components: Mapping[str, Any], *, chunk_bytes: int = 64) -> Memory:
    """Save in one process."""
    flat = flatten(components)
    plan = plan_of(flat, chunk_bytes=chunk_bytes)
    memory = Memory(plan.layout, {leaf.name: leaf.value for leaf in flat.values})
    memory.add(plan.own, stage(flat, plan))
    return memory


def round_trip(components: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Save, and restore into `like` (default: the components themselves)."""
    return save(components).restore(target(components if like is None else like))
