"""Resuming: open a run for writing and restore its base, on all ranks or on none (spec: opening, hand-over)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from ckptcore import forks, guarantees, notes, records, restore, wants
from ckptcore.backend import Backend, Target
from ckptcore.channel import Channel
from ckptcore.chosen import named
from ckptcore.clock import Clock
from ckptcore.errors import CallError, CheckpointError, DamageError, ForkRequired, NotFound, StoreError
from ckptcore.events import Event, Listener, log, shorten, tell
from ckptcore.finishing import Finishing
from ckptcore.formats.foreign import Start
from ckptcore.history import History
from ckptcore.incarnations import Incarnation, Opening, check_current, undecided
from ckptcore.ledger import Decided, manifest_of
from ckptcore.match import Elsewhere, Rules
from ckptcore.names import GenerationId
from ckptcore.nodes import Local, nearby
from ckptcore.probe import probe
from ckptcore.proof import show_ranks
from ckptcore.reader import Checkpoint
from ckptcore.records import Level, Manifest, StoreFacts
from ckptcore.session import Session, is_damage, open_session, together, together_telling
from ckptcore.sharing import Sharing
from ckptcore.store import Storage, Store
from ckptcore.verify import check_whole

T = TypeVar("T")
AGREEMENT_TIMEOUT = 3600.0
"""Seconds that ranks wait for each other's restore: the slowest may read for long."""

_CONVERSIONS = MappingProxyType({("jax", "torch"): "flax_to_torch", ("torch", "jax"): "torch_to_flax"})
"""By the framework that saved and the one that restores."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One restore as the caller asked for it.

    `components` limits it; `chosen` is a step or a generation, None for the head; `accept` is the weakest guarantee the
    caller puts up with; `remap` gives the old rank whose rank-scoped state each new rank takes. Raises `CallError` for an
    `accept` that is no guarantee.
    """

    like: Mapping[str, Any] | None = None
    components: tuple[str, ...] | None = None
    chosen: int | GenerationId | None = None
    rules: Rules = field(default_factory=Rules)
    accept: Level | None = None
    remap: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        if self.accept is not None:
            guarantees.strength(self.accept)
        if self.remap is not None and not isinstance(self.remap, Mapping):
            raise CallError(f"remap={self.remap!r}: expected a mapping from each new rank to the old one whose state it takes")


