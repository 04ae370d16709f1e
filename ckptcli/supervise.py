"""`ckpt supervise`: run a job, and run it again when it fails."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TextIO

import msgspec
import typer

from ckptcli.durations import seconds, shown
from ckptcli.ending import Status
from ckptcli.options import settings
from ckptcli.text import plain
from ckptcore.errors import CallError
from ckptsupervise.deadlines import Deadlines
from ckptsupervise.endpoint import own_host
from ckptsupervise.engine import ElasticEngine
from ckptsupervise.links import TICK
from ckptsupervise.nodes_policy import NodesPolicy
from ckptsupervise.outputs import write
from ckptsupervise.policy import Policy
from ckptsupervise.rendezvous import Waits
from ckptsupervise.several import SuperviseNodes
from ckptsupervise.supervisor import Result, Supervise
from ckptsupervise.telling import Told
from ckptsupervise.watching import Asked, Limits

LONGEST = 200
"""Characters of a node's name that records hold."""

_PHASES = tuple(Deadlines.__dataclass_fields__)
_DEFAULTS = ", ".join(f"{phase}={shown(getattr(Deadlines(), phase)).replace(' ', '')}" for phase in _PHASES)

Command = Annotated[list[str], typer.Argument(metavar="COMMAND", help="What each rank runs, with its arguments; after `--`.")]
Run = Annotated[str, typer.Option("--run", metavar="URL", help="The run that the job trains, as its Checkpointer has it.")]
Nnodes = Annotated[
    int, typer.Option("--nnodes", min=1, metavar="N", help="Nodes of the job, on each of which this command runs.")
]
MinNnodes = Annotated[
    int | None, typer.Option("--min-nnodes", min=1, metavar="N", help="Nodes without which there is no job [--nnodes].")
]
Node = Annotated[str | None, typer.Option(metavar="NAME", help="This node's name, if there are several [its host name].")]
Address = Annotated[
    str | None, typer.Option(metavar="HOST", help="Where the others reach this node [that of its route to other networks].")
]
Join = Annotated[
    str,
    typer.Option(
        metavar="SPAN",
        help="How long to wait for further nodes, once --min-nnodes are there. A SPAN is 90, 90s, 15min, 3h or 2d.",
    ),
]
Silence = Annotated[str, typer.Option(metavar="SPAN", help="Silence after which a node is lost.")]
Nproc = Annotated[int, typer.Option("--nproc", min=1, metavar="N", help="Ranks on each node.")]
MinNproc = Annotated[
    int | None, typer.Option("--min-nproc", min=1, metavar="N", help="Ranks without which there is no job [--nproc].")
]
Tries = Annotated[int, typer.Option(min=1, metavar="N", help="Failures of a slot in a row after which it is left out.")]
MaxRestarts = Annotated[int, typer.Option(min=0, metavar="N", help="Restarts without a newly committed step, at most.")]
GrowAfter = Annotated[str, typer.Option(metavar="SPAN", help="When a slot that was left out is tried again, then twice as late.")]
Grace = Annotated[str, typer.Option(metavar="SPAN", help="How long ranks may take to save and end when the job is to stop.")]
Deadline = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PHASE=SPAN",
        help=f"Silence after which a rank hangs, such as train=15min. May be repeated. [default: {_DEFAULTS}]",
    ),
]
Drain = Annotated[bool, typer.Option("--drain", help="Go on without the slot of a rank that is slow, not just tell of it.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each event; what ranks print goes to standard error.")
]


class Supervised(Told, frozen=True, kw_only=True, tag_field="command", tag="supervise"):
    """What `ckpt supervise --json` prints, one line for each event."""


