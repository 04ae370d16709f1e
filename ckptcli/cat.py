"""`ckpt cat`: one leaf: its value, or an array's statistics and elements."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text, tree
from ckptcli.options import Json, Url, Which, named, settings
from ckptcli.output import console, emit, facts, progress, table
from ckptcore import values
from ckptcore.errors import CallError, NotFound
from ckptcore.inspect import leaves
from ckptcore.inspect.difference import nbytes
from ckptcore.inspect.statistics import Statistics, Tally
from ckptcore.inspect.streaming import elements, logical
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf

MOST_AS_JSON = 100_000
"""The most elements of a slice that are printed as JSON."""

Name = Annotated[
    str, typer.Argument(metavar="LEAF", help="Its name or path: params.Dense_0.kernel, params['Dense_0']['kernel'].")
]
Slice = Annotated[str | None, typer.Option("--slice", help="Which elements to print, as numpy has it: 0:3,:,5.")]
Rank = Annotated[int | None, typer.Option(min=0, help="Whose leaf, of a component that every rank has its own of (default: 0).")]
Quick = Annotated[bool, typer.Option("--no-statistics", help="Read no more than the elements that are printed.")]


class Found(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="cat"):
    """What `ckpt cat --json` prints.

    `value`: of a value, encoded as the specification has it (chapter 5). `statistics` are over the whole array, but
    not for random keys. `selected`: the shape of the slice; `elements`: nested lists, with `nan`, `inf` and `-inf` as texts
    and complex numbers as pairs; null for more than 100,000, without a slice for more than 1,000.
    `below`: the leaves, where LEAF is a container of several.
    """

    generation: str
    rank: int | None
    leaf: tree.Leaf | None
    value: Any = None
    statistics: Statistics | None = None
    selected: list[int] | None = None
    elements: Any = None
    below: list[tree.Leaf] = []


def cat(
    context: typer.Context,
    url: Url,
    name: Name,
    which: Which = None,
    *,
    part: Slice = None,
    rank: Rank = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Print a leaf: a value as JSON; of an array its statistics, and its elements or a slice of them.

    A name that several leaves begin with lists them.
    """
    checkpoint = settings(context).run(url).checkpoint(**named(which))
    found = _find(checkpoint, name, rank)
    _check_options(found, part, rank)
    if len(found) > 1:
        below = [tree.as_leaf(leaf) for leaf in found]
        several = Found(generation=str(checkpoint.generation), rank=found[0].rank, leaf=None, below=below)
        emit(several, lambda: _list(below), as_json=as_json)
    elif isinstance(found[0].record, ArrayLeaf):
        _array(checkpoint, found[0], part, quick=quick, as_json=as_json)
    else:
        _value(checkpoint, found[0], as_json=as_json)


def _find(checkpoint: Checkpoint, name: str, rank: int | None) -> list[StoredLeaf]:
    own, wanted = leaves.named(name)
    if own is not None and rank not in (None, own):
        raise CallError(f"{name!r} is of rank {own}, --rank says {rank}: leave one of them out")
    chosen = rank if rank is not None else own or 0
    there: list[StoredLeaf] = []
    for component in checkpoint.names:
        ranks = checkpoint.ranks(component)
        if ranks == [None] or chosen in ranks or wanted.startswith(component):
            there.extend(checkpoint.leaves(component, chosen).values())
    return leaves.find(there, wanted, where=checkpoint.title)


def _check_options(found: list[StoredLeaf], part: str | None, rank: int | None) -> None:
    """Raise `CallError` for an option that what was found has no use for."""
    if part is not None and (len(found) > 1 or not isinstance(found[0].record, ArrayLeaf)):
        what = "several leaves" if len(found) > 1 else "a value"
        raise CallError(f"--slice is for one array, and this is {what}: leave it out")
    if rank is not None and found[0].rank is None:
        raise CallError(f"--rank {rank}: component {found[0].component!r} is one for all ranks: leave it out")


def _list(below: list[tree.Leaf]) -> RenderableType:
    made = table("leaf", "type", "size", right=("size",))
    for leaf in below:
        kind = "value" if leaf.dtype is None else f"{leaf.dtype}[{', '.join(map(str, leaf.shape or []))}]"
        made.add_row(text.cell(leaf.path), text.cell(kind), text.size(leaf.bytes) if leaf.dtype else "")
    return made


