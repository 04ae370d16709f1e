"""A process dies, or the store gives no answer, at every single operation: what the next start finds.

Every case starts from a copy of a prepared run. "Every operation" is meant literally: the point of failure moves on
until the whole procedure runs through without meeting it.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ckptcore import ledger, names, retention
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CheckpointError, CommitUnknown, SaveAborted, SaveFailed, StoreFull, StoreUnavailable, Superseded
from ckptcore.filestore import FileStore
from ckptcore.history import History
from ckptcore.incarnations import undecided
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.saving import Saving
from ckptcore.store import Store
from ckptcore.verify import verify
from tests.ckptcore.failing import Died, DyingStore, FaultyStore
from tests.ckptcore.support import FakeClock, Job, check_commits, file_store, restored_step

pytestmark = pytest.mark.slow

MOST = 400
"""More operations than any procedure here has: a test that gets there has lost its end."""


def die_everywhere(template: Path, case: Callable[[FileStore, DyingStore], None]) -> None:
    """Run `case` on copies of the run in `template`, its process dying before each of its changes, and then not at all."""
    last = ""
    for at, torn in itertools.product(range(1, MOST), (False, True)):
        if torn and last not in DyingStore.TORN:
            continue
        with copy_of(template) as store:
            dying = DyingStore(store, at, torn=torn)
            case(store, dying)
            last = dying.last
            if not dying.dead:
                return
    pytest.fail("the procedure never ran through")


def fail_everywhere(
    template: Path, fault: Callable[[], BaseException], case: Callable[[FileStore, FaultyStore], None], prefix: str = ""
) -> None:
    """Run `case` on copies of the run in `template`, each operation below `prefix` failing once, changes also after the fact."""
    was_change = False
    for at, after in itertools.product(range(1, MOST), (False, True)):
        if after and not was_change:
            continue
        with copy_of(template) as store:
            faulty = NthFault(store, at, prefix, fault, after=after)
            case(store, faulty)
            was_change = faulty.operation in DyingStore.CHANGES
            if not faulty.hits:
                return
    pytest.fail("the procedure never ran through")


class NthFault(FaultyStore):
    """Operation number `at` below `prefix` fails."""

    def __init__(self, inner: Store, at: int, prefix: str, fault: Callable[[], BaseException], *, after: bool) -> None:
        numbers = itertools.count(1)
        self.operation = ""

        def matches(operation: str, key: str) -> bool:
            hit = key.startswith(prefix) and next(numbers) == at
            self.operation = operation if hit else self.operation
            return hit

        super().__init__(inner, matches, fault, after=after)


@contextmanager
def copy_of(template: Path) -> Iterator[FileStore]:
    """The store of a copy of a run that is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=template.parent) as directory:
        copy = Path(directory) / "run"
        shutil.copytree(template, copy)
        yield file_store(copy)


def after_restart(store: Store, size: int = 2) -> GenerationId | None:
    """Start the job again, as it is after any fault; check all that must hold, and return the base."""
    job = Job(store, size)
    base = job.open().base_generation
    if base is not None:
        restored_step(store, base, size)
    assert all(generation.incarnation >= job.number for generation in undecided(store))
    step = base.step + 10 if base else 10
    saved = job.save(step)
    assert saved.committed
    assert check_commits(store)[0] == saved.generation
    return base


