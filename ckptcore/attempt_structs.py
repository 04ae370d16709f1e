"""The types of the records of a supervisor (spec: supervision). Those of checkpoints are in `ckptcore.structs`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ckptcore.structs import Count, Generation, Nonce, Participants, Rank, Record, RunId, Step, Text, Time, Word

MAX_STACK = 65_536
"""Characters of a stack that a record may hold."""

AttemptNumber = Annotated[int, Meta(ge=1, le=99_999_999)]
ExitStatus = Annotated[int, Meta(ge=-255, le=255)]
Token = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
Stack = Annotated[str, Meta(max_length=MAX_STACK)]


class Supervisor(Struct, frozen=True, kw_only=True):
    """Who supervises an attempt: a nonce of its own, and for people where it runs."""

    nonce: Nonce
    host: Word
    pid: Count


class Member(Struct, frozen=True, kw_only=True):
    """A node that takes part in an attempt: its name, its supervisor's nonce, and `host:port` where that one is reached.

    `token`: by which others and it prove to each other that they can read the run.
    """

    node: Word
    nonce: Nonce
    address: Word
    token: Token


class AttemptNode(Record, frozen=True, kw_only=True):
    """`supervision/<attempt>/nodes/<nonce>.json`: a node's supervisor is there for an attempt that nobody has planned yet.

    `address`: `host:port` where it is reached, `token`: by which it and others prove to each other that they can read the run.
    `slots`: how many it has. `started`: when it was. `since`: the oldest attempt of the job that it has seen.
    """

    format: Literal["ckpt/attempt-node"] = "ckpt/attempt-node"
    run_id: RunId | None
    attempt: AttemptNumber
    created: Time
    supervisor: Supervisor
    node: Word
    address: Word
    token: Token
    slots: Annotated[int, Meta(ge=1, le=100_000)]
    started: Time
    since: AttemptNumber


class AttemptPlan(Record, frozen=True, kw_only=True):
    """`supervision/<attempt>/plan.json`: one launch of all ranks. `slots` and `nodes`: where each rank runs, in order of rank.

    `members`: of a job of several nodes, these, in order of rank; the first one leads.
    """

    format: Literal["ckpt/attempt-plan"] = "ckpt/attempt-plan"
    run_id: RunId | None
    attempt: AttemptNumber
    created: Time
    supervisor: Supervisor
    processes: Participants
    slots: list[Count]
    nodes: list[Word]
    cause: Literal["start", "restart", "shrunk", "grown", "resumed-supervisor"]
    committed: Generation | None
    members: list[Member] = field(default_factory=list)


class AttemptResumed(Record, frozen=True, kw_only=True):
    """`supervision/<attempt>/resumed.json`: training has caught up with where it had been before."""

    format: Literal["ckpt/attempt-resumed"] = "ckpt/attempt-resumed"
    run_id: RunId | None
    attempt: AttemptNumber
    launched: Time
    restoring: Time | None
    restored: Time | None
    first_step: Time
    recovered: Time
    restored_step: Step
    recovered_step: Step


class AttemptIncident(Struct, frozen=True, kw_only=True):
    """Why an attempt ended before its time. `status`: the exit status of a process; less than 0: the signal that ended it."""

    kind: Word
    rank: Rank | None = None
    slot: Count | None = None
    node: Word | None = None
    status: ExitStatus | None = None
    phase: Word | None = None
    step: Step | None = None
    message: Text = ""


class AttemptEnd(Record, frozen=True, kw_only=True):
    """`supervision/<attempt>/end.json`: what became of an attempt. `blocked` and `trained` are microseconds."""

    format: Literal["ckpt/attempt-end"] = "ckpt/attempt-end"
    run_id: RunId | None
    attempt: AttemptNumber
    outcome: Literal["finished", "failed", "preempted", "resized", "superseded", "lost"]
    incident: AttemptIncident | None
    launched: Time | None = None
    restoring: Time | None = None
    restored: Time | None = None
    first_step: Time | None = None
    last_sign: Time | None
    detected: Time
    stopped: Time
    restored_step: Step | None
    last_step: Step | None
    blocked: Count = 0
    trained: Count = 0
    stack: Stack = ""
    committed: Generation | None


ATTEMPT_RECORDS: dict[str, type[Record]] = {
    "attempt-node": AttemptNode,
    "attempt-plan": AttemptPlan,
    "attempt-resumed": AttemptResumed,
    "attempt-end": AttemptEnd,
}
