"""A training job: its ranks, each with a background half, and the supervisor that starts it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptcore import notes, records, snapshot
from ckptcore.coordinator import Coordinator
from ckptcore.errors import (
    CallError,
    CheckpointError,
    CommitUnknown,
    DamageError,
    DeadlineExceeded,
    ForkRequired,
    NotFound,
    Retired,
    SaveAborted,
    SaveFailed,
    StoreError,
    Superseded,
)
from ckptcore.keep import Keep
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.resuming import Request, Resumer
from ckptcore.saving import Saving, give_up
from ckptcore.session import Session
from ckptcore.store import Storage
from ckptcore.union import Exchange
from ckptcore.writer import Identity, Shard
from simulation.channel import Hub, HubChannel
from simulation.scheduler import Process, Task
from simulation.state import DERIVED, FROZEN, PlainBackend, state
from simulation.violation import Violation
from simulation.world import World

FACTS = records.StoreFacts(driver="file", put_if_absent=True, read_after_write=True, list_after_write=True)
LIMITS = snapshot.Limits(chunk_bytes=1 << 20)


@dataclass(frozen=True, kw_only=True)
class Start:
    """One launch of a job, the same for every rank.

    `rollback`: go on from the newest checkpoint of this step. `fragile`: end at the first save that fails.
    `weights`: every so many saves one of weights only. `frozen`: there is a component that saves refer to.
    """

    size: int
    saves: int
    timeout: float = 30.0
    keep: int | None = 2
    rollback: int | None = None
    fragile: bool = False
    weights: int = 0
    frozen: bool = False
    arrays: bool = False
    pace: float = 5.0
    final: bool = False


class Launch:
    """The processes of one launch."""

    def __init__(self, world: World, name: str, start: Start) -> None:
        self.world, self.name, self.start = world, name, start
        hub = Hub(world.scheduler, start.size)
        self.ranks = [Rank(self, HubChannel(hub, rank), world.process(f"{name}r{rank}", "rank")) for rank in range(start.size)]

    def begin(self) -> None:
        """Start all ranks."""
        for rank in self.ranks:
            rank.process.spawn("", rank.run)

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return all(rank.process.over for rank in self.ranks)

    @property
    def broken(self) -> bool:
        """Whether a rank has ended before its time."""
        return any(rank.process.over and not rank.finished for rank in self.ranks)

    @property
    def superseded(self) -> bool:
        """Whether a rank has been told that another job has taken over."""
        return any(isinstance(rank.error, Superseded) for rank in self.ranks)

    def kill(self) -> None:
        """Kill all ranks."""
        for rank in self.ranks:
            rank.process.kill()


class Rank:
    """One rank: what `Checkpointer` does with the same parts, over a virtual clock and greenlets in place of threads."""

    def __init__(self, launch: Launch, channel: HubChannel, process: Process) -> None:
        self.launch, self.channel, self.process = launch, channel, process
        world = launch.world
        self.judge, self.scheduler = world.judge, world.scheduler
        self.clock, self.store = world.clock(), world.store(process)
        self.backend = PlainBackend(channel)
        self.finished = False
        self.error: BaseException | None = None
        self.session: Session | None = None
        self.latest: Decided | None = None
        self.step, self.untidy = 0, True
        self.saving: Task | None = None
        self.attempts: dict[int, int] = {}

    def run(self) -> None:
        """Open, restore, and save as often as the launch says."""
        if not self._open():
            return
        start = self.launch.start
        for number in range(1, start.saves + 1):
            self.clock.sleep(start.pace * self.scheduler.chance.random())
            again = number % 4 == 3 and start.saves > 3  # the same step once more: another attempt
            self.step += 0 if again else 10
            if self.launch.world.quiet and not start.final:
                break
            self._save(number)
            if self.error is not None and (start.fragile or isinstance(self.error, Superseded)):
                return
        self._wait()
        self.finished = self.error is None

    def _open(self) -> bool:
        resumer = Resumer(
            store=self.store,
            storage=Storage(),
            backend=self.backend,
            channel=self.channel,
            clock=self.clock,
            start_from=None,
            on_event=None,
            probe=lambda *_, **__: FACTS,
        )
        try:
            self.session, resumed = resumer.resume(Request(chosen=self.launch.start.rollback, accept="replay"))
        except CheckpointError as error:
            self.error = error
            self._check_opening(error)
            return False
        incarnation = self.session.incarnation
        self.process.incarnation = incarnation.number
        if self.channel.rank == 0:
            self.judge.opened(incarnation.number, incarnation.base_generation)
        if resumed is not None:
            self.latest, self.step = resumed.base, resumed.base.generation.step
            self.judge.restored("a rank", resumed.base.generation, resumed.components)
        return True

    def _check_opening(self, error: CheckpointError) -> None:
        """Only what is documented may stop a start, and damage only where nothing can be resumed from."""
        chosen = self.launch.start.rollback is not None
        if isinstance(error, (StoreError, DeadlineExceeded, CommitUnknown)):
            return
        if isinstance(error, Superseded):
            return
        if chosen and isinstance(error, (NotFound, ForkRequired, Retired, DamageError)):
            return
        if isinstance(error, DamageError) and self.judge.oracle.marked:
            return
        raise Violation("errors", f"{self.process.name} cannot start: {type(error).__name__}: {error}") from error

    def _save(self, number: int) -> None:
        self._wait()
        if isinstance(self.error, Superseded):
            return
        self.attempts[self.step] = self.attempts.get(self.step, 0) + 1
        session = self._opened()
        generation = GenerationId(session.incarnation.number, self.step, self.attempts[self.step])
        began = self.judge.order
        try:
            shard = self._take(session, generation, number)
        except CheckpointError as error:
            self.error = error
            if not isinstance(error, (CallError, StoreError)):
                raise
            return
        saving = Saving(
            store=self.store,
            shard=shard,
            timeout=self.launch.start.timeout,
            keep=None if self.launch.start.keep is None else Keep(last=self.launch.start.keep),
            metrics={"loss": 1.0} if number % 3 == 1 else None,
            tidy=self.untidy,
            clock=self.clock,
        )
        self.untidy = True
        self.saving = self.process.spawn(f"save{number}", partial(self._background, saving, generation, began))

    def _take(self, session: Session, generation: GenerationId, number: int) -> Shard:
        start = self.launch.start
        identity = Identity(
            run_id=session.run_id,
            generation=generation,
            claim=session.incarnation.claim.nonce,
            participants=self.channel.size,
            rank=self.channel.rank,
        )
        unchanged = self._unchanged(number)
        frozen = start.frozen and not unchanged
        order = snapshot.Order(
            components=state(generation, self.channel.rank, arrays=start.arrays, frozen=frozen),
            derived=DERIVED,
            guarantee="weights" if start.weights and number % start.weights == 0 else None,
            require=None,
            metadata=None,
            metrics={},
            unchanged=unchanged,
            latest=self.latest,
            remapped=False,
            obstacle=lambda generation: notes.obstacle(self.store, session.run_id, generation),
            clock=self.clock,
        )
        try:
            return snapshot.take(self.backend, identity, order, Exchange(self.channel), LIMITS)
        except Exception as error:
            self.untidy = True
            coordinator = Coordinator(self.store, session.run_id, generation.incarnation, self.clock)
            give_up(coordinator, identity, error)
            raise

    def _unchanged(self, number: int) -> tuple[str, ...]:
        before: Mapping[str, Any] = manifest_of(self.latest).components if self.latest is not None else {}
        return (FROZEN,) if self.launch.start.frozen and number % 3 != 1 and FROZEN in before else ()

    def _background(self, saving: Saving, generation: GenerationId, began: int) -> None:
        try:
            decided = saving.run()
        except SaveAborted as error:
            self.judge.aborted(self.process, generation)
            self.error = error
        except SaveFailed as error:
            self.judge.failed(self.process, generation)
            self.error = error
        except Superseded as error:
            self.judge.superseded(self.process, generation.incarnation)
            self.error = error
        except CommitUnknown as error:
            self.error = error
        else:
            self.judge.acknowledged(self.process, decided, began)
            self.error, self.untidy = None, False
            if manifest_of(decided).guarantee.level != "weights":
                self.latest = decided

    def _wait(self) -> None:
        saving = self.saving
        if saving is not None:
            self.scheduler.wait(lambda: saving.ended, f"{saving.name}")

    def _opened(self) -> Session:
        if self.session is None:
            raise CallError("not open")
        return self.session


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job and how its supervisor treats it: when it starts, its launches, and how long one may take."""

    name: str
    begins: float
    launches: tuple[Start, ...]
    patience: float
    mercy: float
    """How likely the supervisor leaves what still runs of a launch alone: then it is a zombie."""


def supervise(world: World, plan: JobPlan, process: Process) -> None:
    """Start the launches one after the other, the next when one has ended, is broken, or takes too long."""
    clock, chance = world.clock(), world.chance
    clock.sleep(plan.begins)
    for number, start in enumerate(plan.launches):
        if world.quiet:
            return
        launch = Launch(world, f"{plan.name}{number}", start)
        world.service.note(process.name, "launch", launch.name, f"{start}")
        launch.begin()
        deadline = clock.monotonic() + plan.patience
        while not launch.over and clock.monotonic() < deadline and not launch.broken:
            clock.sleep(plan.patience / 20)
        if not launch.over:
            clock.sleep(10.0 * chance.random())
            if chance.random() >= plan.mercy:
                world.service.note(process.name, "kill", launch.name)
                launch.kill()
        clock.sleep(3.0 * chance.random())
        if launch.superseded and chance.random() < 0.7:
            return
