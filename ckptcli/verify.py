"""`ckpt verify`: is a commit whole, by its files or by every byte; once, for all, or beside a job."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.ending import Status
from ckptcli.options import Json, Url, Which, named, settings
from ckptcli.output import console, emit, progress
from ckptcore import verify as verification
from ckptcore.clock import Clock
from ckptcore.errors import CallError, DeadlineExceeded, NotFound, Retired
from ckptcore.history import History
from ckptcore.inspect.watching import watch
from ckptcore.reader import Checkpoint
from ckptcore.run import Run
from ckptcore.store import Store
from ckptcore.verify import Verification

Deep = Annotated[bool, typer.Option("--deep", help="Read every byte, not just records and the sizes of files.")]
All = Annotated[bool, typer.Option("--all", help="Every commit that is not retired.")]
Note = Annotated[
    bool,
    typer.Option(
        "--note",
        help="Record the result: retention keeps the newest verified one, and nobody resumes from a damaged one.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", help="Stay, and verify every new commit deep, with notes. Ends by a signal.")]
Timeout = Annotated[float | None, typer.Option(min=0, help="With --follow: end after so many seconds without a new commit.")]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One commit. `depth`: `shallow`, `deep`, or `none` where its manifest cannot be read; `noted`: whether that was recorded."""

    generation: str
    whole: bool
    depth: str
    problems: list[str]
    bytes_read: int
    noted: bool


class Verified(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="verify"):
    """What `ckpt verify --json` prints; with --follow one such document a line for every commit."""

    url: str
    whole: bool
    results: list[Result]


def verify(
    context: typer.Context,
    url: Url,
    which: Which = None,
    *,
    deep: Deep = False,
    every: All = False,
    note: Note = False,
    follow: Follow = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> Status:
    """Check that a checkpoint is whole: shallow, its records and the size of each file; deep, every byte.

    Exit status 1 if one is not. What retention takes meanwhile is no damage.
    """
    _check_call(which, every=every, follow=follow, timeout=timeout)
    store = settings(context).store(url)
    if follow:
        return _follow(store, timeout=timeout, as_json=as_json)
    results = _all(store, deep=deep, note=note) if every else _one(settings(context).run(url), which, deep=deep, note=note)
    found = list(results)
    whole = all(result.whole for result in found)
    emit(Verified(url=store.url, whole=whole, results=found), lambda: _render(found), as_json=as_json)
    return Status.DONE if whole else Status.NEGATIVE


def _check_call(which: str | None, *, every: bool, follow: bool, timeout: float | None) -> None:
    if which is not None and (every or follow):
        raise CallError(f"{which!r} is one checkpoint, --{'all' if every else 'follow'} is about many: leave one of them out")
    if every and follow:
        raise CallError("--all is done at some time, --follow is not: leave one of them out")
    if timeout is not None and not follow:
        raise CallError("--timeout says when --follow ends: it is of no use without that")


def _one(run: Run, which: str | None, *, deep: bool, note: bool) -> Iterator[Result]:
    yield _verified(run.checkpoint(**named(which)), deep=deep, note=note)


def _all(store: Store, *, deep: bool, note: bool) -> Iterator[Result]:
    history = History.load(store)
    commits = list(history.commits())
    if not commits and not history.unreadable:
        raise NotFound(f"run {store.url} has no checkpoint to verify")
    for generation, error in sorted(history.unreadable.items()):
        yield Result(generation=str(generation), whole=False, depth="none", problems=[str(error)], bytes_read=0, noted=False)
    for decided in reversed(commits):
        with suppress(Retired):  # meanwhile
            yield _verified(Checkpoint(store, decided), deep=deep, note=note)


def _verified(checkpoint: Checkpoint, *, deep: bool, note: bool) -> Result:
    total = verification.total_bytes(checkpoint) if deep else 0
    with progress(f"verifying {checkpoint.generation}", total) as advance:
        found = verification.verify(checkpoint, deep=deep, progress=advance)
    if note:
        verification.record(checkpoint, found, clock=Clock())
    return _result(found, noted=note)


def _result(found: Verification, *, noted: bool) -> Result:
    return Result(
        generation=str(found.generation),
        whole=found.ok,
        depth=found.depth,
        problems=list(found.problems),
        bytes_read=found.bytes_read,
        noted=noted,
    )


def _render(found: list[Result]) -> RenderableType:
    return Group(*(line for result in found for line in _lines(result)))


def _lines(result: Result) -> Iterator[Text]:
    noted = ", noted" if result.noted else ""
    if result.whole:
        read = f", {text.size(result.bytes_read)} read" if result.depth == "deep" else ""
        yield Text(f"{result.generation}: whole ({result.depth}{read}{noted})", style="green")
        return
    count = text.plural(len(result.problems), "problem")
    yield Text(f"{result.generation}: NOT WHOLE ({result.depth}, {count}{noted})", style="red")
    yield from (Text(f"  {text.plain(problem)}") for problem in result.problems)


def _follow(store: Store, *, timeout: float | None, as_json: bool) -> Status:
    whole = True
    try:
        with _ended_by_signals():
            for found in watch(store, timeout=timeout):
                whole = whole and found.ok
                result = _result(found, noted=True)
                document = Verified(url=store.url, whole=found.ok, results=[result])
                emit(document, lambda result=result: _line(result), as_json=as_json)
    except KeyboardInterrupt:
        pass  # that is how it ends
    except DeadlineExceeded as error:
        console(stderr=True).print(f"ckpt: {error}")
    return Status.DONE if whole else Status.NEGATIVE


def _line(result: Result) -> Text:
    """One line a commit, with the time: this is a log."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    first = f": {text.first_line(text.plain(result.problems[0]))}" if result.problems else ""
    more = f" and {len(result.problems) - 1} more" if len(result.problems) > 1 else ""
    state = "whole" if result.whole else "NOT WHOLE"
    return Text(f"{now} {result.generation}: {state}, {text.size(result.bytes_read)} read{first}{more}", no_wrap=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends it as SIGINT does."""

    def stop(number: int, frame: object) -> None:  # noqa: ARG001 - what a handler is given
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
