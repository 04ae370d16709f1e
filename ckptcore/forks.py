"""New runs from old ones: forks and warm starts (spec: forks).

A run's `run.json` names its parent, once, or its origin: a checkpoint in another format. Until the run has a
commit of its own it starts from there, so a restart before the first commit does the same thing again.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.errors import (
    CallError,
    Damaged,
    DamageError,
    ForeignRecord,
    NotFound,
    Retired,
    StoreError,
    StoreUnavailable,
    UnsupportedFormat,
)
from ckptcore.events import log, shorten
from ckptcore.formats.foreign import Source, Start, as_source
from ckptcore.history import History, read_run
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Storage, Store, open_store, overlap
from ckptcore.verify import check_whole

OTHER = "Fork another generation of it to a new URL: open_run({url!r}).fork(new_url, generation=…)"


def source(start_from: Start | None, store: Store, storage: Storage, clock: Clock) -> records.Parent | records.Origin | None:
    """What a new run in `store` gets from `start_from`: a parent, or an origin; None when there is none to set.

    A parent is the newest commit that is whole and not marked, among those that the parent's own job would resume from.
    A run that exists keeps what it was created with. Raises `CallError` if that was something else and it has no
    commit yet: it would silently start from scratch, or from other weights.
    """
    if start_from is None:
        return None
    if store.get(names.RUN) is not None:
        history = History.load(store)
        if next(history.commits(), None) is None:
            _check_start(history.run, start_from, store.url)
        return None
    if isinstance(start_from, str | os.PathLike):
        return _newest(start_from, storage, clock)
    return as_source(start_from).describe()


def _check_start(run: records.Run, start_from: Start, url: str) -> None:
    """Raise `CallError` if a run without a commit was not created to begin from `start_from`."""
    if run.origin is not None:
        same_source(run.origin, start_from, url)
    elif run.parent is None or not isinstance(start_from, str | os.PathLike):
        how = f"from run {run.parent.run_id}" if run.parent else "without start_from"
        raise CallError(f"run {url} was created {how} and has no checkpoint; use a new URL to start from {_show(start_from)}")


def same_source(origin: records.Origin, start_from: Start | None, url: str) -> Source:
    """`start_from`, if it is what the run at `url`, without a commit yet, was created to begin from.

    Raises `CallError` otherwise: it would begin from other weights than those recorded.
    """
    begun = f"run {url} has no checkpoint yet, and was created to begin from the {origin.format} checkpoint {origin.url}"
    if start_from is None or isinstance(start_from, str | os.PathLike):
        given = "none was given" if start_from is None else f"{_show(start_from)} was given"
        raise CallError(f"{begun}: give it with start_from again ({given}), or use a new URL")
    found = as_source(start_from).describe()
    if (found.format, found.digest) != (origin.format, origin.digest):
        raise CallError(
            f"{begun}: start_from is {start_from.title}, which is another one, or has changed"
            f" ({found.digest}, recorded is {origin.digest}); give the same, or use a new URL"
        )
    return start_from


def _show(start_from: Start) -> str:
    return os.fsdecode(start_from) if isinstance(start_from, str | os.PathLike) else as_source(start_from).title


def _newest(start_from: str | os.PathLike[str], storage: Storage, clock: Clock) -> records.Parent:
    origin = open_store(start_from, storage)
    history = History.load(origin)
    passed: list[str] = []
    for decided in _candidates(history):
        try:
            check_whole(Checkpoint(origin, decided))
            return parent_record(origin, decided, weights_of(decided), clock=clock)
        except UnsupportedFormat:
            raise  # written by a newer release: to pass it over would take something older without being asked to
        except DamageError as error:
            log.warning("start_from: %s of %s is passed over: %s", decided.generation, origin.url, shorten(error))
            passed.append(f"\n  - {decided.generation}: {error}")
    raise NotFound(f"start_from: run {origin.url} has no checkpoint to start from" + "".join(passed))


def _candidates(history: History) -> Iterator[Decided]:
    """What the run's own job could resume from, best first; where it has nothing like that, its commits of weights."""
    empty = True
    for generation in history.lineage():
        decided = history.decided(generation)
        if history.obstacle(generation) is None and decided is not None:
            empty = False
            yield decided
    if empty:
        yield from (decided for decided in history.commits() if _mark(history.notes.get(decided.generation, [])) is None)


def _mark(told: Sequence[records.Note]) -> records.Note | None:
    """The note that says that nobody should start from a generation, if there is one."""
    return next((note for note in told if note.kind in ("quarantine", "damaged")), None)


