"""Protocol code with one deliberate defect each. Every one is a context manager: inside of it the code is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ckptcore import incarnations, ledger, names, retention, writer
from ckptcore.array_writer import DatabaseWriter
from ckptcore.coordinator import Coordinator
from ckptcore.errors import SaveAborted, SaveFailed, StoreUnavailable, Superseded
from ckptcore.history import History
from ckptcore.incarnations import Opening, undecided
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.objectstore import ObjectStore
from ckptcore.operate import recovery
from ckptcore.proof import Refuted
from ckptcore.records import Abort, clip
from ckptcore.retention import Collector
from ckptcore.saving import Saving


class Unfenced(Coordinator):
    """Does not look for a newer claim."""

    def fence(self, generation: GenerationId) -> None:
        pass


@contextmanager
def no_fence() -> Iterator[None]:
    """A coordinator decides without looking for a newer claim (P-38)."""
    with patch.object(Coordinator, "fence", lambda *_: None):
        yield


class Aborting(Coordinator):
    """Decides whatever it is asked to finish."""

    def finish(self, generation: GenerationId, receipts: Any = None) -> Any:
        return Coordinator(**vars(self)).conclude(generation, receipts)


@contextmanager
def finishes_without_a_fence() -> Iterator[None]:
    """Who finishes a save for another does not look for a newer claim (P-58)."""
    with patch.object(recovery, "Coordinator", Unfenced):
        yield


@contextmanager
def finishes_by_aborting() -> Iterator[None]:
    """Who finishes saves for others aborts what is not complete yet (P-58)."""
    with patch.object(recovery, "Coordinator", Aborting):
        yield


@contextmanager
def fence_before_data() -> Iterator[None]:
    """It looks, but before index, roster and merged view are stored (P-38)."""
    conclude = Coordinator.conclude

    def early(self: Coordinator, generation: GenerationId, receipts: Any = None) -> Any:
        self.fence(generation)
        return conclude(Unfenced(**vars(self)), generation, receipts)

    with patch.object(Coordinator, "conclude", early):
        yield


@contextmanager
def overwrite() -> Iterator[None]:
    """A put in a bucket has no precondition (S-1)."""

    def put(self: ObjectStore, key: str, data: bytes, *, look: bool) -> bytes:  # noqa: ARG001 - as the real one
        self._result(self._root.write(key, data))
        return data

    with patch.object(ObjectStore, "_put", put):
        yield


@contextmanager
def abort_on_a_transient_error() -> Iterator[None]:
    """What could not be read counts as absent (P-13)."""
    examine = Coordinator.examine

    def hasty(self: Coordinator, generation: GenerationId, receipts: Any = None) -> Any:
        try:
            return examine(self, generation, receipts)
        except StoreUnavailable as error:
            return Refuted(str(error))

    with patch.object(Coordinator, "examine", hasty):
        yield


@contextmanager
def abort_though_fenced() -> Iterator[None]:
    """A coordinator that finds a newer claim puts an abort (P-38)."""
    commit = Coordinator.commit

    def stubborn(self: Coordinator, generation: GenerationId, participants: int, **options: Any) -> Any:
        try:
            return commit(self, generation, participants, **options)
        except Superseded:
            return Unfenced(**vars(self)).abort(generation, Refuted("superseded"))

    with patch.object(Coordinator, "commit", stubborn):
        yield


@contextmanager
def unknown_resolved_by_one_read() -> Iterator[None]:
    """After a put without an answer an absent decision counts as not made (P-39)."""

    def once(store: Any, key: str, data: bytes, *, clock: Any, timeout: float) -> bytes:  # noqa: ARG001
        try:
            return store.put_if_absent(key, data)
        except StoreUnavailable:
            found = store.get(key)
            if found is None:
                raise SaveAborted("it was not stored") from None
            return found

    with patch.object(ledger, "insist", once):
        yield


@contextmanager
def delete_before_abort() -> Iterator[None]:
    """The data of a generation is deleted before its abort is there (K-10)."""
    abort = Coordinator.abort

    def eager(self: Coordinator, generation: GenerationId, refuted: Refuted) -> Any:
        self.store.delete_prefix(names.generation_prefix(generation))
        return abort(self, generation, refuted)

    with patch.object(Coordinator, "abort", eager):
        yield


@contextmanager
def receipts_before_sync() -> Iterator[None]:
    """A rank signs for a database whose directories it has not synced (P-31)."""
    finish = DatabaseWriter.finish

    class Unsynced:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def sync(self, prefix: str) -> None:
            pass

    def lazy(self: DatabaseWriter) -> Any:
        self._store = Unsynced(self._store)  # pyright: ignore[reportAttributeAccessIssue]
        return finish(self)

    with patch.object(DatabaseWriter, "finish", lazy):
        yield


@contextmanager
def receipt_before_values() -> Iterator[None]:
    """A rank signs first and stores its values afterwards (P-31)."""
    put, sign_off = writer._Writer._put, writer._Writer._sign_off
    held: dict[int, list[tuple[str, bytes]]] = {}

    def keep(self: Any, key: str, data: bytes, *, shared: bool = False) -> Any:  # noqa: ARG001 - as the real one
        held.setdefault(id(self), []).append((key, data))
        return writer.Descriptor(key=key, size=len(data), digest=writer.digest(data))

    def sign(self: Any, receipt: Any) -> None:
        sign_off(self, receipt)
        for key, data in held.pop(id(self)):
            put(self, key, data)

    with patch.object(writer._Writer, "_put", keep), patch.object(writer._Writer, "_sign_off", sign):
        yield


@contextmanager
def base_not_read_again() -> Iterator[None]:
    """An opener does not look whether its base was retired while it was being chosen (P-16)."""

    class Blind:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: False) if name == "is_retired" else getattr(ledger, name)

    with patch.object(incarnations, "ledger", Blind()):
        yield


@contextmanager
def opens_though_superseded() -> Iterator[None]:
    """An opener does not look whether another job has claimed since (P-16)."""
    with patch.object(incarnations, "check_current", lambda *_: None):
        yield


@contextmanager
def head_by_greatest_step() -> Iterator[None]:
    """The resume point is the commit with the greatest step (P-22)."""

    def by_step(self: History) -> Iterator[GenerationId]:
        yield from sorted(self.generations, key=lambda generation: (generation.step, generation), reverse=True)

    with patch.object(History, "lineage", by_step):
        yield


@contextmanager
def no_second_look() -> Iterator[None]:
    """A collector deletes what it has retired without looking at bases and notes again (K-7)."""

    def blind(self: Collector, history: History) -> None:
        history.generations |= {generation: True for generation, retired in ledger.entries(self.store) if retired}

    with patch.object(Collector, "_look_again", blind):
        yield


@contextmanager
def deletes_what_is_undecided() -> Iterator[None]:
    """A collector takes undecided saves of the running job for garbage (K-11)."""
    collect = Collector.collect

    def greedy(self: Collector, keep: Keep | None, *, dry_run: bool = False) -> Any:
        found = collect(self, keep, dry_run=dry_run)
        for generation in undecided(self.store):
            self.store.delete_prefix(names.generation_prefix(generation))
        return found

    with patch.object(Collector, "collect", greedy):
        yield


@contextmanager
def collector_aborts_the_newest() -> Iterator[None]:
    """A collector without an incarnation aborts whatever is undecided (K-14)."""
    collect = Collector.collect

    def zealous(self: Collector, keep: Keep | None, *, dry_run: bool = False) -> Any:
        history = History.load(self.store)
        for generation in undecided(self.store) if self.incarnation is None else ():
            record = Abort(
                run_id=history.run.run_id,
                generation=str(generation),
                decided=self.clock.utc(),
                decided_by=max(history.bases, default=1),
                reason=clip("left behind"),
                missing=[],
            )
            ledger.decide(self.store, record, clock=self.clock, timeout=10.0)
        return collect(self, keep, dry_run=dry_run)

    with patch.object(Collector, "collect", zealous):
        yield


@contextmanager
def no_settling() -> Iterator[None]:
    """An opener leaves undecided what older incarnations left (P-10)."""
    with patch.object(Opening, "settle", lambda *_: []):
        yield


@contextmanager
def failed_though_delivered() -> Iterator[None]:
    """A rank whose receipt is there reports that its part failed (P-42)."""
    deliver = Saving.deliver

    def lying(self: Saving) -> None:
        deliver(self)
        if self.shard.identity.rank != 0:
            raise SaveFailed("it seems so")

    with patch.object(Saving, "deliver", lying):
        yield


@contextmanager
def deletes_while_a_job_opens() -> Iterator[None]:
    """A collector deletes what an opener may just have chosen (K-7)."""
    with patch.object(retention, "opening_claims", lambda _: set()):
        yield
