"""What a supervisor records of its attempts in the run's store, and what others read of it (spec: supervision).

An attempt is one launch of all ranks. It has up to three records, each put once: its plan, that training has caught up with
where it had been, and its end. They account for what happened; no rule about checkpoints depends on them. The nodes of a job of
several announce themselves for an attempt before it is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from ckptcore import names, records
from ckptcore.attempt_structs import MAX_STACK, Member
from ckptcore.clock import Clock
from ckptcore.errors import DamageError, NotFound
from ckptcore.events import log, shorten
from ckptcore.history import read_run
from ckptcore.names import GenerationId
from ckptcore.records import AttemptEnd, AttemptIncident, AttemptNode, AttemptPlan, AttemptResumed, Record, Supervisor
from ckptcore.store import Store
from ckptcore.storereads import record_bytes
from ckptcore.workers import Workers

__all__ = [
    "Attempt",
    "AttemptEnd",
    "AttemptIncident",
    "AttemptNode",
    "AttemptPlan",
    "AttemptResumed",
    "Attempts",
    "Cause",
    "Member",
    "Outcome",
    "Supervisor",
]

Cause = Literal["start", "restart", "shrunk", "grown", "resumed-supervisor"]
"""Why an attempt was launched. `start`: the supervisor began, and nothing had been left running. `restart`: after an incident, on
as many slots. `shrunk`, `grown`: on fewer, on more. `resumed-supervisor`: the supervisor before this one had died."""

Outcome = Literal["finished", "failed", "preempted", "resized", "superseded", "lost"]
"""How an attempt ended. `resized`: to go on with more or fewer ranks. `lost`: its supervisor died."""

R = TypeVar("R", AttemptNode, AttemptPlan, AttemptResumed, AttemptEnd)
_KINDS: dict[str, type[Any]] = {"plan": AttemptPlan, "resumed": AttemptResumed, "end": AttemptEnd}


@dataclass(frozen=True)
class Attempt:
    """An attempt as the store has it. `resumed` is None until it has caught up, `end` while nobody has recorded one.

    `unread_end`: it has an end, which cannot be read.
    """

    plan: AttemptPlan
    resumed: AttemptResumed | None = None
    end: AttemptEnd | None = None
    unread_end: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nobody has recorded its end."""
        return self.end is None and not self.unread_end

    @property
    def number(self) -> int:
        """Its number: 1 and up."""
        return self.plan.attempt