def parent_record(origin: Store, decided: Decided, components: Sequence[str], *, clock: Clock) -> records.Parent:
    """Describe a commit as the parent of a new run, and pin it in its own run so that retention spares it.

    A parent that cannot be written to is not pinned, with a warning. Raises `Retired` when retention was faster.
    """
    manifest = manifest_of(decided)
    text = "a run was forked from here"
    if not try_note(origin, manifest.run_id, decided.generation, "pin", text=text, clock=clock):
        log.warning("%s of %s is not pinned: see to it that it is kept while it is needed", decided.generation, origin.url)
    notes.check_kept(origin, decided.generation)
    return records.Parent(
        run_id=manifest.run_id,
        url=origin.url,
        generation=str(decided.generation),
        manifest=decided.digest,
        components=list(components),
    )


def try_note(origin: Store, run_id: str, generation: GenerationId, kind: str, *, text: str, clock: Clock) -> bool:
    """Write a note into another run, which may be read-only to us: then, with a warning, it is not written."""
    name = "pin" if kind == "pin" else None  # one pin, however often it is tried
    try:
        notes.write(origin, run_id, generation, kind, clock=clock, name=name, text=records.clip(text))
    except DamageError as error:
        log.warning("the %s note on %s is unreadable, and counts as one: %s", kind, generation, shorten(error))
    except StoreUnavailable:
        raise  # transient, and no sign of a read-only store
    except StoreError as error:
        log.warning("the %s note on %s could not be written: %s", kind, generation, shorten(error))
        return False
    return True


def weights_of(decided: Decided) -> list[str]:
    """The components of a commit that are parameters."""
    manifest = manifest_of(decided)
    declared = manifest.guarantee.derived.get("parameters")
    found = [name for name, entry in manifest.components.items() if entry.kind == "parameters" or name == declared]
    if not found:
        raise NotFound(f"generation {decided.generation} has no component of parameters; fork it with the components named")
    return found


def open_parent(parent: records.Parent, storage: Storage) -> Checkpoint:
    """The parent's commit, checked against the digest that the child recorded, and against what was learned of it since.

    Raises `NotFound` when it is quarantined, a `DamageError` when it is damaged, exchanged, or retired without a pin.
    """
    origin = open_store(parent.url, storage)
    run = read_run(origin)
    if run.run_id != parent.run_id:
        raise ForeignRecord(f"{origin.url} holds run {run.run_id}, this run was made from {parent.run_id}")
    decided = ledger.read(origin, run.run_id, GenerationId.parse(parent.generation))
    if decided is None:
        raise NotFound(f"{origin.url} has no generation {parent.generation} any more")
    if decided.digest != parent.manifest:
        raise Damaged(f"{names.ledger_key(decided.generation)} of {origin.url} is not the manifest this run was made from")
    told = notes.read(origin, run.run_id, decided.generation)
    mark = _mark(told)
    if mark is not None:
        kind = NotFound if mark.kind == "quarantine" else Damaged
        raise kind(
            f"generation {decided.generation} of {origin.url}, which this run starts from, is marked {mark.kind}: {mark.text}."
            f" {OTHER.format(url=origin.url)}"
        )
    if ledger.is_retired(origin, decided.generation) and not notes.has(told, "pin"):  # a pin keeps the data all the same
        raise Retired(
            f"generation {decided.generation} of {origin.url}, which this run starts from, was retired."
            f" {OTHER.format(url=origin.url)}"
        )
    return Checkpoint(origin, decided)


def fork(origin: Store, target: Store, decided: Decided, components: Sequence[str], *, clock: Clock) -> records.Run:
    """Make a new run in `target` from a commit of `origin`. The pin is durable before the run is there, as its data must be kept.

    Raises, before anything is pinned, `CallError` for a target that lies in `origin` or the reverse or holds a run,
    `NotFound` for components that the commit has not, and a `StoreError` if nothing can be written to the target.
    """
    if target.get(names.RUN) is not None:
        raise CallError(f"{target.url} holds a run already; fork to a new URL")
    if overlap(origin.url, target.url):
        raise CallError(f"{target.url} and the run {origin.url} lie in each other: fork to another place")
    known = manifest_of(decided).components
    unknown = [name for name in components if name not in known]
    if unknown:
        raise NotFound(f"generation {decided.generation} of {origin.url} has no component {unknown[0]!r}; it has {sorted(known)}")
    _try_writing(target)
    return create(target, parent_record(origin, decided, components, clock=clock), clock=clock)


def _try_writing(store: Store) -> None:
    """Raise a `StoreError` if nothing can be written there. A key that nobody may delete stays (spec: store probe)."""
    prefix = f"probe/{secrets.token_hex(16)}/"
    store.put_if_absent(f"{prefix}fork", b"fork")
    with suppress(StoreError):
        store.delete_prefix(prefix)


def create(store: Store, parent: records.Parent, *, clock: Clock) -> records.Run:
    """Create the identity of a forked run. Raises `CallError` if there is a run already."""
    run = records.Run(run_id=str(uuid.uuid4()), created=clock.utc(), parent=parent)
    data = records.encode(run)
    if store.put_if_absent(names.RUN, data) != data:
        raise CallError(f"{store.url} holds a run already; fork to a new URL")
    return run
