"""A thread of the job that reads every commit back, so that "the newest that can be restored" is a measured fact.

It runs on rank 0 and reads all bytes of a commit once more, at a bounded rate, and between saves: while one is in flight
it waits, for one save a batch and a minute at most. What commits faster than it is read is passed over for the newest.
Nothing of it stops a save or training; what it finds is a note on the commit, an event and a log line.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread

from ckptcore import ledger
from ckptcore.clock import Clock
from ckptcore.errors import Retired
from ckptcore.events import Event, Kind, Listener, log, shorten, tell
from ckptcore.history import read_run
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.verify import record, verify

LAST_READ = 10.0
"""Seconds that `close` waits for a read that the store does not answer. Then the thread is left to end with the process."""

_LOOK = 0.2
"""Seconds between two looks at whether the save in flight has ended."""

MOST = 60.0
"""Seconds that a batch waits for a save at most: one that is uploaded from the nodes may take long, and reads little."""


class _Closed(Exception):
    """The verification is given up: the job ends."""


class Verifier:
    """Verifies what `committed` events tell of, deep, in a thread of its own. Close it.

    `rate`: the most bytes of arrays that are read a second. `saving`: the save in flight on this rank, None if there is none.
    """

    def __init__(
        self,
        store: Store,
        *,
        rate: float,
        saving: Callable[[], GenerationId | None],
        on_event: Listener | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store, self._rate, self._saving, self._on_event = store, rate, saving, on_event
        self._clock = clock or Clock()
        self._changed = Condition()
        self._wanted: GenerationId | None = None
        self._closed = False
        self._thread = Thread(target=self._work, name="ckpt-verify", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Take note of a commit."""
        if event.kind == "committed" and event.generation is not None:
            with self._changed:
                if self._wanted is not None:
                    log.debug("%s is not verified: %s is newer", self._wanted, event.generation)
                self._wanted = event.generation
                self._changed.notify_all()

    def close(self) -> None:
        """Give up what is being verified, and end the thread. Takes as long as one read, `LAST_READ` seconds at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LAST_READ)
        if self._thread.is_alive():
            log.warning("the store does not answer the background verification; it ends with the process")

    def _work(self) -> None:
        while (generation := self._next()) is not None:
            try:
                self._verify(generation)
            except _Closed:
                log.debug("the job ends before %s is verified", generation)
            except Retired as error:
                log.debug("%s", shorten(error))
            except Exception as error:  # noqa: BLE001 -- whatever it is, the next commit is verified all the same
                self._tell("verification-failed", generation, f"{type(error).__name__}: {error}")

    def _next(self) -> GenerationId | None:
        """The newest commit that nobody has looked at; waits for one. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted is not None)
            found, self._wanted = self._wanted, None
            return None if self._closed else found

    def _verify(self, generation: GenerationId) -> None:
        checkpoint = Checkpoint(self._store, ledger.commit(self._store, read_run(self._store).run_id, generation))
        self._give_way()

        def progress(read: int) -> None:
            self._pause(read / self._rate)
            self._give_way()

        found = verify(checkpoint, deep=True, progress=progress)
        record(checkpoint, found, clock=self._clock)
        manifest = checkpoint.manifest
        detail = {"captured": manifest.captured, "guarantee": manifest.guarantee.level, "bytes": found.bytes_read}
        self._tell("verified" if found.ok else "damaged", generation, "; ".join(found.problems), detail)

    def _give_way(self) -> None:
        """Wait for the save in flight, a while; not for the one after that, or there might be no end."""
        first, since = self._saving(), self._clock.monotonic()
        while first is not None and self._saving() == first and self._clock.monotonic() - since < MOST:
            self._pause(_LOOK)
        self._pause(0.0)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._closed, seconds):
                raise _Closed

    def _tell(self, kind: Kind, generation: GenerationId, message: str, detail: dict | None = None) -> None:
        tell(self._on_event, Event(kind, 0, generation, message, detail or {}))
