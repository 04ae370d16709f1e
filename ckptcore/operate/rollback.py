"""A rollback by hand: an incarnation whose base is a chosen commit, without a job (spec: head, "rollback")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ckptcore import records
from ckptcore.chosen import named
from ckptcore.clock import Clock
from ckptcore.errors import CheckpointError, DamageError, NotFound
from ckptcore.events import Listener
from ckptcore.history import History
from ckptcore.incarnations import Incarnation, Opening, newest_claimed, undecided
from ckptcore.inspect import proving
from ckptcore.inspect.proving import Verdict
from ckptcore.ledger import manifest_of
from ckptcore.names import GenerationId, claim_key
from ckptcore.probe import probe
from ckptcore.reader import Checkpoint
from ckptcore.records import StoreFacts
from ckptcore.store import Store
from ckptcore.storereads import record_bytes
from ckptcore.verify import check_whole

NO_JOB = records.Topology(framework="none", platform="none", participants=1, devices=0)
"""What a claim says that was made without a job."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rollback to `chosen` would do.

    `head`: the resume point now, None if there is none or if it is unknown, for the reason in `unknown`. `strays`: what
    would lie on no path from the resume point any more, newest first. `settles`: undecided generations that the claim has
    to decide. `claim`: the newest there is, which the rollback supersedes.
    """

    chosen: GenerationId
    head: GenerationId | None
    unknown: str
    strays: tuple[GenerationId, ...]
    settles: tuple[Verdict, ...]
    claim: records.Claim | None


def plan(store: Store, chosen: int | GenerationId) -> Plan:
    """What a rollback to a step or a generation would do. Writes nothing.

    Raises `NotFound`, `ForkRequired` or a `DamageError` where nobody could resume from it.
    """
    history = History.load(store)
    generation = _resumable(store, history, named(chosen, history))
    settles = tuple(proving.judge(store, history.run.run_id, each) for each in undecided(store))
    supposed = history.supposing(verdict.decided for verdict in settles if verdict.decided is not None)
    head, path, unknown = _path(supposed)
    kept = set(history.line(generation))
    strays = tuple(each for each in path if each not in kept and _counts(supposed, each))
    return Plan(chosen=generation, head=head, unknown=unknown, strays=strays, settles=settles, claim=_newest_claim(store))


def roll_back(
    store: Store,
    chosen: int | GenerationId,
    *,
    clock: Clock | None = None,
    on_event: Listener | None = None,
    probe: Callable[..., StoreFacts] = probe,
) -> Incarnation:
    """Claim an incarnation, settle what older ones left, and record the chosen commit as its base.

    A job that is running stops at its next save. Raises as `plan` does, before anything is claimed; and what an opening
    raises, with a note that the claim stands.
    """
    history = History.load(store)
    generation = _resumable(store, history, named(chosen, history))
    opening = Opening(store, NO_JOB, probe(store, single_writer=False), clock or Clock(), on_event)
    try:
        return opening.open(
            opening.identify(expected=history.run.run_id),
            choose=partial(named, generation),
            check=lambda decided: check_whole(Checkpoint(store, decided)),
            guarantee=lambda _: None,
        )
    except CheckpointError as error:
        error.add_note("An incarnation may have been claimed: roll back again, or start the job.")
        raise


def _resumable(store: Store, history: History, generation: GenerationId) -> GenerationId:
    obstacle, decided = history.obstacle(generation), history.decided(generation)
    if obstacle is not None or decided is None:
        raise NotFound(f"generation {generation} cannot be resumed from: {obstacle}")
    check_whole(Checkpoint(store, decided))
    return generation


def _path(history: History) -> tuple[GenerationId | None, list[GenerationId], str]:
    """The head, all that lies on the path from it, and why neither is known."""
    try:
        head = history.head()
        return (head.generation if head else None), list(history.lineage()), ""
    except DamageError as error:
        return None, [], str(error)


def _counts(history: History, generation: GenerationId) -> bool:
    """Whether it would be missed: a commit to resume from, which retention has not given up."""
    decided = history.decided(generation)
    if decided is None or not decided.committed or history.generations[generation]:
        return False
    return manifest_of(decided).guarantee.level != "weights"


def _newest_claim(store: Store) -> records.Claim | None:
    number = newest_claimed(store)
    data = record_bytes(store, claim_key(number)) if number else None
    return None if data is None else records.decode(data, records.Claim, key=claim_key(number))
