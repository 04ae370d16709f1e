"""What the next start of a job would do with a run, and why. Reads only (spec: opening for writing, head)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ckptcore import forks, names
from ckptcore.attempts import Attempt
from ckptcore.errors import CheckpointError, DamageError, UnsupportedFormat
from ckptcore.history import History
from ckptcore.incarnations import never_a_checkpoint, undecided
from ckptcore.inspect import findings, proving, unbegun
from ckptcore.inspect.findings import Finding
from ckptcore.inspect.inventory import time_of
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.records import Manifest
from ckptcore.store import Storage, Store
from ckptcore.verify import check_whole

Check = Callable[[Decided], object]
"""Raises a `DamageError` for a commit that no start would resume from."""


@dataclass(frozen=True)
class Outlook:
    """What the next start would do. The first finding is the answer: of kind `resume`, `begin` or `stop`.

    `attempts`: of supervisors, oldest first. `captured`: when the state of the newest commit was, None if there is none.
    """

    findings: tuple[Finding, ...]
    attempts: tuple[Attempt, ...] = ()
    captured: datetime | None = None

    @property
    def answer(self) -> Finding:
        """What it comes to."""
        return self.findings[0]

    @property
    def generation(self) -> GenerationId | None:
        """What the next start would resume from."""
        return self.answer.generation if self.answer.kind == "resume" else None


def outlook(store: Store, storage: Storage) -> Outlook:
    """What the next start would do: what it would settle is proven, and what it would choose is looked at, as it would do it.

    A job that still runs may change all of it. Raises a `StoreError` where the store gives no answer.
    """
    history, attempts = unbegun.look(store)
    found = _of_nothing(attempts) if history is None else _of_run(store, history, storage)
    newest = None if history is None else next(history.commits(), None)
    captured = time_of(newest.record.captured) if newest and isinstance(newest.record, Manifest) else None
    return Outlook(tuple(found), tuple(attempts), captured)


def _of_nothing(attempts: Sequence[Attempt]) -> list[Finding]:
    """Of a place where a supervisor has launched a job, and that has not begun the run."""
    return [
        Finding(kind="begin", text="no run has begun here: the next start is a fresh one", clause="P-5, U-8"),
        Finding(kind="opening", text=unbegun.advice(attempts[-1]), clause="U-8"),
    ]


def _of_run(store: Store, history: History, storage: Storage) -> list[Finding]:
    verdicts = [proving.judge(store, history.run.run_id, generation) for generation in undecided(store)]
    settled = [finding for verdict in verdicts for finding in (verdict.finding, *verdict.details)]
    told = [*settled, *_incarnations(history)]
    open_ones = [verdict for verdict in verdicts if verdict.decided is None]
    if open_ones:
        text = f"the next start stops with an error: it cannot determine what became of {open_ones[0].generation}"
        return [Finding(kind="stop", text=text, clause="P-13"), *told]
    supposed = history.supposing(verdict.decided for verdict in verdicts if verdict.decided is not None)
    fresh = {verdict.generation for verdict in verdicts}

    def check(decided: Decided) -> None:
        if decided.generation not in fresh:  # what is proven has no roster yet
            check_whole(Checkpoint(store, decided))

    *passed, answer = lineage(supposed, check)
    if answer.kind == "begin":
        answer = _beginning(history, storage)
    if answer.generation in fresh:
        text = f"the next start commits it, since it is proven whole, and resumes from here (step {answer.generation.step})"
        answer = replace(answer, text=text, clause="P-11, P-20")
    older = [finding for finding in passed if finding.generation not in fresh]  # of the others `told` says more
    return [_unless_on_nodes(answer, verdicts, history.newest_begun()), *older, *told]


def _unless_on_nodes(answer: Finding, verdicts: Sequence[proving.Verdict], incarnation: int) -> Finding:
    """The answer is that of a start anywhere: on the nodes that hold a newer save of the newest incarnation it is another."""
    waiting = [verdict.generation for verdict in verdicts if any(each.kind == "on-nodes" for each in verdict.details)]
    newest = max((each for each in waiting if each.incarnation == incarnation), default=None)
    if answer.kind not in ("resume", "begin") or newest is None or (answer.generation and newest < answer.generation):
        return answer
    return replace(answer, text=f"{answer.text}, unless it is on the nodes that hold {newest}: that one resumes from there")


def lineage(history: History, check: Check | None = None) -> Iterator[Finding]:
    """The candidates, best first, each passed over, and at the end what a start does: `resume`, `begin` or `stop`.

    Without `check` what the records say has to do.
    """
    try:
        yield from _candidates(history, check)
    except UnsupportedFormat as error:
        yield Finding(kind="stop", text=f"the next start stops with an error: {error}", clause="P-25")
    except DamageError as error:
        yield Finding(kind="stop", text=f"the next start stops with an error: {error}", clause="P-20")


def _candidates(history: History, check: Check | None) -> Iterator[Finding]:
    left = False
    for generation in history.lineage():
        problem = findings.obstacle(history, generation)
        decided = history.decided(generation)
        if problem is None and decided is not None and check is not None:
            problem = _refusal(decided, check)
        if problem is None:
            whole = ", and all of its files are there" if check else ", if its files are whole"
            text = f"the next start resumes from here (step {generation.step}){whole}"
            yield Finding(kind="resume", text=text, clause="P-15, P-20", generation=generation)
            return
        yield replace(problem, kind="passed-over", text=f"passed over, {problem.text}")
        left = left or not never_a_checkpoint(decided)
    following = "stops with an error, since it would lose what the run has" if left else "is a fresh one"
    text = f"no checkpoint to resume from: the next start {following}"
    yield Finding(kind="stop" if left else "begin", text=text, clause="P-17")


def _refusal(decided: Decided, check: Check) -> Finding | None:
    try:
        check(decided)
    except UnsupportedFormat:
        raise
    except DamageError as error:
        return Finding(kind="damaged", text=str(error), clause="P-15", generation=decided.generation)
    return None


def _beginning(history: History, storage: Storage) -> Finding:
    """How a run without a checkpoint begins."""
    parent, origin = history.run.parent, history.run.origin
    if origin is not None:
        text = f"the next start begins at step 0 from the {origin.format} checkpoint {origin.url}, which it has to be given again"
        return Finding(kind="begin", text=text, clause="O-20", key=names.RUN)
    if parent is None:
        text = "no checkpoint to resume from: the next start is a fresh one"
        return Finding(kind="begin", text=text, clause="P-17")
    try:
        forks.open_parent(parent, storage)
    except CheckpointError as error:
        return Finding(kind="stop", text=f"the next start stops with an error: {error}", clause="O-19", key=names.RUN)
    text = f"the next start begins from generation {parent.generation} of {parent.url}, which this run was forked from"
    return Finding(kind="begin", text=text, clause="O-19", key=names.RUN)


def _incarnations(history: History) -> Iterator[Finding]:
    """Claims without a base, bases that are lost, and who is superseded by whom."""
    for number, error in sorted(history.lost.items()):
        text = f"incarnation {number} had a base, which cannot be read: {error}"
        yield Finding(kind="lost-base", text=text, clause="P-20", key=names.base_key(number))
    for number, base in sorted(history.bases.items()):
        if base is None and number not in history.lost:
            text = f"incarnation {number} has a claim and no base: its job is still opening, or died before it had chosen one"
            yield Finding(kind="opening", text=text, clause="P-18", key=names.claim_key(number))
    newest = max(history.bases, default=0)
    after = f"; a job of incarnation {newest} that still runs must stop then" if newest else ""
    yield Finding(kind="next-claim", text=f"the next start claims incarnation {newest + 1}{after}", clause="P-8, P-9")


def by_records(history: History, open_ones: Sequence[GenerationId]) -> Iterator[str]:
    """As `outlook`, by the run's records alone: a line each. `open_ones`: what is undecided."""
    for found in lineage(history):
        yield f"{found.generation}: {found.text}" if found.generation is not None else found.text
    yield from (f"{each}: undecided; the next start commits it if it is proven whole, else aborts it" for each in open_ones)
