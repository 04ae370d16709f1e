"""`ckpt explain`: what the next start would resume from, and why; why a generation can or cannot be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.ending import Status
from ckptcli.lastattempt import supervised
from ckptcli.options import Json, Url, named, settings
from ckptcli.output import emit, progress
from ckptcore.errors import CallError, NotFound
from ckptcore.history import History
from ckptcore.incarnations import stored
from ckptcore.inspect.condition import Condition, condition
from ckptcore.inspect.explaining import outlook
from ckptcore.inspect.findings import Finding
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.verify import total_bytes

MOST = 12
"""Findings of one kind that people are shown."""
GOOD = ("resume", "roll-forward", "whole", "ancestor", "begin")
BAD = ("stop", "undetermined", "damaged", "chunks", "missing-receipt", "failed-receipt", "unreadable", "lost-base")

Which = Annotated[
    str | None,
    typer.Argument(metavar="[WHICH]", help="A generation ID, or a step; without it, what the next start would do."),
]
Deep = Annotated[bool, typer.Option("--deep", help="With WHICH: read every byte of it.")]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `kind`: a word for programs; `clause`: of the specification; the rest says where it was found."""

    kind: str
    text: str
    clause: str
    generation: str | None
    rank: int | None
    key: str | None
    leaf: str | None
    chunks: list[int]


class Explanation(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="explain"):
    """What `ckpt explain --json` prints.

    Without WHICH `generation` is what the next start resumes from, null if it resumes from none, and the first finding is of kind
    `resume`, `begin` or `stop`. With WHICH it is the one asked for. `resumable`: the answer.
    """

    url: str
    generation: str | None
    resumable: bool
    findings: list[Fact]


def explain(context: typer.Context, url: Url, which: Which = None, *, deep: Deep = False, as_json: Json = False) -> Status:
    """Tell what the next start would resume from, and why; or with WHICH, whether that one can be resumed from.

    Nothing is changed: what is undecided is proven as a start would prove it. Of a supervised run it
    also tells how the last attempt ended, and whether a supervisor may be at work. Exit status 1 if there is nothing to
    resume from.
    """
    if deep and which is None:
        raise CallError("--deep reads one checkpoint: name it, as `ckpt explain RUN WHICH --deep`")
    store = settings(context).store(url)
    if which is None:
        found = outlook(store, settings(context).storage)
        findings = [*found.findings, *supervised(found, datetime.now(UTC))]
        shown = _explanation(store, found.generation, findings, resumable=found.generation is not None)
        emit(shown, lambda: Group(*_lines(findings, None)), as_json=as_json)
    else:
        looked = _condition(store, which, deep=deep)
        shown = _explanation(store, looked.generation, looked.findings, resumable=looked.resumable)
        emit(shown, lambda: _looked(looked), as_json=as_json)
    return Status.DONE if shown.resumable else Status.NEGATIVE


def _condition(store: Store, which: str, *, deep: bool) -> Condition:
    history = History.load(store)
    generation = _named(store, history, which)
    decided = history.decided(generation)
    with progress(f"reading {generation}", _size(store, decided) if deep else 0) as advance:
        return condition(store, generation, deep=deep, progress=advance)


def _size(store: Store, decided: Decided | None) -> int:
    return 0 if decided is None or not decided.committed else total_bytes(Checkpoint(store, decided))


def _named(store: Store, history: History, which: str) -> GenerationId:
    """The generation that is meant, decided or not: of several of one step the greatest."""
    asked = named(which)
    if "generation" in asked:
        return GenerationId.parse(str(asked["generation"]))
    known = sorted({*history.generations, *stored(store)})
    of_step = [generation for generation in known if generation.step == asked["step"]]
    if not of_step:
        raise NotFound(f"run {store.url} has no generation of step {which}; `ckpt ls` shows them")
    return of_step[-1]


def _explanation(store: Store, generation: GenerationId | None, found: Sequence[Finding], *, resumable: bool) -> Explanation:
    facts = [
        Fact(
            kind=each.kind,
            text=each.text,
            clause=each.clause,
            generation=None if each.generation is None else str(each.generation),
            rank=each.rank,
            key=each.key,
            leaf=each.leaf,
            chunks=list(each.chunks),
        )
        for each in found
    ]
    shown = None if generation is None else str(generation)
    return Explanation(url=store.url, generation=shown, resumable=resumable, findings=facts)


def _looked(found: Condition) -> RenderableType:
    answer = "can be resumed from" if found.resumable else "cannot be resumed from"
    verdict = Text(f"{found.generation} {answer}", style="green" if found.resumable else "red")
    return Group(verdict, *_lines(found.findings, found.generation))


def _lines(found: Sequence[Finding], about: GenerationId | None) -> Iterator[Text]:
    """A line each. Of many ranks that lack the same, one line; of what there are very many, the first ones."""
    shown: dict[str, int] = {}
    for each in _grouped(found):
        shown[each.kind] = shown.get(each.kind, 0) + 1
        if shown[each.kind] <= MOST:
            yield _line(each, about)
    yield from (
        Text(f"  … and {count - MOST} more of kind {kind}: --json has them") for kind, count in shown.items() if count > MOST
    )


def _grouped(found: Sequence[Finding]) -> Iterator[Finding]:
    """Missing receipts of one generation and of one reason as one finding, in the place of the first."""
    alike: dict[tuple[GenerationId | None, str], list[Finding]] = {}
    for each in found:
        if each.kind == "missing-receipt":
            alike.setdefault((each.generation, _reason(each)), []).append(each)
    for each in found:
        if each.kind != "missing-receipt":
            yield each
        elif group := alike.pop((each.generation, _reason(each)), None):
            ranks = text.ranks([other.rank for other in group if other.rank is not None])
            yield _merged(each, ranks, _reason(each), len(group))


def _reason(finding: Finding) -> str:
    return finding.text.partition(": ")[2]


def _merged(each: Finding, ranks: str, reason: str, count: int) -> Finding:
    if count == 1:
        return each
    return Finding(
        kind=each.kind,
        text=f"no receipt from {ranks}" + (f": {reason}" if reason else ""),
        clause=each.clause,
        generation=each.generation,
    )


def _line(each: Finding, about: GenerationId | None) -> Text:
    named_by = "" if each.generation in (None, about) else f"{each.generation}: "
    where = f" [{each.key}]" if each.key is not None and each.key not in each.text else ""
    clause = f" ({each.clause})" if each.clause else ""
    style = "green" if each.kind in GOOD else "red" if each.kind in BAD else ""
    indent = "  " if about is not None or each.kind in ("missing-receipt", "failed-receipt", "chunks") else ""
    return Text(f"{indent}{text.plain(named_by + each.text)}{where}{clause}", style=style)
