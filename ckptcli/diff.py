"""`ckpt diff`: two commits beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.ending import Status
from ckptcli.numbers import Number, number
from ckptcli.options import Json, Url, named, settings
from ckptcli.output import emit, progress, table
from ckptcore.inspect.difference import (
    Change,
    FieldChange,
    LeafChange,
    Table,
    bytes_to_read,
    compare,
    compare_fields,
    measure,
)
from ckptcore.inspect.difference import table as leaf_table
from ckptcore.reader import Checkpoint

First = Annotated[str, typer.Argument(metavar="WHICH", help="A generation ID, or a step.")]
Second = Annotated[
    str | None,
    typer.Argument(
        metavar="[WHICH2]", help="The other one: of RUN, or with --to of that run; the resume point if it is left out."
    ),
]
To = Annotated[str | None, typer.Option("--to", metavar="RUN2", help="The run that the second one is of.")]
Digests = Annotated[bool, typer.Option("--digests", help="Compare digests alone: read no arrays and no values.")]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two."""

    url: str
    generation: str


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf that is not the same in both. `left` and `right` describe it there; the last four are of elements, if measured.

    `largest` is the greatest absolute difference, `relative` the greatest one in proportion to the larger of both elements;
    null where nothing was measured, "inf" where one of two elements is NaN or infinite and the other is not.
    """

    leaf: str
    path: str
    component: str
    rank: int | None
    change: Change
    left: str | None
    right: str | None
    differing: int | None
    count: int | None
    largest: Number | None
    relative: Number | None


class Difference(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="diff"):
    """What `ckpt diff --json` prints. `same`: leaves whose content is the same; `fields`: what the manifests say differently."""

    left: Side
    right: Side
    equal: bool
    same: int
    fields: list[FieldChange]
    leaves: list[Leaf]


def diff(
    context: typer.Context,
    url: Url,
    first: First,
    second: Second = None,
    *,
    to: To = None,
    digests: Digests = False,
    as_json: Json = False,
) -> Status:
    """Compare two checkpoints: guarantee, topology, versions, metadata, leaves, and how far arrays are apart.

    Exit status 1 if they differ.
    """
    left = settings(context).run(url).checkpoint(**named(first))
    right = settings(context).run(url if to is None else to).checkpoint(**named(second))
    tables = leaf_table(left), leaf_table(right)
    found = compare(*tables)
    changes = found if digests else list(_measured(left, right, tables, found))
    fields = compare_fields(left.manifest, right.manifest)
    shown = Difference(
        left=Side(url=left.store.url, generation=str(left.generation)),
        right=Side(url=right.store.url, generation=str(right.generation)),
        equal=not fields and not changes,
        same=len(tables[0].keys() | tables[1].keys()) - len(changes),
        fields=fields,
        leaves=[_leaf(change) for change in changes],
    )
    emit(shown, lambda: _render(shown, changes), as_json=as_json)
    return Status.DONE if shown.equal else Status.NEGATIVE


def _measured(left: Checkpoint, right: Checkpoint, tables: tuple[Table, Table], found: list[LeafChange]) -> Iterator[LeafChange]:
    with progress("comparing", bytes_to_read(found, tables[0])) as advance:
        for change in found:
            measured = measure(change, (left, tables[0]), (right, tables[1]), advance)
            if measured is not None:
                yield measured


def _leaf(change: LeafChange) -> Leaf:
    apart = {"largest": change.largest, "relative": change.relative}
    return Leaf(**{**vars(change), **{name: None if value is None else number(value) for name, value in apart.items()}})


def _render(shown: Difference, changes: list[LeafChange]) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"left   {shown.left.generation} of {shown.left.url}"),
        Text(f"right  {shown.right.generation} of {shown.right.url}"),
        Text(""),
    ]
    if shown.fields:
        parts += [_fields(shown.fields), Text("")]
    if changes:
        parts += [_leaves(changes), Text("")]
    same = f"{text.plural(shown.same, 'leaf')} the same"
    differ = f", {text.plural(len(shown.leaves), 'leaf')} not" if shown.leaves else ""
    return Group(*parts, Text("equal: " * shown.equal + same + differ))


def _fields(fields: list[FieldChange]) -> RenderableType:
    made = table("manifest", "left", "right")
    for field in fields:
        made.add_row(text.cell(field.name), _shown(field.left), _shown(field.right))
    return made


def _shown(content: Any) -> str:
    if content is None:
        return "–"
    return text.cell(text.first_line(content if isinstance(content, str) else msgspec.json.encode(content).decode()))


def _leaves(changes: list[LeafChange]) -> RenderableType:
    made = table("leaf", "difference", "max abs", "max rel", "elements", right=("max abs", "max rel", "elements"))
    for change in changes:
        rank = "" if change.rank is None else f" (rank {change.rank})"
        made.add_row(text.cell(change.path) + rank, text.cell(_told(change)), *_numbers(change))
    return made


def _told(change: LeafChange) -> str:
    left, right = (text.first_line(side or "", 40) for side in (change.left, change.right))
    words = {
        "only-left": f"only on the left: {left}",
        "only-right": f"only on the right: {right}",
        "elements": left,
        "unknown": f"{left}, cut into other chunks: the digests cannot tell",
    }
    return words.get(change.change, f"{left} → {right}" if left != right else "another value")


def _numbers(change: LeafChange) -> tuple[str, str, str]:
    if change.largest is None or change.relative is None or change.differing is None or change.count is None:
        return "", "", ""
    share = f" ({change.differing / change.count:.0%})" if change.count else ""
    return f"{change.largest:.4g}", f"{change.relative:.4g}", f"{change.differing:,}{share}"
