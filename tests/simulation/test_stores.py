"""What the simulated stores do: the promises of `Store`, and what each fault makes of an operation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ckptcore.arrays import DatabaseWriter, StoredArray
from ckptcore.errors import StoreFull, StoreUnavailable
from ckptcore.geometry import Grid
from ckptcore.names import GenerationId
from ckptcore.store import Store
from simulation.faults import KINDS, POSSIBLE, Fault, ScriptedFaults
from simulation.scheduler import Process
from simulation.state import state
from simulation.violation import Died, Violation
from simulation.world import Kind, World, alone

KINDS_OF_STORE: tuple[Kind, ...] = ("disk", "bucket")
KEY = "probe/one"
PREFIX = "generations/000001-000000000010-1/state/ranks/00000-0123456789abcdef/"


@pytest.fixture(params=KINDS_OF_STORE)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    with alone():
        yield


class Tried:
    """One process "p" that uses a store as `body` says, with faults at the operations that `script` numbers."""

    def __init__(self, kind: Kind, body: Callable[[Store], Any], script: dict[int, Fault] | None = None) -> None:
        faults = ScriptedFaults({("p", number): fault for number, fault in (script or {}).items()})
        self.world = World(random.Random(1), faults, kind)
        self.process = self.world.process("p", "tester")
        self.result: Any = None
        self.error: BaseException | None = None
        self.body = body

    def run(self) -> Tried:
        """Until the process has ended."""
        self.process.spawn("", lambda: self._try(self.body))
        self.world.run(lambda: self.world.over)
        return self

    @property
    def stored(self) -> dict[str, bytes]:
        return dict(self.world.contents.items())

    def _try(self, body: Callable[[Store], Any]) -> None:
        try:
            self.result = body(self.world.store(self.process))
        except (StoreFull, StoreUnavailable) as error:
            self.error = error

    def later(self, seconds: float) -> dict[str, bytes]:
        """What is stored after so long."""
        until = self.world.scheduler.now + seconds
        self.world.scheduler.later(seconds, lambda: None)
        self.world.run(lambda: self.world.scheduler.now >= until)
        return dict(self.world.contents.items())


def put(data: bytes = b"mine") -> Callable[[Store], bytes]:
    return lambda store: store.put_if_absent(KEY, data)


def test_the_promises_of_a_store(kind: Kind) -> None:
    def body(store: Store) -> None:
        assert (store.get(KEY), store.size(KEY), [*store.list("probe/")]) == (None, None, [])
        assert store.put_if_absent(KEY, b"0123456789") == b"0123456789"
        assert store.put_if_absent(KEY, b"other") == b"0123456789"
        assert [store.get(KEY, 3, 7), store.get(KEY, 8, 20), store.get(KEY, 10, 11)] == [b"3456", b"89", b""]
        assert store.size(KEY) == 10
        store.put_if_absent("probe/two/three", b"")
        assert ([*store.list("probe/")], store.children("probe/")) == ([KEY, "probe/two/three"], ["one", "two"])
        assert store.delete_prefix("probe/two/") == 1
        store.delete(KEY)
        store.delete(KEY)
        assert store.get(KEY) is None

    tried = Tried(kind, body).run()
    assert tried.error is None
    assert tried.world.scheduler.now > 0


# On a disk a put is one operation, in a bucket it is a read, the write, and a read.
FIRST = {"disk": 1, "bucket": 2}


@pytest.mark.parametrize(
    ("fault", "on_disk", "stored"),
    [
        ("error", StoreUnavailable, False),
        ("timeout", StoreUnavailable, False),
        ("outage", StoreUnavailable, False),
        ("lost", StoreUnavailable, True),
        ("full", StoreFull, False),
        ("stall", None, True),
        ("copy", None, True),
    ],
)
def test_a_put_that_meets_a_fault(fault: str, on_disk: type[Exception] | None, *, stored: bool) -> None:
    tried = Tried("disk", put(), {1: Fault(fault, 500.0)}).run()
    assert (type(tried.error) if tried.error else None) == on_disk
    assert (KEY in tried.stored) == stored
    assert tried.result == (None if on_disk else b"mine")


@pytest.mark.parametrize("fault", ["error", "lost", "mismatch", "conflict"])
def test_the_real_object_store_sees_through_one_answer(fault: str) -> None:
    """It reads back and repeats: 409, 412 and 503 are no verdict (S-4)."""
    tried = Tried("bucket", put(), {2: Fault(fault)}).run()
    assert tried.error is None
    assert tried.result == tried.stored[KEY] == b"mine"


def test_a_put_may_be_made_long_after_its_process_has_died(kind: Kind) -> None:
    def body(store: Store) -> bytes:
        try:
            return store.put_if_absent(KEY, b"late")
        except StoreUnavailable:
            return store.get(KEY) or b""

    number = FIRST[kind]
    tried = Tried(kind, body, {number: Fault("late", 200.0), number + 1: Fault("crash")}).run()
    assert tried.process.dead
    assert KEY not in tried.stored
    assert tried.later(300.0)[KEY] == b"late"


def test_a_late_put_replaces_nothing() -> None:
    def body(store: Store) -> bytes | None:
        with pytest.raises(StoreUnavailable):
            store.put_if_absent(KEY, b"late")
        return store.put_if_absent(KEY, b"mine")

    tried = Tried("disk", body, {1: Fault("late", 200.0)}).run()
    assert tried.later(300.0)[KEY] == b"mine"


@pytest.mark.parametrize(("fault", "stored"), [("crash", False), ("power", False), ("crash-after", True), ("power-after", True)])
def test_a_process_dies_before_or_after(kind: Kind, fault: str, *, stored: bool) -> None:
    tried = Tried(kind, put(), {FIRST[kind]: Fault(fault)}).run()
    assert tried.process.dead
    assert (KEY in tried.stored, tried.result) == (stored, None)


@pytest.mark.parametrize("fault", ["torn", "partial"])
def test_half_a_deletion(kind: Kind, fault: str) -> None:
    def body(store: Store) -> int:
        for name in "abcd":
            store.put_if_absent(f"probe/{name}", b"x")
        return store.delete_prefix("probe/")

    number = {"disk": 5, "bucket": 7}[kind]
    tried = Tried(kind, body, {number: Fault(fault)}).run()
    assert tried.process.dead == (fault == "torn")
    assert 0 < len(tried.stored) < 4 or (fault == "partial" and kind == "bucket")


def test_listings_may_lack_what_was_never_acknowledged_until_somebody_reads_it() -> None:
    def body(store: Store) -> list[list[str]]:
        with pytest.raises(StoreUnavailable):
            store.put_if_absent(KEY, b"x")
        store.put_if_absent("probe/two", b"x")
        before = [*store.list("probe/")]
        store.get(KEY)
        return [before, [*store.list("probe/")]]

    assert Tried("disk", body, {1: Fault("lost")}).run().result == [["probe/two"], [KEY, "probe/two"]]


def database(store: Store) -> list[Any]:
    array = StoredArray(name="w", dtype="int64", shape=(60,), grid=Grid.regular((60,), (60,)))
    writer = DatabaseWriter(store, PREFIX)
    writer.add(array, {0: state_array()})
    return writer.finish()


def state_array() -> Any:
    return state(GenerationId(1, 10, 1), 0, arrays=True, frozen=False)["params"]["w"]


def test_a_database_is_durable_once_it_has_been_synced() -> None:
    tried = Tried("disk", database).run()
    files = tried.world.contents.files(PREFIX)
    assert [file.path for file in tried.result] == [key.removeprefix(PREFIX) for key in files]
    assert all(tried.world.contents.durable(key) for key in files)
    assert any(key.endswith("manifest.ocdbt") for key in files)


@pytest.mark.parametrize(("fault", "complete"), [("crash", True), ("power", False), ("torn", False)])
def test_a_machine_that_loses_power_loses_what_was_not_synced(fault: str, *, complete: bool) -> None:
    before: dict[str, bytes | None] = {}

    def body(store: Any) -> None:
        sync = store.sync

        def look(prefix: str) -> None:
            before.update((key, tried.world.contents.get(key)) for key in tried.world.contents.files(PREFIX))
            sync(prefix)

        store.sync = look
        database(store)

    tried = Tried("disk", body, {2: Fault(fault)})  # the sync: the first is to open the database
    tried.run()
    assert tried.process.dead
    assert len(before) > 1
    left = {key: tried.world.contents.get(key) for key in tried.world.contents.files(PREFIX)}
    assert (left == before) == complete
    assert not any(tried.world.contents.durable(key) for key in left)


def test_every_kind_of_fault_is_possible_somewhere() -> None:
    possible = {kind for kinds in POSSIBLE.values() for kind in kinds}
    assert possible == set(KINDS)


def two(world: World, body: Callable[[Process], Any]) -> None:
    for name in ("one", "two"):
        process = world.process(name, "tester")
        process.spawn("", lambda process=process: body(process))


def test_who_waits_for_nothing_is_named() -> None:
    world = World(random.Random(1), ScriptedFaults({}), "disk")
    two(world, lambda process: world.scheduler.wait(lambda: False, f"what never comes to {process.name}"))
    with pytest.raises(Violation, match="one waits for what never comes to one; two waits for what never comes to two"):
        world.run(lambda: world.over)
    world.scheduler.end()


def test_an_undocumented_error_is_a_violation() -> None:
    world = World(random.Random(1), ScriptedFaults({}), "disk")
    two(world, lambda _: {}["absent"])
    with pytest.raises(Violation, match="ended with KeyError"):
        world.run(lambda: world.over)
    world.scheduler.end()


def test_a_dead_process_does_nothing_more() -> None:
    world, done = World(random.Random(1), ScriptedFaults({}), "disk"), []
    process = world.process("one", "tester")

    def body() -> None:
        try:
            world.scheduler.pause(10.0)
            done.append("slept")
        finally:
            with pytest.raises(Died):
                world.store(process).put_if_absent(KEY, b"from beyond")
            done.append("cleaned up")

    task = process.spawn("", body)
    world.scheduler.later(5.0, process.kill)
    world.run(lambda: world.over)
    assert done == ["cleaned up"]
    assert isinstance(task.raised, Died)
    assert dict(world.contents.items()) == {}
