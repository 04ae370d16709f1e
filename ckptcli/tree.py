"""`ckpt tree`: the leaves of a commit as a tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.options import Json, Url, Which, named, settings
from ckptcli.output import emit, table
from ckptcore.inspect.leaves import path_of
from ckptcore.inspect.outline import Node, outline, own_bytes
from ckptcore.layout import grid_of
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf

Component = Annotated[str | None, typer.Option(help="Only this component.")]
Depth = Annotated[int | None, typer.Option(min=0, help="How many containers deep; those below are summed up.")]


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf. A value has its names alone.

    `bytes`: of its own elements, 0 for an alias; `chunks`: along each dimension; `cuts`: their boundaries, where the
    chunks have several shapes.
    """

    name: str
    path: str
    kind: str
    dtype: str | None = None
    shape: list[int] | None = None
    bytes: int = 0
    chunks: list[int] | None = None
    chunk_shape: list[int] | None = None
    cuts: list[list[int]] | None = None
    sharding: str | None = None
    alias: str | None = None
    prng_impl: str | None = None


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """The leaves that some ranks have of a component, or with `ranks` null all together."""

    ranks: list[int] | None
    leaves: list[Leaf]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One component."""

    name: str
    kind: str
    scope: str
    leaves: int
    bytes: int
    copies: list[Copy]


class Tree(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="tree"):
    """What `ckpt tree --json` prints: all leaves, whatever the depth."""

    url: str
    generation: str
    components: list[Part]


def tree(
    context: typer.Context,
    url: Url,
    which: Which = None,
    *,
    component: Component = None,
    depth: Depth = None,
    as_json: Json = False,
) -> None:
    """Show the leaves of a checkpoint: dtype, shape, size, chunks and sharding."""
    checkpoint = settings(context).run(url).checkpoint(**named(which))
    chosen = [component] if component is not None else list(checkpoint.names)
    found = {name: list(_copies(checkpoint, name)) for name in chosen}
    shown = Tree(
        url=checkpoint.store.url,
        generation=str(checkpoint.generation),
        components=[_part(checkpoint, name, copies) for name, copies in found.items()],
    )
    emit(shown, lambda: _render(checkpoint, found, depth), as_json=as_json)


def _copies(checkpoint: Checkpoint, component: str) -> Iterator[tuple[list[int] | None, list[StoredLeaf]]]:
    """The leaves of a component, once for all ranks whose layout is the same."""
    ranks = checkpoint.ranks(component)
    if ranks == [None]:
        yield None, list(checkpoint.leaves(component).values())
        return
    tables = [(rank, list(checkpoint.leaves(component, rank).values())) for rank in ranks if rank is not None]
    for _, group in itertools.groupby(tables, key=lambda item: [leaf.record for leaf in item[1]]):
        same = list(group)
        yield [rank for rank, _ in same], same[0][1]


def _part(checkpoint: Checkpoint, name: str, copies: list[tuple[list[int] | None, list[StoredLeaf]]]) -> Part:
    entry = checkpoint.manifest.components[name]
    told = [Copy(ranks=ranks, leaves=[as_leaf(leaf) for leaf in leaves]) for ranks, leaves in copies]
    return Part(name=name, kind=entry.kind, scope=entry.scope, leaves=entry.leaves, bytes=entry.bytes, copies=told)


def as_leaf(leaf: StoredLeaf) -> Leaf:
    """A leaf as JSON has it."""
    record = leaf.record
    if not isinstance(record, ArrayLeaf):
        return Leaf(name=leaf.name, path=path_of(leaf), kind="value")
    return Leaf(
        name=leaf.name,
        path=path_of(leaf),
        kind="array",
        dtype=record.dtype,
        shape=list(record.shape),
        bytes=own_bytes(leaf),
        chunks=None if record.alias else list(grid_of(record).counts),
        chunk_shape=None if record.chunk_shape is None else list(record.chunk_shape),
        cuts=None if record.cuts is None else [list(bounds) for bounds in record.cuts],
        sharding=record.sharding,
        alias=record.alias,
        prng_impl=record.prng_impl,
    )


def _render(
    checkpoint: Checkpoint, found: dict[str, list[tuple[list[int] | None, list[StoredLeaf]]]], depth: int | None
) -> RenderableType:
    made = table("leaf", "type", "size", "chunks", "sharding", right=("size",))
    for name, copies in found.items():
        entry = checkpoint.manifest.components[name]
        told = f"{text.cell(entry.kind)}, {text.plural(entry.leaves, 'leaf')}"
        made.add_row(Text(name, style="bold"), Text(told, style="bold"), Text(text.size(entry.bytes), style="bold"))
        for ranks, leaves in copies:
            if ranks is not None:
                made.add_row(text.ranks(ranks) + (", each" if len(ranks) > 1 else ""))
            for branch, node in outline(name, leaves).lines(depth):
                made.add_row(branch + text.cell(node.label), *_columns(node))
            if leaves and not leaves[0].record.path:
                made.add_row("└─ (itself)", *_columns(Node("", leaf=leaves[0], leaves=1, bytes=own_bytes(leaves[0]))))
    return Group(Text(f"generation {checkpoint.generation} of {checkpoint.store.url}"), Text(""), made)


def _columns(node: Node) -> tuple[str, ...]:
    if node.leaf is None:
        return text.plural(node.leaves, "leaf"), text.size(node.bytes)
    record = node.leaf.record
    if not isinstance(record, ArrayLeaf):
        return ("value",)
    keys = f" ({record.prng_impl} keys)" if record.prng_impl else ""
    kind = text.cell(f"{record.dtype}[{', '.join(map(str, record.shape))}]{keys}")
    if record.alias is not None:
        return kind, "", "", text.cell(f"is {record.alias}")
    return kind, text.size(node.bytes), _grid(record), text.cell(record.sharding or "")


def _grid(record: ArrayLeaf) -> str:
    grid = grid_of(record)
    return "" if grid.size == 1 else f"{'×'.join(map(str, grid.counts))}" + ("" if grid.cuts is None else ", uneven")
