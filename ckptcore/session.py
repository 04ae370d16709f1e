"""Opening a run for writing, on every rank of a job (spec: hand-over).

Rank 0 probes the store, claims an incarnation, settles and chooses the base; the others are handed
the records. A failure on rank 0 is handed over too, so that all ranks raise and none waits.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from ckptcore import canonical, errors, names, records
from ckptcore.channel import Channel
from ckptcore.digests import check
from ckptcore.errors import CheckpointError, DamageError, NotFound, UnsupportedFormat
from ckptcore.incarnations import Incarnation
from ckptcore.ledger import Decided, decode
from ckptcore.store import Store
from ckptcore.storereads import record_bytes

HANDOVER_TIMEOUT = 600.0
_TOLD = b"+"
"""Begins the message of a rank that has succeeded; a failure is a JSON object."""
T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """An incarnation as one rank of its job holds it."""

    store: Store
    channel: Channel
    incarnation: Incarnation

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.channel.rank

    @property
    def run_id(self) -> str:
        """The identity of the run."""
        return self.incarnation.run.run_id

    def base(self) -> Decided | None:
        """The commit to resume from, checked against the digest that was handed over."""
        generation = self.incarnation.base_generation
        if generation is None:
            return None
        key = names.ledger_key(generation)
        data = record_bytes(self.store, key)
        if data is None:
            raise NotFound(f"rank {self.rank} does not see {key}: do all ranks have the same storage mounted?")
        check(data, self.incarnation.base.manifest or "", what=key)
        return decode(generation, data, self.run_id)


def open_session(store: Store, channel: Channel, claim: Callable[[], Incarnation]) -> Session:
    """Run `claim` on rank 0 and hand its incarnation to every rank. Raises rank 0's error on all of them."""
    payload = None
    if channel.rank == 0:
        try:
            incarnation = claim()
        except Exception as error:  # whatever it is: the other ranks are waiting
            channel.broadcast(_failure(error), timeout=HANDOVER_TIMEOUT, what="opening the run")
            raise
        payload = _success(incarnation)
    received = channel.broadcast(payload, timeout=HANDOVER_TIMEOUT, what="opening the run")
    return Session(store, channel, _receive(received))


def together(channel: Channel, work: Callable[[], T], *, timeout: float, what: str) -> T:
    """Do `work` on every rank, and return its result if all of them succeeded.

    Otherwise every rank raises the error of the same rank. Damage anywhere counts as damage everywhere.
    """
    return together_telling(channel, work, lambda _: b"", timeout=timeout, what=what)[0]


def together_telling(
    channel: Channel, work: Callable[[], T], tell: Callable[[T], bytes], *, timeout: float, what: str
) -> tuple[T, list[bytes]]:
    """As `together`; also gives what `tell` says of every rank's result, in rank order."""
    result, error, message = None, None, b""
    try:
        result = work()
        message = _TOLD + tell(result)
    except Exception as caught:  # noqa: BLE001 -- whatever it is, the other ranks must not wait for this one
        error, message = caught, _failure(caught)
    told = channel.gather(message, timeout=timeout, what=what)
    failures = [(rank, data) for rank, data in enumerate(told) if not data.startswith(_TOLD)]
    if not failures:
        return cast("T", result), [data.removeprefix(_TOLD) for data in told]
    rank, data = next((item for item in failures if is_damage(_error(item[1], 0))), failures[0])
    raise error if error is not None and rank == channel.rank else _error(data, rank)


def is_damage(error: CheckpointError) -> bool:
    """Whether `error` says that this checkpoint is unusable, so that all ranks should try another."""
    return isinstance(error, DamageError) and not isinstance(error, UnsupportedFormat)


def _success(incarnation: Incarnation) -> bytes:
    parts = (incarnation.run, incarnation.claim, incarnation.base)
    return canonical.encode({"records": [b64encode(records.encode(part)).decode() for part in parts]})


def _failure(error: Exception) -> bytes:
    kind, text = (error.kind, str(error)) if isinstance(error, CheckpointError) else ("error", f"{type(error).__name__}: {error}")
    return canonical.encode({"kind": kind, "message": text.encode("utf-8", "replace").decode()[:20_000]})


def _receive(data: bytes) -> Incarnation:
    message = canonical.decode(data, what="hand-over from rank 0")
    if "records" not in message:
        raise _error(data, 0)
    run, claim, base = (b64decode(part) for part in message["records"])
    return Incarnation(
        records.decode(run, records.Run, key="hand-over: run"),
        records.decode(claim, records.Claim, key="hand-over: claim"),
        records.decode(base, records.Base, key="hand-over: base"),
    )


def _error(data: bytes, rank: int) -> CheckpointError:
    message = canonical.decode(data, what=f"message from rank {rank}")
    kind = _KINDS.get(message["kind"], CheckpointError)
    error = kind.__new__(kind)
    Exception.__init__(error, f"rank {rank}: {message['message']}")
    return error


_KINDS = {kind.kind: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CheckpointError)}
