"""Verify every commit of a run as it appears, beside the job that makes them: that it can be restored becomes a measured fact."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ckptcore import verify
from ckptcore.clock import Clock
from ckptcore.errors import DeadlineExceeded, Retired, StoreUnavailable
from ckptcore.events import log, shorten
from ckptcore.history import History
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.verify import Verification

PAUSE = 5.0
"""The most seconds between two looks at the ledger."""


def watch(
    store: Store,
    *,
    note: bool = True,
    timeout: float | None = None,
    clock: Clock | None = None,
    on_begin: Callable[[Checkpoint], Callable[[int], object]] = lambda _: lambda _: None,
) -> Iterator[Verification]:
    """Verify the newest commit, unless that has been done, and every one that appears later, deep; with `note`, write it down.

    A store that does not answer for a while is waited out, and what retention takes meanwhile is passed over. `on_begin` gives
    what is told of bytes as they are read. Raises `DeadlineExceeded` when `timeout` seconds pass without a new commit.
    """
    watched, history = clock or Clock(), History.load(store)
    seen = _begin(history)
    while True:
        for decided in _new(history, seen, watched, timeout):
            found = _look(Checkpoint(store, decided), watched, note=note, on_begin=on_begin)
            if found is not None:
                yield found
            seen.add(decided.generation)


def _begin(history: History) -> set[GenerationId]:
    """The commits that are old: all but the newest, and that one too if its bytes have been verified, or it is marked."""
    known = [decided.generation for decided in history.commits()]
    told = history.notes.get(known[0], []) if known else []
    settled = any(each.kind == "verified" and each.depth == "deep" for each in told) or bool(known and history.mark(known[0]))
    return set(known if settled else known[1:])


def _new(history: History, seen: set[GenerationId], clock: Clock, timeout: float | None) -> list[Decided]:
    """Commits that are not among `seen`, oldest first; waits for one."""
    for _ in clock.polls(timeout if timeout is not None else 1e9, first=0.1, most=PAUSE):
        try:
            history.refresh()
            fresh = [decided for decided in history.commits() if decided.generation not in seen]
        except StoreUnavailable as error:
            log.warning("looked for commits in vain: %s", shorten(error))
            continue
        if fresh:
            return fresh[::-1]
    raise DeadlineExceeded(f"run {history.store.url} has no new commit after {timeout:g} s")


def _look(
    checkpoint: Checkpoint, clock: Clock, *, note: bool, on_begin: Callable[[Checkpoint], Callable[[int], object]]
) -> Verification | None:
    """What is found of a commit; None where retention was faster."""
    for _ in clock.polls(1e9, first=1.0, most=60.0):
        try:
            found = verify.verify(checkpoint, deep=True, progress=on_begin(checkpoint))
            if note:
                verify.record(checkpoint, found, clock=clock)
        except Retired:
            return None
        except StoreUnavailable as error:
            log.warning("%s is verified once more: %s", checkpoint.generation, shorten(error))
        else:
            return found
    return None
