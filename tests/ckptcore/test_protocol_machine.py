"""The protocol as a state machine: jobs save, die, start again, wake up late, roll back, quarantine and collect.

After every step the invariants of the protocol are checked from the store alone.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from ckptcore import names, notes
from ckptcore.clock import Clock
from ckptcore.errors import Damaged, Superseded
from ckptcore.history import History
from ckptcore.incarnations import undecided
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.operate.recovery import recover
from ckptcore.retention import Collector
from ckptcore.saving import Saving
from ckptcore.store import Store
from tests.ckptcore.failing import Died, DyingStore
from tests.ckptcore.support import FakeClock, Job, check_commits, file_store, memory_directory, restored_step

pytestmark = pytest.mark.slow

MOMENTS = st.integers(1, 40)


class Protocol(RuleBasedStateMachine):
    """`unfinished` are complete saves whose coordinator stalls before it decides: it may wake up at any time."""

    unfinished = Bundle("unfinished")

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.directory = self.stack.enter_context(memory_directory())
        self.store = file_store(self.directory / "run")
        self.job: Job | None = None
        self.old: list[Job] = []
        self.decisive: dict[str, bytes] = {}
        self.seen: tuple[int, GenerationId | None] = (0, None)
        self.verified: set[GenerationId] = set()

    def teardown(self) -> None:
        """Once faults stop, a start decides everything and the next save commits."""
        try:
            self.start()
            self.save_whole()
            self.job_and_store()
            assert undecided(self.store) == []
            check_commits(self.store)
        finally:
            self.stack.close()

    def job_and_store(self) -> tuple[Job, Store]:
        assert self.job is not None
        return self.job, self.store

    def next_step(self) -> int:
        job, store = self.job_and_store()
        own = [g.step for g in History.load(store).generations if g.incarnation == job.number]
        pending = [g.step for g in undecided(store) if g.incarnation == job.number]
        base = job.latest.generation.step if job.latest else 0
        return max([base, *own, *pending]) + 1

    def give_up_job(self) -> None:
        if self.job is not None and self.job.incarnation is not None:
            self.old.append(self.job)
        self.job = None

    # Starting

    @initialize()
    def first_start(self) -> None:
        self.start()
        self.save_whole()

    @rule()
    def start(self) -> None:
        self.give_up_job()
        job = Job(self.store)
        try:
            job.open()
        except Damaged:
            # Everything is quarantined: a job must not silently begin anew. Somebody has to do something.
            assert History.load(self.store).head() is None
            self.begin_elsewhere()
            return
        self.job = job

    def begin_elsewhere(self) -> None:
        """Begin another run, since this one is at its end."""
        self.store = file_store(self.directory / f"run-{len([*self.directory.iterdir()])}")
        self.job, self.old, self.decisive, self.seen, self.verified = Job(self.store), [], {}, (0, None), set()
        self.job.open()

    @rule(moment=MOMENTS, torn=st.booleans())
    def start_and_die(self, *, moment: int, torn: bool) -> None:
        self.give_up_job()
        with suppress(Died, Damaged):
            Job(DyingStore(self.store, moment, torn=torn)).open()

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        history = History.load(self.store)
        usable = [d.generation for d in history.commits() if history.obstacle(d.generation) is None]
        if not usable:
            return
        chosen = data.draw(st.sampled_from(usable))
        self.give_up_job()
        self.job = Job(self.store)
        self.job.open(chosen)
        assert History.load(self.store).head() == self.job.latest
        assert self.job.latest is not None
        assert self.job.latest.generation == chosen

    # Saving

    @precondition(lambda self: self.job is not None)
    @rule()
    def save_whole(self) -> None:
        job, store = self.job_and_store()
        decided = job.save(self.next_step())
        assert decided.committed
        assert History.load(store).head() == decided

    @precondition(lambda self: self.job is not None)
    @rule(moment=MOMENTS, torn=st.booleans(), both=st.booleans())
    def save_and_die(self, *, moment: int, torn: bool, both: bool) -> None:
        """Rank 0 dies, or the whole job; what it has not decided by then, the next start does."""
        job, store = self.job_and_store()
        generation = job.next_generation(self.next_step())
        dying = DyingStore(store, moment, torn=torn)
        job.stores = {0: dying, 1: dying} if both else {0: dying}
        with suppress(Died):
            job.write(generation, 1)
            job.write(generation, 0)
            job.coordinator().commit(generation, 2, timeout=1.0)
        job.stores = {}
        self.give_up_job()

    @precondition(lambda self: self.job is not None)
    @rule(moment=MOMENTS)
    def save_while_rank_1_dies(self, moment: int) -> None:
        job, store = self.job_and_store()
        generation = job.next_generation(self.next_step())
        job.stores = {1: DyingStore(store, moment)}
        with suppress(Died):
            job.write(generation, 1)
        job.stores = {}
        job.write(generation, 0)
        decided = job.coordinator().commit(generation, 2, timeout=1.0)
        if decided.committed:
            job.latest = decided

    @precondition(lambda self: self.job is not None)
    @rule(target=unfinished)
    def save_without_deciding(self) -> tuple[Store, Job, GenerationId]:
        job, store = self.job_and_store()
        generation = job.next_generation(self.next_step())
        job.write(generation, 1)
        job.write(generation, 0)
        return store, job, generation

    @rule(late=consumes(unfinished))
    def decide_late(self, late: tuple[Store, Job, GenerationId]) -> None:
        store, job, generation = late
        before = store.get(names.ledger_key(generation))
        superseded = store.size(names.claim_key(job.number + 1)) is not None
        try:
            decided = job.coordinator().conclude(generation)
        except Superseded:
            assert superseded
            return
        assert before is not None or (decided.committed and not superseded)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def save_superseded(self, data: st.DataObject) -> None:
        """An old job that still lives saves: it is told to stop, whatever its ranks got done."""
        job = data.draw(st.sampled_from(self.old))
        if self.store.size(names.claim_key(job.number + 1)) is None:
            return
        generation = job.next_generation(900)
        job.write(generation, 1)
        shard = job.shard(generation, 0)
        saving = Saving(store=self.store, shard=shard, timeout=1.0, keep=Keep(last=2), metrics=None, clock=FakeClock())
        with pytest.raises(Superseded):
            saving.run()

    # What else happens to a run

    @rule(moment=st.none() | MOMENTS, torn=st.booleans())
    def recover(self, *, moment: int | None, torn: bool) -> None:
        """Somebody finishes what is complete, beside a job that may live, and may be killed. Nothing is aborted by that."""
        before = set(undecided(self.store))
        with suppress(Died):
            recover(DyingStore(self.store, moment, torn=torn), apply=True, clock=FakeClock())
        history = History.load(self.store)
        found = {generation: history.decided(generation) for generation in before - set(undecided(self.store))}
        assert all(decided is not None and decided.committed for decided in found.values())
        for generation in found:
            assert self.store.size(names.claim_key(generation.incarnation + 1)) is None

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        history = History.load(self.store)
        known = [decided.generation for decided in history.commits()]
        if len(known) > 1:
            chosen = data.draw(st.sampled_from(known))
            notes.write(self.store, history.run.run_id, chosen, "quarantine", clock=Clock(), text="by the test")
            self.seen = (self.seen[0], None)

    @rule(data=st.data())
    def tag(self, data: st.DataObject) -> None:
        history = History.load(self.store)
        known = [decided.generation for decided in history.commits()]
        if known:
            notes.annotate(self.store, history.run.run_id, data.draw(st.sampled_from(known)), clock=Clock(), tags=["good"])

    @rule(last=st.integers(2, 3), moment=st.none() | MOMENTS, torn=st.booleans(), who=st.sampled_from(["job", "old", "nobody"]))
    def collect(self, *, last: int, moment: int | None, torn: bool, who: str) -> None:
        number = None
        if who == "job" and self.job is not None:
            number = self.job.number
        if who == "old" and self.old:
            number = self.old[-1].number
        head = History.load(self.store).head()
        with suppress(Died):
            Collector(DyingStore(self.store, moment, torn=torn), number, FakeClock()).collect(Keep(last=last))
        assert History.load(self.store).head() == head

    # What must hold

    @invariant()
    def decisive_records_never_change(self) -> None:
        for prefix in (names.LEDGER, names.INCARNATIONS):
            for key in self.store.list(prefix):
                data = self.store.get(key)
                assert data is not None
                assert self.decisive.setdefault(key, data) == data
        assert all(self.store.size(key) is not None for key in self.decisive)

    @invariant()
    def every_readable_commit_is_whole(self) -> None:
        for generation in check_commits(self.store) if self.store.get(names.RUN) else []:
            if generation not in self.verified:
                restored_step(self.store, generation, 2)
                self.verified.add(generation)

    @invariant()
    def the_head_goes_back_only_by_a_newer_base(self) -> None:
        if self.store.get(names.RUN) is None:
            return
        history = History.load(self.store)
        number = max((n for n, base in history.bases.items() if base is not None), default=0)
        decided = history.head()
        head = decided.generation if decided else None
        assert number >= self.seen[0]
        if number == self.seen[0] and self.seen[1] is not None:
            assert head is not None
            assert head >= self.seen[1]
        self.seen = (number, head)


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