def supervise(
    context: typer.Context,
    command: Command,
    *,
    run: Run,
    nproc: Nproc,
    min_nproc: MinNproc = None,
    nnodes: Nnodes = 1,
    min_nnodes: MinNnodes = None,
    node: Node = None,
    address: Address = None,
    join: Join = "30s",
    silence: Silence = "6s",
    tries: Tries = 2,
    max_restarts: MaxRestarts = 3,
    grow_after: GrowAfter = "10min",
    grace: Grace = "60s",
    deadline: Deadline = None,
    drain: Drain = False,
    as_json: Json = False,
) -> int:
    """Run a training job, and start it again from its newest checkpoint when a rank dies or hangs.

    Each rank is a process of COMMAND, for which `jaxckpt.initialize()` or `torchckpt.initialize()` sets the framework up. A slot
    whose ranks keep failing is left out, as long as --min-nproc remain. SIGTERM makes the job save and end. Exit status 0 if
    the job has finished, 1 if it made no progress, 3 if the store failed for too long, 6 if another job has the run, 143 after
    SIGTERM.
    """
    asked = Asked()
    given = settings(context)
    _check_found(command[0])
    policy = Policy(
        nproc=nproc,
        min_nproc=nproc if min_nproc is None else min_nproc,
        tries=tries,
        max_restarts=max_restarts,
        grow_after=seconds(grow_after, what="--grow-after"),
    )
    of_nodes = NodesPolicy(each=policy, nnodes=nnodes, min_nnodes=nnodes if min_nnodes is None else min_nnodes)
    shared: dict[str, Any] = {
        "store": given.store(run),
        "storage": given.storage,
        "command": command,
        "limits": Limits(deadlines=_deadlines(deadline or []), grace=seconds(grace, what="--grace"), drain=drain),
        "engine": ElasticEngine(apart=as_json),
        "listener": _as_json if as_json else _for_people,
        "asked": asked,
    }
    here = {"node": _named(node), "host": address or own_host(), "waits": _waits(join, silence)}
    job = SuperviseNodes(policy=of_nodes, **here, **shared) if nnodes > 1 else Supervise(policy=policy, **shared)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it warns of is told by ours
    with _signals(asked):
        return _status(job.run())


def _check_found(program: str) -> None:
    """Refuse at once what no rank could execute: starting it again would not help."""
    if shutil.which(program) is None:
        where = "there is no such file that may be executed" if "/" in program else "it is in no folder of PATH"
        raise CallError(f"the command {program!r} cannot be run: {where}")


def _named(node: str | None) -> str:
    """This node's name, which records have to hold."""
    name = node or socket.gethostname()
    if len(name) > LONGEST:
        raise CallError(f"--node {name[:20]}…: {len(name)} characters; expected {LONGEST} at most")
    return name


def _deadlines(given: Sequence[str]) -> Deadlines:
    pairs = [each.partition("=") for each in given]
    wrong = next((text for text, (phase, _, _) in zip(given, pairs, strict=True) if phase not in _PHASES), None)
    if wrong is not None:
        raise CallError(f"--deadline {wrong!r}: expected PHASE=SPAN, such as train=10min; phases are {', '.join(_PHASES)}")
    return Deadlines(**{phase: seconds(span, what=f"--deadline {phase}") for phase, _, span in pairs})


def _waits(join: str, silence: str) -> Waits:
    waits = Waits(join=seconds(join, what="--join"), silence=seconds(silence, what="--silence"))
    if waits.silence < 2 * TICK:
        raise CallError(f"--silence {silence}: expected {2 * TICK:g}s at least: a sign of life comes every {TICK:g}s")
    return waits


@contextmanager
def _signals(asked: Asked) -> Iterator[None]:
    """Let signals that end a process ask for an end. One that is ignored (`nohup`) stays so."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, asked.take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(result: Result) -> Status:
    if result.reason == "preempted":
        return Status.INTERRUPTED if result.signal == signal.SIGINT else Status.PREEMPTED
    return {"finished": Status.DONE, "superseded": Status.PROTOCOL, "no-progress": Status.NEGATIVE}[result.reason]


def _as_json(told: Told) -> None:
    record = Supervised(**msgspec.structs.asdict(told))
    _print(sys.stdout, msgspec.json.encode(record) + b"\n")


def _for_people(told: Told) -> None:
    lines = [told.message, *(f"  {each}" for each in told.details)]
    text = "".join(f"ckpt: {told.at[11:19]}Z {plain(line)}\n" for line in lines)
    _print(sys.stderr, text.encode(errors="backslashreplace"))


def _print(stream: TextIO, data: bytes) -> None:
    """The job goes on when nobody reads what is told of it."""
    with suppress(OSError):
        write(stream.fileno(), data)