@dataclass(frozen=True)
class Resumed:
    """The base an incarnation starts from, and the components restored from it."""

    base: Decided
    components: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Resumer:
    """Opens a run, and restores it, for one rank of a job."""

    store: Store
    storage: Storage
    backend: Backend
    channel: Channel
    clock: Clock
    start_from: Start | None
    on_event: Listener | None
    run_id: str | None = None
    local: Local | None = None
    fetch_once: bool = False
    """Whether a chunk that several ranks want is read from the store by one of them (`ckptcore.sharing`)."""
    probe: Callable[..., StoreFacts] = probe
    """How the store is probed: it takes threads, which a simulation does without."""

    def open_fresh(self) -> Session:
        """Open a run that has nothing to resume from. Raises `CallError` when it has."""
        told = self.channel.gather(self._where(), timeout=AGREEMENT_TIMEOUT, what="how the run is opened")
        _of_one_request(self.channel.rank, told)
        self._finish_uploads()
        return open_session(self.store, self.channel, partial(self._claim, None, None))

    def _where(self) -> bytes:
        """What every rank has to say alike of where data goes."""
        return f"local={self._kept()}\n".encode()

    def _kept(self) -> str | None:
        if self.local is None:
            return None
        return f"given, copies={self.local.copies}" if self.local.copies else "given"

    def _finish_uploads(self) -> None:
        if self.local is not None:
            told = {"channel": self.channel, "clock": self.clock, "on_event": self.on_event}
            Finishing(store=self.store, local=self.local, **told).run()

    def resume(self, request: Request) -> tuple[Session, Resumed | None]:
        """Open the run and restore its base; None for the second when there is nothing to restore.

        When any rank meets damage, every rank leaves that checkpoint: the run is opened again and the next one tried.
        """
        target, told = together_telling(
            self.channel,
            partial(self._target, request),
            partial(self._tell, request),
            timeout=AGREEMENT_TIMEOUT,
            what="what to restore into",
        )
        told = _of_one_request(self.channel.rank, told)
        elsewhere: Sequence[Elsewhere] = ()
        if target is not None:
            found = wants.gather(self.channel, target, told)
            target, elsewhere = replace(target, meshes=found.meshes), found.elsewhere
        self._finish_uploads()
        claim = partial(self._claim, request, target)
        while True:
            session = open_session(self.store, self.channel, claim)
            read = partial(self._read, session, target, request, elsewhere)
            try:
                found = self.restoring(read, what="whether every rank has restored")
            except DamageError as failure:
                left = session.incarnation.base_generation
                if left is None or request.chosen is not None or not is_damage(failure):
                    raise
                tell(self.on_event, Event("fallen-back", self.channel.rank, left, f"every rank leaves it: {failure}"))
                claim = partial(self._claim, request, target, (session.incarnation, failure))
            else:
                return session, None if found is None else self._placed(target, found)

    def restoring(self, read: Callable[[Sharing | None], T], *, what: str) -> T:
        """As `together`, with chunks passed on between the ranks until all of them have ended, if this job does that."""
        if not self.fetch_once or self.channel.size == 1:
            return together(self.channel, partial(read, None), timeout=AGREEMENT_TIMEOUT, what=what)
        with Sharing(self.channel, self.store.limits, timeout=AGREEMENT_TIMEOUT) as sharing:
            return together(self.channel, partial(sharing.during, read), timeout=AGREEMENT_TIMEOUT, what=what)

    def _tell(self, request: Request, target: Target | None) -> bytes:
        also = {"local": self._kept(), "fetch_once": self.fetch_once}
        asked = repr(_asked(request) | also).encode()
        return asked + b"\n" + (b"" if target is None else wants.tell(target))

    def _target(self, request: Request) -> Target | None:
        if request.like is None:
            return None
        absent = [name for name in request.components or () if name not in request.like]
        if absent:
            raise CallError(f"components names {absent[0]!r}, which `like` lacks; it has {sorted(request.like)}")
        return self.backend.target(request.like, request.components or request.like)

    def _read(
        self,
        session: Session,
        target: Target | None,
        request: Request,
        elsewhere: Sequence[Elsewhere],
        sharing: Sharing | None,
    ) -> Resumed | None:
        """What the base holds for this rank, not placed yet; None without a base."""
        base = session.base()
        if base is None:
            return None
        found = partial(self._found, target=target, request=request, elsewhere=elsewhere)
        if self.local is not None:
            try:
                near = nearby(self.store, self.local, session.run_id, base.generation, self.clock)
                if near is not None:
                    return Resumed(base, found(Checkpoint(near, base, sharing)))
            except (DamageError, StoreError) as error:  # of the copy; the store has the checkpoint itself
                log.warning("what the node has of %s is passed over: %s", base.generation, shorten(error))
        return Resumed(base, found(Checkpoint(self.store, base, sharing)))

    def _found(
        self, checkpoint: Checkpoint, *, target: Target | None, request: Request, elsewhere: Sequence[Elsewhere]
    ) -> Mapping[str, Any]:
        ranks = self._ranks(checkpoint.manifest, request)
        if target is not None:
            return restore.find(checkpoint, target, rules=request.rules, ranks=ranks, elsewhere=elsewhere)
        return restore.host(checkpoint, _wanted(checkpoint.manifest, None, request), rules=request.rules, ranks=ranks)

    def _placed(self, target: Target | None, found: Resumed) -> Resumed:
        """What was found, in its place, on every rank."""
        if target is None:
            return found
        place = partial(target.place, found.components)
        placed = together(self.channel, place, timeout=AGREEMENT_TIMEOUT, what="whether every rank could use what it restored")
        return Resumed(found.base, placed)

    def _ranks(self, manifest: Manifest, request: Request) -> dict[str, int | None]:
        """Whose copy of each rank-scoped component this rank takes; None where it has to do without."""
        rank, before = self.channel.rank, manifest.topology.participants
        source: int | None = rank if before == self.channel.size else None
        if request.remap is not None:
            _check_remap(request.remap, before, self.channel.size)
            source = request.remap[rank]
        return {name: source for name, entry in manifest.components.items() if entry.scope == "rank"}

    def _keepable(self, decided: Decided, target: Target | None, request: Request | None) -> Level:
        """The guarantee that this restore can keep. Raises unless it is the saved one or the caller accepts it."""
        if request is None:
            raise CallError(
                f"run {self.store.url} has checkpoints (the resume point is {decided.generation}), but this job has restored"
                " none: call restore_or_init() first, or use a new URL"
            )
        manifest = manifest_of(decided)
        ranks = self._ranks(manifest, request)
        wanted = _wanted(manifest, target, request)
        restored = [name for name in wanted if ranks.get(name, 0) is not None]
        topology = self.backend.topology(target.meshes if target else ())
        level, reasons = guarantees.keepable(
            manifest.guarantee,
            manifest.topology,
            topology,
            manifest.components,
            restored,
            remapped=request.remap is not None,
            altered=[
                *request.rules.alterations(),
                *guarantees.version_differences(manifest.versions, self.backend.versions(), self.backend.computing),
            ],
            sourceless=[name for name in wanted if name not in restored],
        )
        advice = _advice(manifest.topology.framework, topology.framework, request.rules)
        if level == "weights":
            raise ForkRequired(
                f"{advice}this would restore no more than the weights, and that is a new run, not a continuation: "
                + "; ".join(reasons)
                + f". Start a new run with Checkpointer(new_url, start_from={self.store.url!r}), or open_run(...).fork(new_url)."
            )
        return guarantees.accept(level, manifest.guarantee, request.accept, reasons=reasons, advice=advice)

    def _refuse_early(self, head: Decided, target: Target | None, request: Request | None) -> None:
        """Refuse a restore that cannot be kept before the claim, which would stop a job that is running."""
        try:
            self._keepable(head, target, request)
        except CallError:
            try:
                check_whole(Checkpoint(self.store, head))
            except DamageError:
                return  # what was refused is not what was saved: the opening falls back
            raise

    def _claim(
        self, request: Request | None, target: Target | None, left: tuple[Incarnation, CheckpointError] | None = None
    ) -> Incarnation:
        """Rank 0's part of opening. `left` is whose base the ranks could not restore, and why: it is marked as damaged.

        Unless another job has claimed since: retention goes by that one's base, and this job must stop.
        """
        chosen = request.chosen if request else None
        facts = self.probe(self.store, single_writer=self.storage.single_writer)
        opening = Opening(self.store, self.backend.topology(()), facts, self.clock, self.on_event)
        run = opening.identify(forks.source(self.start_from, self.store, self.storage, self.clock), expected=self.run_id)
        history = History(self.store, run)
        if left is not None:
            self._mark(run, *left)
        else:
            expected = self._expected(history, chosen)
            if expected is not None:
                self._refuse_early(expected, target, request)
        incarnation = opening.open(
            run,
            choose=None if chosen is None else partial(named, chosen),
            check=lambda decided: check_whole(Checkpoint(self.store, decided)),
            guarantee=lambda decided: self._keepable(decided, target, request),
            known=history,
        )
        message = f"incarnation {incarnation.number}, base: {incarnation.base.reason}"
        tell(self.on_event, Event("opened", 0, incarnation.base_generation, message))
        return incarnation

    def _expected(self, history: History, chosen: int | GenerationId | None) -> Decided | None:
        """What this opening would start from, as far as that is known before the claim, which stops a job that is running.

        Raises for a checkpoint that nobody can go back to. One that is not decided yet is left to the settle.
        """
        history.refresh()
        if chosen is None:
            return history.head()
        if any(chosen in (generation, generation.step) for generation in undecided(self.store)):
            return None
        generation = named(chosen, history)
        obstacle = history.obstacle(generation)
        if obstacle is not None:
            raise NotFound(f"generation {generation} cannot be resumed from: {obstacle}")
        return history.decided(generation)

    def _mark(self, run: records.Run, left: Incarnation, failure: CheckpointError) -> None:
        check_current(self.store, left.number)
        if left.base_generation is not None:
            text = records.clip(str(failure))
            notes.write(self.store, run.run_id, left.base_generation, "damaged", clock=self.clock, text=text)