def save(job: Job, step: int) -> None:
    """A save whose ranks may die on the way. Rank 1 writes first."""
    generation = job.next_generation(step)
    for rank in (1, 0):
        try:
            job.write(generation, rank)
        except Died:
            if rank == 0:
                raise
    job.coordinator().commit(generation, job.size, timeout=5.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_dies_at_every_change_of_a_save(place: Path, rank: int) -> None:
    template = Job(file_store(place / "template"))
    run = template.open().run
    assert template.save(10).committed
    bases = set()

    def case(store: FileStore, dying: DyingStore) -> None:
        job = dataclasses.replace(template, store=store, stores={rank: dying}, attempts={})
        generation = GenerationId(1, 20, 1)
        with suppress(Died):
            save(job, 20)
        complete = all(store.size(names.receipt_key(generation, other)) is not None for other in range(2))
        decided = ledger.read(store, run.run_id, generation)
        base = after_restart(store)
        assert base is not None
        assert base.step == (20 if complete and (decided is None or decided.committed) else 10), dying.last
        bases.add(base.step)

    die_everywhere(place / "template", case)
    assert bases == {10, 20}


def unsettled(place: Path) -> Path:
    """A run whose job died with one save that is complete, and one that is not, both undecided."""
    job = Job(file_store(place / "template"))
    job.open()
    job.save(10)
    complete = job.next_generation(20)
    job.write(complete, 1)
    job.write(complete, 0)
    job.write(job.next_generation(30), 0)
    return place / "template"


def test_a_start_dies_at_every_change_of_its_settling(place: Path) -> None:
    def case(store: FileStore, dying: DyingStore) -> None:
        with suppress(Died):
            Job(dying).open()
        assert after_restart(store) == GenerationId(1, 20, 1)
        aborted = History.load(store).obstacle(GenerationId(1, 30, 1))
        assert aborted is not None
        assert "no receipt from rank 1 of 2" in aborted

    die_everywhere(unsettled(place), case)


def test_an_old_coordinator_wakes_up_at_every_point_of_a_settling(place: Path) -> None:
    """Whatever the successor has done, the old one commits nothing that the successor does not commit too."""
    template = unsettled(place)
    run = History.load(file_store(template)).run

    def case(store: FileStore, dying: DyingStore) -> None:
        with suppress(Died):
            Job(dying).open()
        zombie = Coordinator(store, run.run_id, incarnation=1, clock=FakeClock())
        for step in (20, 30):
            try:
                assert zombie.conclude(GenerationId(1, step, 1)).committed == (step == 20)
            except Superseded:
                assert store.size(names.claim_key(2)) is not None
        assert after_restart(store) == GenerationId(1, 20, 1)

    die_everywhere(template, case)


def full_of_garbage(place: Path) -> Path:
    """A run of two incarnations with seven commits, an aborted save with its data, and one left behind undecided."""
    store = file_store(place / "template")
    first = Job(store)
    first.open()
    for step in (10, 20, 30):
        first.save(step)
    second = Job(store)
    second.open()
    first.write(first.next_generation(40), 1)
    for step in (40, 50):
        second.save(step)
    second.write(second.next_generation(60), 0)
    second.coordinator().commit(GenerationId(2, 60, 1), 2, timeout=1.0)
    second.save(70)
    return place / "template"


def test_a_collection_dies_at_every_change(place: Path) -> None:
    kept = [GenerationId(2, 70, 1), GenerationId(2, 50, 1)]

    def case(store: FileStore, dying: DyingStore) -> None:
        with suppress(Died):
            retention.Collector(dying, 2).collect(Keep(last=2))
        assert set(check_commits(store)) >= set(kept)
        assert after_restart(store) == kept[0]
        retention.Collector(store, 3).collect(Keep(last=2))
        left = {GenerationId.parse(name) for name in store.children(names.GENERATIONS)}
        assert left == {GenerationId(3, 80, 1), kept[0]}
        assert check_commits(store) == [GenerationId(3, 80, 1), kept[0]]

    die_everywhere(full_of_garbage(place), case)


def saving(job: Job, store: Store, generation: GenerationId, rank: int) -> Saving:
    return Saving(store=store, shard=job.shard(generation, rank), timeout=1.0, keep=None, metrics=None, clock=FakeClock())


FAULTS: dict[str, Callable[[], BaseException]] = {
    "no answer": lambda: StoreUnavailable("injected: no answer"),
    "full": lambda: StoreFull("injected: no room"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_store_fails_once_at_every_operation_of_a_save(place: Path, fault: str) -> None:
    """The save commits, or raises a clear error; the next save of the same job works, and so does a restart."""
    template = Job(file_store(place / "template"))
    template.open()
    template.save(10)
    outcomes = set()

    def case(store: FileStore, faulty: FaultyStore) -> None:
        job = dataclasses.replace(template, store=store, attempts={}, clock=FakeClock())
        generation = job.next_generation(20)
        job.write(generation, 1)
        try:
            saving(job, faulty, generation, 0).run()
            outcome = "committed"
        except (SaveFailed, SaveAborted, CommitUnknown) as error:
            outcome = type(error).__name__ if "injected" in f"{error} {error.__cause__}" else f"unclear: {error}"
        outcomes.add(outcome)
        job.latest = next(History.load(store).commits())
        assert job.save(30).committed
        check_commits(store)
        assert after_restart(store) == GenerationId(1, 30, 1)
        decided = ledger.read(store, job.coordinator().run_id, generation)
        assert decided is not None
        assert outcome == "CommitUnknown" or decided.committed == (outcome == "committed")

    fail_everywhere(place / "template", FAULTS[fault], case)
    # Where the decision does not fit, its abort does: the fault is injected once.
    undecided = "SaveAborted" if fault == "full" else "CommitUnknown"
    assert outcomes == {"committed", "SaveFailed", undecided}


def test_a_lost_answer_about_the_decision_is_resolved_by_asking_again(place: Path) -> None:
    store = file_store(place)
    job = Job(store)
    job.open()
    generation = job.next_generation(10)
    job.write(generation, 1)
    key = names.ledger_key(generation)
    faulty = FaultyStore(store, lambda operation, at: operation == "put_if_absent" and at == key, times=3, after=True)
    decided = saving(job, faulty, generation, 0).run()
    assert faulty.hits == 3
    assert decided.committed
    assert verify(Checkpoint(store, decided), deep=True).ok


def test_a_store_that_never_answers_leaves_the_decision_unknown(place: Path) -> None:
    store = file_store(place)
    job = Job(store)
    job.open()
    generation = job.next_generation(10)
    job.write(generation, 1)
    key = names.ledger_key(generation)
    faulty = FaultyStore(store, lambda operation, at: operation == "put_if_absent" and at == key, times=10**6)
    with pytest.raises(CheckpointError, match="it may have committed") as caught:
        saving(job, faulty, generation, 0).run()
    assert caught.value.kind == "commit-unknown"
    assert after_restart(store) == generation


def test_trouble_with_the_store_while_settling_aborts_nothing(place: Path) -> None:
    """What cannot be found out stops the start; the next one finds everything as it was."""
    template = unsettled(place)
    run = History.load(file_store(template)).run
    complete = GenerationId(1, 20, 1)
    stopped = []

    def case(store: FileStore, faulty: FaultyStore) -> None:
        try:
            Job(faulty).open()
        except StoreUnavailable:
            stopped.append(faulty)
        decided = ledger.read(store, run.run_id, complete)
        assert decided is None or decided.committed
        assert after_restart(store) == complete

    fail_everywhere(template, FAULTS["no answer"], case, names.generation_prefix(complete))
    assert stopped


def test_a_broken_merged_root_of_an_undecided_save_stops_no_start(place: Path) -> None:
    """The root is derived data, but while it is broken nothing can be proven: the save is given up."""
    template = unsettled(place)
    complete = GenerationId(1, 20, 1)
    store = file_store(template)
    key = names.ledger_key(complete)
    dying = FaultyStore(store, lambda operation, at: operation == "put_if_absent" and at == key, lambda: Died(key))
    with pytest.raises(Died):
        Job(dying).open()
    nodes = [*store.list(f"{names.state_prefix(complete)}d/")]
    assert nodes
    for key in nodes:
        store.delete(key)
    assert after_restart(store) == GenerationId(1, 10, 1)
