"""Who is told of what a job does, besides the log: the caller's listener, metrics, and the background verifier."""

from __future__ import annotations

from collections.abc import Callable

from ckptcore.errors import CallError
from ckptcore.events import Event, Listener
from ckptcore.monitor import metrics
from ckptcore.monitor.verifier import Verifier
from ckptcore.names import GenerationId
from ckptcore.store import Store


class Observers:
    """The observers of one rank. Metrics and verification are rank 0's; arguments are checked on every rank alike.

    `metrics_port`: where to serve Prometheus metrics, None for nowhere. `verify_rate`: the bytes a second at which commits are
    read back, None to leave that. `saving`: the save in flight on this rank.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        *,
        on_event: Listener | None,
        metrics_port: int | None,
        verify_rate: float | None,
        saving: Callable[[], GenerationId | None],
    ) -> None:
        if metrics_port is not None:
            metrics.check_port(metrics_port)
        if verify_rate is not None and (isinstance(verify_rate, bool) or not verify_rate > 0):
            raise CallError(f"verify_rate={verify_rate!r}: expected bytes a second, such as 200e6; None verifies nothing")
        self._on_event = on_event
        self._metrics: metrics.Metrics | None = None
        self._verifier: Verifier | None = None
        self._stop_serving: Callable[[], None] | None = None
        if rank == 0 and metrics_port is not None:
            self._metrics = metrics.Metrics(store.url)
            self._stop_serving = metrics.serve(self._metrics, metrics_port)
        if rank == 0 and verify_rate is not None:
            self._verifier = Verifier(store, rate=verify_rate, saving=saving, on_event=self)

    def __call__(self, event: Event) -> None:
        """Tell all of them; the caller's listener last, since it may raise."""
        for listener in (self._metrics, self._verifier, self._on_event):
            if listener is not None:
                listener(event)

    def at(self, step: int) -> None:
        """The job has completed `step` updates."""
        if self._metrics is not None:
            self._metrics.at(step)

    def close(self) -> None:
        """End what runs beside the job. Again is fine."""
        if self._verifier is not None:
            self._verifier.close()
        if self._stop_serving is not None:
            self._stop_serving()
        self._verifier = self._stop_serving = None