def _asked(request: Request) -> dict[str, Any]:
    """What every rank has to ask for alike: rank 0 chooses the checkpoint and judges the guarantee for all of them."""
    rules, remap = request.rules, None if request.remap is None else sorted(request.remap.items(), key=repr)
    return {
        "like": None if request.like is None else "given",
        "chosen": None if request.chosen is None else str(request.chosen),
        "components": request.components,
        "cast": rules.cast,
        "missing": rules.missing,
        "extra": rules.extra,
        "accept_guarantee": request.accept,
        "remap": remap,
    }


def _of_one_request(rank: int, told: Sequence[bytes]) -> list[bytes]:
    """What the ranks say of their targets. Raises `CallError` on every rank unless all of them ask for the same."""
    split = [message.partition(b"\n") for message in told]
    for other, (asked, _, _) in enumerate(split):
        if asked != split[rank][0]:
            raise CallError(
                f"rank {rank} restores with {split[rank][0].decode()[:500]}, rank {other} with {asked.decode()[:500]}:"
                " all ranks have to call restore alike"
            )
    return [wanted for _, _, wanted in split]


def _wanted(manifest: Manifest, target: Target | None, request: Request) -> list[str]:
    """The checkpoint's components that a restore reads, by the checkpoint's names."""
    if target is None:
        return list(request.components or manifest.components)
    framework = manifest.topology.framework
    return list(dict.fromkeys(name for leaf in target.wanted for name in request.rules.sources(leaf.name, framework)))


def _advice(saved: str, framework: str, rules: Rules) -> str:
    """The first thing to say about a restore that is refused: that a checkpoint of another framework can be converted."""
    conversion = _CONVERSIONS.get((saved, framework))
    if conversion is None or (rules.convert is not None and rules.convert.source == saved):
        return ""
    how = f"convert=ckptcore.convert.{conversion}(...) reads it in {framework}"
    return f"this checkpoint was written by {saved!r}: {how}. As this restore was called: "


def _check_remap(remap: Mapping[int, int], before: int, now: int) -> None:
    """Refuse a `remap` that leaves a rank without state: what a restore keeps is said for all ranks by one of them."""
    lacking, unknown = [rank for rank in range(now) if rank not in remap], [rank for rank in remap if rank not in range(now)]
    foreign = sorted({str(old) for old in remap.values() if type(old) is not int or old not in range(before)})
    problems = {
        f"it has no entry for {show_ranks(lacking)} of {now}": lacking,
        f"this job has no rank {', '.join(map(str, unknown))}": unknown,
        f"the checkpoint, of {before} ranks, has no rank {', '.join(foreign)}": foreign,
    }
    found = [problem for problem, ranks in problems.items() if ranks]
    if found:
        raise CallError("remap={new rank: old rank} needs every rank of this job: " + "; ".join(found))