class Attempts:
    """The attempts of one run. Every method raises a `StoreError` where the store does not answer.

    `run_id`: the run's; if it is None it is looked up when it is needed: there is none before a job has opened the run.
    """

    def __init__(self, store: Store, run_id: str | None = None, *, clock: Clock | None = None) -> None:
        self._store, self._run_id, self._clock = store, run_id, clock or Clock()
        self._known: dict[str, Record] = {}

    def load(self) -> list[Attempt]:
        """All attempts that have a plan; see `look`."""
        return self.look()[0]

    def look(self) -> tuple[list[Attempt], int]:
        """All attempts that have a plan, oldest first, and the number of the next: one listing, and the records not read before.

        What cannot be read, or belongs to another run, is logged and passed over.
        """
        keys = self._keys()
        self._read([key for key in keys if key not in self._known])
        found: dict[int, dict[str, Any]] = {}
        for key, (number, what) in keys.items():
            if key in self._known:
                found.setdefault(number, {})[what] = self._known[key]
            elif what == "end":
                found.setdefault(number, {})["unread_end"] = True
        return [Attempt(**parts) for _, parts in sorted(found.items()) if "plan" in parts], _after(keys)

    def next(self) -> int:
        """The number after the greatest that is there, whether or not its records can be read."""
        return _after(self._keys())

    def _keys(self) -> dict[str, tuple[int, str]]:
        """The keys of attempts, with the number and the kind of each."""
        listed = ((key, names.parse_attempt_key(key)) for key in self._store.list(names.SUPERVISION))
        return {key: parsed for key, parsed in listed if parsed}

    def plan(
        self,
        attempt: int,
        *,
        supervisor: Supervisor,
        slots: Sequence[int],
        nodes: Sequence[str],
        cause: Cause,
        committed: GenerationId | str | None = None,
        members: Sequence[Member] = (),
    ) -> AttemptPlan:
        """Put the plan of an attempt if it has none, and return the one that is there: with another's nonce it is another's.

        `slots`, `nodes`: where each rank runs, in order of rank. `committed`: the newest committed generation now.
        `members`: of a job of several nodes, these, in the order of their ranks.
        """
        return self._put(
            names.attempt_key(attempt, "plan"),
            AttemptPlan(
                run_id=self._run(),
                attempt=attempt,
                created=self._clock.utc(),
                supervisor=supervisor,
                processes=len(slots),
                slots=list(slots),
                nodes=[_word(node) for node in nodes],
                cause=cause,
                committed=_generation(committed),
                members=list(members),
            ),
        )

    def announce(
        self, attempt: int, *, supervisor: Supervisor, node: str, address: str, token: str, slots: int, started: str, since: int
    ) -> AttemptNode:
        """Put that a node's supervisor, which was `started` then (`Clock.utc`), is there for an attempt.

        `address`: `host:port` where others reach it, `token`: by which they prove themselves there. `slots`: how many it has.
        `since`: the oldest attempt that it has seen.
        """
        return self._put(
            names.attempt_node_key(attempt, supervisor.nonce),
            AttemptNode(
                run_id=self._run(),
                attempt=attempt,
                created=self._clock.utc(),
                supervisor=supervisor,
                node=_word(node),
                address=_word(address),
                token=token,
                slots=slots,
                started=started,
                since=since,
            ),
        )

    def announced(self, attempt: int) -> list[AttemptNode]:
        """Who is there for an attempt, by name of the node: of each the one started last. Whether they live is not recorded."""
        keys = [key for key in self._store.list(names.attempt_nodes_prefix(attempt)) if names.parse_attempt_node_key(key)]
        self._read([key for key in keys if key not in self._known])
        found = [record for key in keys if isinstance(record := self._known.get(key), AttemptNode)]
        newest = {each.node: each for each in sorted(found, key=lambda each: each.started)}
        return [newest[node] for node in sorted(newest)]

    def resumed(
        self,
        attempt: int,
        *,
        launched: datetime,
        first_step: datetime,
        recovered: datetime,
        restored_step: int,
        recovered_step: int,
        restoring: datetime | None = None,
        restored: datetime | None = None,
    ) -> AttemptResumed:
        """Record that training has caught up, unless that is recorded already; returns what is stored. Times have a time zone.

        `restored_step`: where it began (0: fresh). `recovered_step`: the furthest that an attempt before had got to.
        """
        return self._put(
            names.attempt_key(attempt, "resumed"),
            AttemptResumed(
                run_id=self._run(),
                attempt=attempt,
                launched=_time(launched),
                restoring=_maybe(restoring),
                restored=_maybe(restored),
                first_step=_time(first_step),
                recovered=_time(recovered),
                restored_step=restored_step,
                recovered_step=recovered_step,
            ),
        )

    def end(
        self,
        attempt: int,
        *,
        outcome: Outcome,
        detected: datetime,
        stopped: datetime,
        incident: AttemptIncident | None = None,
        launched: datetime | None = None,
        restoring: datetime | None = None,
        restored: datetime | None = None,
        first_step: datetime | None = None,
        last_sign: datetime | None = None,
        restored_step: int | None = None,
        last_step: int | None = None,
        blocked: float = 0.0,
        trained: float = 0.0,
        stack: str = "",
        committed: GenerationId | str | None = None,
    ) -> AttemptEnd:
        """Record how an attempt ended, unless that is recorded already; returns what is stored. Times have a time zone.

        `last_sign`: of life, before it ended. `detected`: when the supervisor knew. `stopped`: no process was left. `blocked`,
        `trained`: seconds, the most of any rank. `stack`: of what hung. `committed`: the newest committed generation now.
        """
        return self._put(
            names.attempt_key(attempt, "end"),
            AttemptEnd(
                run_id=self._run(),
                attempt=attempt,
                outcome=outcome,
                incident=None if incident is None else _clipped(incident),
                launched=_maybe(launched),
                restoring=_maybe(restoring),
                restored=_maybe(restored),
                first_step=_maybe(first_step),
                last_sign=_maybe(last_sign),
                detected=_time(detected),
                stopped=_time(stopped),
                restored_step=restored_step,
                last_step=last_step,
                blocked=_microseconds(blocked),
                trained=_microseconds(trained),
                stack=_valid(stack)[:MAX_STACK],
                committed=_generation(committed),
            ),
        )

    def _put(self, key: str, record: R) -> R:
        kind = type(record)
        data = records.encode(record)
        records.decode(data, kind, key=key)  # nothing that readers refuse is put where it can never be mended
        stored = records.decode(self._store.put_if_absent(key, data), kind, key=key)
        self._known[key] = stored
        return stored

    def _run(self) -> str | None:
        if self._run_id is None:
            try:
                self._run_id = read_run(self._store).run_id
            except NotFound:
                return None
        return self._run_id

    def _read(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        run_id = self._run()
        with Workers(min(len(keys), self._store.limits.requests), "attempts") as pool:
            found: Iterable[Record | None] = pool.map(lambda key: self._record(key, run_id), keys)
            self._known.update({key: record for key, record in zip(keys, found, strict=True) if record is not None})

    def _record(self, key: str, run_id: str | None) -> Record | None:
        number, what = names.parse_attempt_key(key) or names.parse_attempt_node_key(key) or (0, "")
        try:
            data = record_bytes(self._store, key)
            record = None if data is None else records.decode(data, _KINDS.get(what, AttemptNode), key=key)
            if record is not None:
                records.expect(key, run_id=(record.run_id, record.run_id and run_id), attempt=(record.attempt, number))
            if isinstance(record, AttemptNode):
                records.expect(key, nonce=(record.supervisor.nonce, what))
        except DamageError as error:
            log.warning("a record of supervision is passed over: %s", shorten(error))
            return None
        return record


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _maybe(at: datetime | None) -> str | None:
    return None if at is None else _time(at)


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _generation(given: GenerationId | str | None) -> str | None:
    return None if given is None else str(given)


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _word(text: str) -> str:
    return _valid(text)[:200]


def _clipped(incident: AttemptIncident) -> AttemptIncident:
    node = None if incident.node is None else _word(incident.node)
    changes = {"node": node, "message": records.clip(incident.message)}
    return AttemptIncident(**{name: changes.get(name, getattr(incident, name)) for name in incident.__struct_fields__})


def _after(keys: Mapping[str, tuple[int, str]]) -> int:
    """The number after the greatest of these keys."""
    return 1 + max((number for number, _ in keys.values()), default=0)
