"""What the library tells while it works: typed events for `on_event`, and one log line each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ckptcore.names import GenerationId

log = logging.getLogger("ckptcore")

Kind = Literal[
    "opened",
    "staged",
    "chunk-written",
    "written",
    "on-nodes",
    "uploaded",
    "copied",
    "receipt",
    "receipts-complete",
    "proven",
    "committed",
    "aborted",
    "failed",
    "settled",
    "restored",
    "fallen-back",
    "preempted",
    "superseded",
    "undecided",
    "retired",
    "collection-failed",
    "verified",
    "damaged",
    "verification-failed",
]

_LOUD = {
    *("fallen-back", "preempted", "superseded", "failed", "collection-failed", "aborted"),
    *("undecided", "damaged", "verification-failed"),
}
_LINE = 200
"""The most characters of a reason in a log line; the event and the error have all of it."""


@dataclass(frozen=True)
class Event:
    """One thing that happened. `generation` is the save or restore it belongs to; `detail` depends on `kind`.

    `staged`, `written` and `uploaded` tell `seconds` and `bytes` of this rank, `copied` those of the part of rank `owner`, which
    is now on this node too. At a start, `uploaded` has the rank of a dead job whose part it was, and says on whose node it lay.
    `receipts-complete` and `committed` on rank 0 the `seconds` that it has waited and decided.
    `committed` on rank 0, `restored` and `verified` tell when the state was `captured`; the first also the `bytes` of all ranks,
    the `slowest` rank, and its `slowest_seconds`.
    """

    kind: Kind
    rank: int
    generation: GenerationId | None = None
    message: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def shorten(reason: object) -> str:
    """A reason as it stands in a log line: one line, at most about 200 characters."""
    line = " ".join(str(reason).split())
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


def tell(listener: Listener | None, event: Event) -> None:
    """Log `event` and hand it to `listener`, in the calling thread.

    The log record has `kind`, `rank` and `generation` (None where there is none) as attributes, for handlers that write fields.
    An error of the listener is logged with its traceback and goes no further: a metrics service that is
    down must not make a save fail that is whole.
    """
    log.log(
        logging.WARNING if event.kind in _LOUD else logging.DEBUG,
        "%s%s rank=%d: %s",
        event.kind,
        "" if event.generation is None else f" {event.generation}",
        event.rank,
        shorten(event.message),
        extra={
            "kind": event.kind,
            "rank": event.rank,
            "generation": None if event.generation is None else str(event.generation),
        },
    )
    if listener is not None:
        try:
            listener(event)
        except Exception:
            log.exception("on_event failed at %r", event)
