"""How a run is doing: what a failure now would cost, what saves cost, and what goes wrong with them. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ckptcore import ledger, phases
from ckptcore.attempts import Attempt
from ckptcore.clock import Clock
from ckptcore.errors import DamageError
from ckptcore.history import read_run
from ckptcore.incarnations import stored
from ckptcore.inspect import unbegun
from ckptcore.inspect.chronicle import deliveries
from ckptcore.inspect.costs import kept
from ckptcore.inspect.failures import failure
from ckptcore.inspect.incidents import Account, account
from ckptcore.inspect.inventory import Entry, inventory
from ckptcore.inspect.starts import Start, starts
from ckptcore.interval import Costs
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store

STARTS = 20
"""How many starts of the job a status has: the newest."""

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Newest:
    """A checkpoint, when its state was captured (None for a date that no calendar has), and how long ago that was."""

    generation: GenerationId
    captured: datetime | None
    age: float | None
    """Seconds; negative if whoever captured it has a clock that is ahead of ours."""


@dataclass(frozen=True, kw_only=True)
class SaveCosts:
    """What one save took, in seconds; `stage` and `write` are those of the slowest rank in each, None where no receipt tells.

    `previous_wait` and `previous_commit`: how long rank 0 waited for receipts and decided at the save before this one, the
    newest for which that is recorded. `bytes`: what all ranks wrote; `bytes_per_second`: in the time of the slowest.
    """

    generation: GenerationId
    participants: int
    bytes: int
    stage: float | None = None
    write: float | None = None
    previous_wait: float | None = None
    previous_commit: float | None = None
    bytes_per_second: float | None = None
    slowest: int | None = None
    slowest_seconds: float | None = None


@dataclass(frozen=True)
class Backlog:
    """Generations whose data may go and is still there. `bytes` are those of the retired: what aborted ones left is unknown."""

    generations: tuple[GenerationId, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a run is doing at `at`.

    `committed`, `verified`: the newest that a job could go on from, and the newest of these that a verification found whole.
    `on_nodes`: a newer one that is whole on the nodes, and not durable yet; a job that is started there goes on from it.
    `steps_at_risk`: steps after `committed` that a save under way has already seen, None where there is none: at least these
    would be done again. `failures`: aborted saves by kind (`ckptcore.inspect.failures`). `states`: generations by state.
    `starts`: the newest incarnations, oldest first. `supervision`: attempts, incidents and goodput; None if nobody supervises.
    `begun`: a job has opened the run; if not there is nothing but `supervision`.
    """

    url: str
    at: datetime
    committed: Newest | None
    verified: Newest | None
    on_nodes: Newest | None
    steps_at_risk: int | None
    save: SaveCosts | None
    failures: Mapping[str, int]
    backlog: Backlog
    undecided: tuple[Entry, ...]
    states: Mapping[str, int]
    supervision: Account | None = None
    starts: tuple[Start, ...] = ()
    begun: bool = True


def status(store: Store, clock: Clock | None = None) -> Status:
    """The status of a run, or of attempts to begin one. Raises `NotFound` where there is neither."""
    now = datetime.fromisoformat((clock or Clock()).utc())
    history, attempts = unbegun.look(store)
    if history is None:
        return _unbegun(store, attempts, now)
    entries = inventory(store, history)
    on_path = [entry for entry in entries if entry.state in ("committed", "verified") and entry.guarantee != "weights"]
    committed = _newest(on_path, now)
    undecided = tuple(entry for entry in entries if entry.state == "undecided")
    save, on_nodes = _last_save(store, entries), _newest([entry for entry in undecided if entry.on_nodes], now)
    seen = max((each.captured for each in (committed, on_nodes) if each and each.captured), default=_NEVER)
    return Status(
        url=store.url,
        at=now,
        committed=committed,
        verified=_newest([entry for entry in on_path if entry.state == "verified"], now),
        on_nodes=on_nodes,
        steps_at_risk=_at_risk(committed, undecided),
        save=save,
        failures=Counter(failure(entry.reason, entry.missing) for entry in entries if entry.state == "aborted"),
        backlog=_backlog(store, entries),
        undecided=undecided,
        states=Counter(entry.state for entry in entries),
        supervision=account(attempts, now, seen=seen, costs=_costs(save), period=kept(entries)),
        starts=starts(history, STARTS),
    )


def _unbegun(store: Store, attempts: Sequence[Attempt], now: datetime) -> Status:
    """The status of a place where nothing but a supervisor has been."""
    return Status(
        url=store.url,
        at=now,
        committed=None,
        verified=None,
        on_nodes=None,
        steps_at_risk=None,
        save=None,
        failures={},
        backlog=Backlog(),
        undecided=(),
        states={},
        supervision=account(attempts, now, seen=_NEVER),
        begun=False,
    )


def _newest(entries: Sequence[Entry], now: datetime) -> Newest | None:
    entry = max(entries, key=lambda each: each.generation, default=None)
    if entry is None:
        return None
    age = None if entry.at is None else (now - entry.at) / timedelta(seconds=1)
    return Newest(entry.generation, entry.at, age)


def _at_risk(committed: Newest | None, undecided: Iterable[Entry]) -> int | None:
    newest = max(undecided, key=lambda entry: entry.generation, default=None)
    since = 0 if committed is None else committed.generation.step
    return None if newest is None or newest.generation.step < since else newest.generation.step - since


def _last_save(store: Store, entries: Sequence[Entry]) -> SaveCosts | None:
    commits = [entry for entry in entries if entry.guarantee is not None and entry.state != "retired"]
    newest = max(commits, key=lambda entry: entry.generation, default=None)
    if newest is None:
        return None
    try:
        decided = ledger.commit(store, read_run(store).run_id, newest.generation)
        found = deliveries(Checkpoint(store, decided))
    except DamageError:  # `ckpt verify` says what is wrong; who retires it between two questions does no harm
        return None
    by_rank = {delivery.rank: delivery.phases for delivery in found}
    written = sum(sum(delivery.bytes.values()) for delivery in found)
    slowest = phases.slowest(by_rank)
    write = max((each["write"] for each in by_rank.values() if "write" in each), default=None)
    return SaveCosts(
        generation=newest.generation,
        participants=len(found),
        bytes=written,
        stage=max((each["stage"] for each in by_rank.values() if "stage" in each), default=None),
        write=write,
        previous_wait=by_rank.get(0, {}).get("previous_wait"),
        previous_commit=by_rank.get(0, {}).get("previous_commit"),
        bytes_per_second=written / write if write else None,
        slowest=slowest,
        slowest_seconds=None if slowest is None else phases.own(by_rank[slowest]),
    )


def _costs(save: SaveCosts | None) -> Costs | None:
    """What the newest save tells of what saves cost."""
    if save is None or save.stage is None:
        return None
    return Costs(blocking=save.stage, persist=sum(filter(None, (save.write, save.previous_wait, save.previous_commit))))


def _backlog(store: Store, entries: Sequence[Entry]) -> Backlog:
    there = set(stored(store))
    left = [entry for entry in entries if entry.state in ("retired", "aborted") and entry.generation in there]
    return Backlog(tuple(entry.generation for entry in left), sum(entry.own_bytes or 0 for entry in left))
