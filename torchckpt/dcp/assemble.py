"""One rank's part of a save through DCP: the tensors and shards that it writes, its objects, and what is its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from ckptcore import records
from ckptcore.errors import UnsupportedLeaf
from ckptcore.geometry import Grid
from ckptcore.layout import ComponentFacts, Plan, grid_of, make_plan
from ckptcore.names import show_path
from ckptcore.records import ArrayLeaf
from ckptcore.writer import Shard
from torchckpt.dcp import held
from torchckpt.dcp.held import Held, Part
from torchckpt.dcp.plans import Local, Ticket


def assemble(ticket: Ticket, local: Local, final: SavePlan, planner: SavePlanner, own: Held) -> Shard:
    """What this rank writes. Raises `UnsupportedLeaf`, naming the key, for what has no place in a checkpoint."""
    objects = held.of_objects(local, planner, ticket.keeper_of)
    rank = ticket.identity.rank
    small = make_plan(
        {**objects.components, **own.components},
        [*objects.arrays, *own.arrays],
        [*objects.values, *own.values],
        rank=rank,
        chunk_bytes=ticket.chunk_bytes,
    )
    tensors, compared = _tensors(ticket, local, final, planner)
    plan = _joined(_tensor_plan(ticket, tensors), small)
    flat = Held(
        components={name: _facts(table) for name, table in plan.layout.components.items()},
        arrays=(),
        values=[*objects.values, *own.values],
        parts={**tensors, **compared, **objects.parts, **own.parts},
        encoded={**objects.encoded, **own.encoded},
    )
    replicated = [*compared, *(array.name for array in objects.arrays)] if ticket.identity.participants > 1 else []
    boxes = {name: [plan.grids[name].cell(cell) for cell in cells] for name, cells in plan.own.items()}
    return Shard(
        identity=ticket.identity,
        guarantee=ticket.guarantee,
        topology=ticket.topology,
        plan=plan,
        flat=flat,
        staged=flat.stage(boxes, replicated, None),
        values=flat.encoded,
        kept=frozenset(value.name for value in objects.values if value.keeper == rank),
        lead=ticket.lead,
    )


def _tensors(
    ticket: Ticket, local: Local, final: SavePlan, planner: SavePlanner
) -> tuple[dict[str, list[Part]], dict[str, list[Part]]]:
    """What this rank writes of tensors, and those that it compares with other ranks, whole."""

    def is_compared(item: WriteItem) -> bool:
        return item.type == WriteItemType.TENSOR and local.name(item.index.fqn) in ticket.compared

    compared = held.tensor_parts(filter(is_compared, local.items), planner, local.name)
    others = (item for item in final.items if local.name(item.index.fqn) not in compared)
    written = {local.name(item.index.fqn) for item in final.items if item.tensor_data is not None}
    mine = {name: found for name, found in compared.items() if name in written}
    return {**held.tensor_parts(others, planner, local.name), **mine}, compared


def _tensor_plan(ticket: Ticket, tensors: Mapping[str, Sequence[Part]]) -> Plan:
    leaves = (leaf for table in ticket.layout.components.values() for leaf in table.leaves)
    grids = {leaf.name: grid_of(leaf) for leaf in leaves if isinstance(leaf, ArrayLeaf)}
    own = {name: _cells(grids[name], parts) for name, parts in tensors.items()}
    written = {name: cells for name, cells in own.items() if cells or name in ticket.bare}
    return Plan(ticket.layout, grids, written)


def _cells(grid: Grid, parts: Iterable[Part]) -> tuple[int, ...]:
    return tuple(sorted({cell for box, _ in parts for cell in grid.overlapping(box)}))


def _joined(one: Plan, other: Plan) -> Plan:
    """Both plans as one. Raises `UnsupportedLeaf` for a name that is in both."""
    tables: dict[str, records.LayoutComponent] = dict(one.layout.components)
    for name, table in other.layout.components.items():
        known = tables.get(name)
        tables[name] = table if known is None else _joined_table(name, known, table)
    layout = records.Layout(components=tables)
    return Plan(layout, {**one.grids, **other.grids}, {**one.own, **other.own})


def _joined_table(component: str, one: records.LayoutComponent, other: records.LayoutComponent) -> records.LayoutComponent:
    leaves = {leaf.name: leaf for leaf in one.leaves}
    for leaf in other.leaves:
        if leaf.name in leaves:
            raise UnsupportedLeaf(
                f"{show_path(component, leaves[leaf.name].path)} and {show_path(component, leaf.path)} would both be stored as"
                f" {leaf.name!r}: rename one of them"
            )
        leaves[leaf.name] = leaf
    return records.LayoutComponent(kind=one.kind, scope=one.scope, leaves=sorted(leaves.values(), key=lambda leaf: leaf.name))


def _facts(table: records.LayoutComponent) -> ComponentFacts:
    return ComponentFacts(kind=table.kind, scope=table.scope)
