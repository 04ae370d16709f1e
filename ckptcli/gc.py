"""`ckpt gc`: retire checkpoints, and delete the data that nobody needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, cast

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.options import Apply, Json, Url, settings
from ckptcli.output import emit, table
from ckptcore.errors import CallError
from ckptcore.keep import Best, Keep
from ckptcore.operate.collecting import Collection, Piece, collect

_BEST = re.compile(r"(.+):(min|max)(?::([0-9]{1,9}))?", re.DOTALL)

Last = Annotated[
    int | None, typer.Option("--keep-last", metavar="N", help="Keep the newest N, at least 2; 3 if only others are given.")
]
Every = Annotated[int | None, typer.Option("--keep-every", metavar="N", help="Keep those at multiples of N steps.")]
BestBy = Annotated[
    str | None, typer.Option("--keep-best", metavar="METRIC:min|max[:N]", help="Keep the N (1) best by a metric that was noted.")
]
Dead = Annotated[
    list[int] | None,
    typer.Option(
        "--dead-claim",
        metavar="N",
        help="You vouch that the job of incarnation N, which was claimed and has no base, has ended; may be given several times.",
    ),
]


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is given up for good."""

    generation: str
    reason: str


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one generation: what its store holds of it, and why it goes or stays."""

    generation: str
    bytes: int
    reason: str


class Collected(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="gc"):
    """What `ckpt gc --json` prints; without `applied`, what would be done. `bytes`: of all that is deleted."""

    url: str
    applied: bool
    retired: list[Retired]
    deleted: list[Data]
    held: list[Data]
    bytes: int


def gc(
    context: typer.Context,
    url: Url,
    *,
    keep_last: Last = None,
    keep_every: Every = None,
    keep_best: BestBy = None,
    dead_claim: Dead = None,
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Delete the data of aborted saves and retired checkpoints; with --keep-…, retire what these do not keep first.

    The resume point, the newest verified one, tagged and pinned ones, and what others refer to are never retired.
    """
    store = settings(context).store(url)
    keep = _keep(keep_last, keep_every, keep_best)
    found = collect(store, keep, apply=apply, dead_claims=frozenset(dead_claim or ()))
    emit(_document(store.url, found, applied=apply), lambda: Group(*_lines(found, applied=apply)), as_json=as_json)


def _keep(last: int | None, every: int | None, best: str | None) -> Keep | None:
    """The policy that the options ask for, None if they ask for none."""
    if last is None and every is None and best is None:
        return None
    return Keep(last=3 if last is None else last, every=every, best=None if best is None else _best(best))


def _best(given: str) -> Best:
    match = _BEST.fullmatch(given)
    if match is None:
        raise CallError(f"--keep-best {given!r}: expected METRIC:min or METRIC:max, and perhaps how many, such as loss:min:3")
    return Best(match[1], int(match[3] or 1), cast("Literal['min', 'max']", match[2]))


def _document(url: str, found: Collection, *, applied: bool) -> Collected:
    return Collected(
        url=url,
        applied=applied,
        retired=[Retired(generation=str(generation), reason=reason) for generation, reason in found.retired],
        deleted=[_data(piece) for piece in found.deleted],
        held=[_data(piece) for piece in found.held],
        bytes=sum(piece.bytes for piece in found.deleted),
    )


def _data(piece: Piece) -> Data:
    return Data(generation=str(piece.generation), bytes=piece.bytes, reason=piece.reason)


def _lines(found: Collection, *, applied: bool) -> Iterator[RenderableType]:
    total = text.size(sum(piece.bytes for piece in found.deleted))
    done = ("retired", "deleted") if applied else ("would be retired", "would be deleted")
    if not (found.deleted or found.retired):
        yield Text("there is nothing to retire or to delete")
    if found.retired:
        yield Text(f"{text.plural(len(found.retired), 'checkpoint')} {done[0]}")
    if found.deleted:
        yield Text(f"{total} of {text.plural(len(found.deleted), 'generation')} {done[1]}:")
        yield _table(found.deleted)
    if found.held:
        yield Text("kept:")
        yield _table(found.held)
    if not applied and (found.deleted or found.retired):
        yield Text("nothing was changed: --apply does it", style="bold")


def _table(pieces: Sequence[Piece]) -> RenderableType:
    made = table("generation", "step", "size", "why", right=("step", "size"))
    for piece in pieces:
        made.add_row(str(piece.generation), f"{piece.generation.step:,}", text.size(piece.bytes), text.cell(piece.reason))
    return made