def _value(checkpoint: Checkpoint, leaf: StoredLeaf, *, as_json: bool) -> None:
    value = checkpoint.value(leaf)
    encoded = values.encode(value, where=leaf.name)
    found = Found(generation=str(checkpoint.generation), rank=leaf.rank, leaf=tree.as_leaf(leaf), value=encoded)
    emit(found, lambda: Text(text.plain(leaves.as_text(value, indent=2))), as_json=as_json)


def _array(checkpoint: Checkpoint, leaf: StoredLeaf, part: str | None, *, quick: bool, as_json: bool) -> None:
    record = leaf.record
    if not isinstance(record, ArrayLeaf):
        raise NotFound(f"leaf {leaf.name!r} is a value")
    selection = leaves.select(part, record.shape)
    most = MOST_AS_JSON if part is not None else leaves.MOST_SHOWN
    whole = _whole(checkpoint, leaf, selection) if as_json and selection.count <= most else None
    statistics = None if quick or record.prng_impl is not None else _statistics(checkpoint, leaf)
    found = Found(
        generation=str(checkpoint.generation),
        rank=leaf.rank,
        leaf=tree.as_leaf(leaf),
        statistics=statistics,
        selected=list(selection.kept),
        elements=whole,
    )
    emit(found, lambda: _render(checkpoint, leaf, selection, statistics), as_json=as_json)


def _whole(checkpoint: Checkpoint, leaf: StoredLeaf, selection: leaves.Selection) -> Any:
    return leaves.as_json(selection.of(logical(leaf, checkpoint.read([(leaf, [selection.box])])[0][0])))


def _statistics(checkpoint: Checkpoint, leaf: StoredLeaf) -> Statistics:
    tally = Tally()
    with progress(f"reading {leaf.name}", nbytes(leaf)) as advance:
        for _, part in elements(checkpoint, leaf, progress=advance):
            tally.add(part)
    return tally.result()


def _render(
    checkpoint: Checkpoint, leaf: StoredLeaf, selection: leaves.Selection, statistics: Statistics | None
) -> RenderableType:
    printed = _elements(checkpoint, leaf, selection)
    told = _facts(checkpoint, leaf, statistics)
    return Group(facts(told), Text(""), Text(printed, no_wrap=True))


def _elements(checkpoint: Checkpoint, leaf: StoredLeaf, selection: leaves.Selection) -> str:
    boxes, places = leaves.corners(selection)
    if not boxes:
        return f"{selection.count:,} elements in {len(selection.shape)} dimensions: --slice selects some of them"
    parts = [logical(leaf, part) for part in checkpoint.read([(leaf, boxes)])[0]]
    array = leaves.joined(selection, places, parts)
    return leaves.shown(array, edge=leaves.edge_of(selection), width=min(console().width, 120))


def _facts(checkpoint: Checkpoint, leaf: StoredLeaf, found: Statistics | None) -> list[tuple[str, str]]:
    known = tree.as_leaf(leaf)
    told = [
        ("leaf", known.path),
        ("generation", str(checkpoint.generation)),
        ("rank", "" if leaf.rank is None else f"{leaf.rank} of {len(checkpoint.ranks(leaf.component))}, each with its own"),
        ("dtype", f"{known.dtype}" + (f", random keys of {known.prng_impl}" if known.prng_impl else "")),
        ("shape", f"({', '.join(map(str, known.shape or []))})"),
        ("size", text.size(nbytes(leaf))),
        ("sharding", known.sharding or ""),
        ("is", known.alias or ""),
    ]
    if found is None:
        return told
    of = " (of the moduli)" if (known.dtype or "").startswith("complex") else ""
    numbers = {"min": found.minimum, "max": found.maximum, "mean": found.mean, "std": found.std}
    told += [(name, f"{_number(value)}{of}") for name, value in numbers.items() if value is not None]
    share = f" ({found.zeros / found.count:.1%})" if found.count else ""
    return [*told, ("zeros", f"{found.zeros:,}{share}"), ("NaN", f"{found.nan:,}"), ("infinite", f"{found.inf:,}")]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
