"""A backend without a framework, jobs of several ranks in one process, and stores that fail on purpose."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

import numpy as np

from ckptcore import components as parts
from ckptcore import dtypes, nested, notes, records, restore, snapshot
from ckptcore.backend import Flat, Found, Staged, Target, Wanted
from ckptcore.channel import Channel, LocalChannel
from ckptcore.checkpointer import Checkpointer
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import DeadlineExceeded, StagingLimit, StructureMismatch
from ckptcore.filestore import FileStore
from ckptcore.geometry import Box
from ckptcore.history import History
from ckptcore.incarnations import Incarnation, Opening
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.ledger import Decided, manifest_of
from ckptcore.match import Rules
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.records import Level, StoreFacts
from ckptcore.store import Store
from ckptcore.union import Exchange
from ckptcore.verify import check_whole, verify
from ckptcore.writer import Identity, Shard, write

T = TypeVar("T")
FACTS = StoreFacts(driver="file", put_if_absent=True, read_after_write=True, list_after_write=True)
DERIVED = {"schedule": "optimizer"}
SHAPE = (8, 96)
"""Of the weights in `state`."""
CHUNK_BYTES = 768
"""Two chunks a rank when there are two, each too large to be kept inside of a database's tree."""


class FakeClock(Clock):
    """A clock that moves when somebody sleeps, so that no test waits for a deadline."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()

    def varied(self, seconds: float) -> float:
        return seconds


# Ranks


class Hub:
    """What the channels of one job's ranks have in common."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.told: dict[tuple[int, int], bytes] = {}


class ThreadChannel:
    """A `Channel` between threads of one process."""

    coordinator: str | None = "127.0.0.1"

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.turn = hub, rank, hub.size, 0

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:
        return self._exchange(data, [0], timeout, what)[0]

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        return self._exchange(data, range(self.size), timeout, what)

    def _exchange(self, data: bytes | None, ranks: Sequence[int], timeout: float, what: str) -> list[bytes]:
        self.turn += 1
        keys = [(self.turn, rank) for rank in ranks]
        with self.hub.changed:
            if data is not None:
                self.hub.told[self.turn, self.rank] = data
                self.hub.changed.notify_all()
            if not self.hub.changed.wait_for(lambda: all(key in self.hub.told for key in keys), min(timeout, 30.0)):
                late = [rank for turn, rank in keys if (turn, rank) not in self.hub.told]
                raise DeadlineExceeded(f"{what}: nothing from ranks {late}")
            return [self.hub.told[key] for key in keys]


def run_ranks(size: int, body: Callable[[Channel], T]) -> list[T | BaseException]:
    """Run `body` once a rank, each in a thread of its own; what it returned or raised, in rank order."""
    hub = Hub(size)
    outcomes: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            outcomes[rank] = body(ThreadChannel(hub, rank))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            outcomes[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def on_ranks(size: int, body: Callable[[Channel], T]) -> list[T]:
    """As `run_ranks`, but raises the first error."""
    results: list[T] = []
    for outcome in run_ranks(size, body):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


# State


@dataclass(frozen=True)
class Sharded:
    """An array cut along its first axis over all ranks of the job, as evenly as goes; `local` is this rank's part.

    In a restore target `local` may be None.
    """

    local: np.ndarray | None
    shape: tuple[int, ...]
    dtype: str
    rank: int
    size: int

    @classmethod
    def of(cls, whole: np.ndarray, rank: int, size: int) -> Sharded:
        part = cls(None, whole.shape, whole.dtype.name, rank, size)
        return cls(whole[part.box(rank).slices()].copy(), whole.shape, whole.dtype.name, rank, size)

    def box(self, rank: int) -> Box:
        edges = [self.shape[0] * i // self.size for i in range(self.size + 1)]
        return Box((edges[rank], *(0 for _ in self.shape[1:])), (edges[rank + 1], *self.shape[1:]))

    @property
    def boxes(self) -> dict[Box, tuple[int, ...]]:
        return {self.box(rank): (rank,) for rank in range(self.size)}


class Anything:
    """A leaf of a restore target that takes whatever is stored there."""


ANYTHING = Anything()


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | Sharded)


@dataclass(frozen=True, kw_only=True)
class HostFlat(Flat):
    sources: Mapping[str, np.ndarray | Sharded]
    rank: int

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:
        chunks = {name: [self._cut(name, box) for box in boxes] for name, boxes in own.items()}
        nbytes = sum(part.nbytes for parts_ in chunks.values() for part in parts_)
        if limit is not None and nbytes > limit:
            raise StagingLimit(f"the snapshot needs {nbytes} bytes, the limit is {limit}")
        whole = {name: dtypes.to_stored(np.array(self.sources[name], copy=True)) for name in replicated}
        return Staged(chunks=chunks, whole=whole, nbytes=nbytes)

    def _cut(self, name: str, box: Box) -> np.ndarray:
        source = self.sources[name]
        if isinstance(source, np.ndarray):
            return dtypes.to_stored(source[box.slices()].copy())
        held = source.box(source.rank)
        assert held.contains(box), f"rank {self.rank} was asked for {box} of {name}, which it does not hold"
        assert source.local is not None
        return dtypes.to_stored(source.local[box.slices(held.start)].copy())


@dataclass(frozen=True, kw_only=True)
class HostTarget(Target):
    like: Mapping[str, Any]
    slots: Mapping[str, list[tuple[Wanted, Any]]]

    def place(self, found: Mapping[str, Found]) -> Mapping[str, Any]:
        placed = {}
        for component, slots in self.slots.items():
            leaves = {wanted.path: self._placed(wanted, leaf, found.get(wanted.name)) for wanted, leaf in slots}
            built = nested.build(leaves, where=component)
            placed[component] = parts.PerRank(built) if isinstance(self.like[component], parts.PerRank) else built
        return placed

    @staticmethod
    def _placed(wanted: Wanted, leaf: Any, found: Found | None) -> Any:
        if found is None:
            if isinstance(leaf, Sharded) and leaf.local is None:
                raise StructureMismatch("nothing to keep", [wanted.name])
            return leaf
        if found.boxes is None:
            return found.value if found.below is None else found.tree(where=wanted.name)
        (local,) = found.boxes.values()
        return Sharded(local, leaf.shape, leaf.dtype, leaf.rank, leaf.size) if isinstance(leaf, Sharded) else local


@dataclass(frozen=True)
class HostBackend:
    """Nested dicts and lists of numpy arrays, `Sharded` arrays and values."""

    link: Channel = field(default_factory=LocalChannel)
    framework: str = "host"
    numpy: str = np.__version__
    partial: bool = False

    def channel(self) -> Channel:
        return self.link

    def versions(self) -> dict[str, str]:
        return {"numpy": self.numpy}

    @property
    def computing(self) -> frozenset[str]:
        return frozenset({"numpy"})

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:  # noqa: ARG002 - hosts have none
        return topology(self.link.size)

    def release(self) -> None:
        pass

    def flatten(self, components: Mapping[str, Any]) -> HostFlat:
        facts, arrays, values, sources = {}, [], [], {}
        for name, component in components.items():
            inner, scope, rank_zero = parts.unwrap(component)
            facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero)
            for path, leaf in nested.split(inner, is_array, where=name):
                if not is_array(leaf):
                    values.append(ValueFacts(component=name, path=path, value=leaf))
                    continue
                arrays.append(self._facts(name, path, leaf, facts[name]))
                sources[arrays[-1].name] = leaf
        return HostFlat(components=facts, arrays=arrays, values=values, meshes=[], sources=sources, rank=self.link.rank)

    def _facts(self, component: str, path: Any, leaf: np.ndarray | Sharded, facts: ComponentFacts) -> ArrayFacts:
        dtype = leaf.dtype if isinstance(leaf, Sharded) else dtypes.name_of(leaf.dtype, where=component)
        if facts.scope == "rank":
            shards = {}
        elif isinstance(leaf, Sharded):
            shards = leaf.boxes
        else:
            shards = {Box.whole(leaf.shape): (0,) if facts.rank_zero else tuple(range(self.link.size))}
        return ArrayFacts(
            component=component,
            path=path,
            dtype=dtype,
            stored_dtype=dtypes.stored_name(dtype),
            shape=leaf.shape,
            itemsize=dtypes.itemsize(dtype),
            shards=shards,
            host_replicated=isinstance(leaf, np.ndarray) and facts.scope == "global" and not facts.rank_zero,
            local=isinstance(leaf, np.ndarray) and facts.scope == "global",
        )

    def target(self, like: Mapping[str, Any], components: Collection[str] | None = None) -> HostTarget:
        facts, slots = {}, {}
        like = {name: component for name, component in like.items() if components is None or name in components}
        for name, component in like.items():
            inner, scope, rank_zero = parts.unwrap(component)
            facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero)
            leaves = nested.split(inner, lambda leaf: is_array(leaf) or leaf is ANYTHING, where=name)
            slots[name] = [(_wanted(name, path, leaf, rank_scoped=scope == "rank"), leaf) for path, leaf in leaves]
        wanted = [item for component in slots.values() for item, _ in component]
        return HostTarget(wanted=wanted, components=facts, like=like, slots=slots)


def _wanted(component: str, path: Any, leaf: Any, *, rank_scoped: bool) -> Wanted:
    kwargs: dict[str, Any] = {"component": component, "path": path, "rank_scoped": rank_scoped}
    if leaf is ANYTHING:
        return Wanted(kind="any", **kwargs)
    if is_array(leaf):
        box = leaf.box(leaf.rank) if isinstance(leaf, Sharded) else Box.whole(leaf.shape)
        dtype = leaf.dtype if isinstance(leaf, Sharded) else leaf.dtype.name
        return Wanted(kind="array", dtype=dtype, shape=leaf.shape, boxes=(box,), **kwargs)
    if leaf is None or (isinstance(leaf, dict | list | tuple) and not leaf):
        return Wanted(kind="empty", value=leaf, **kwargs)
    scalar: Any = type(leaf).__name__ if type(leaf) in (bool, int, float) else None
    return Wanted(kind="value", value=leaf, scalar=scalar, **kwargs)


def topology(size: int) -> records.Topology:
    return records.Topology(framework="host", platform="cpu", participants=size, devices=size)


def state(step: int, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """A whole training state, wholly determined by its arguments: everything that `exact` needs."""
    return {
        "params": {"w": Sharded.of(weights(step), rank, size), "b": np.full(3, step, np.float64)},
        "optimizer": {"mu": [np.arange(4, dtype=np.int32) * step, {}], "count": step, "lr": step / 3},
        "rng": parts.PerRank({"key": np.array([step, rank], np.uint32)}),
        "data": {"position": step * 32, "seed": 7},
    }


def weights(step: int) -> np.ndarray:
    return np.arange(768, dtype=np.float32).reshape(SHAPE) + 100 * step


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, arrays bit for bit and in dtype."""
    if isinstance(one, parts.PerRank) and isinstance(other, parts.PerRank):
        return same(one.value, other.value)
    if isinstance(one, Sharded) and isinstance(other, Sharded):
        return one.shape == other.shape and same(one.local, other.local)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def checkpointer(url: Any, link: Channel | None = None, **options: Any) -> Checkpointer:
    """A `Checkpointer` over `HostBackend`, with the declarations that make `state` exact."""
    settings = {"derived": DERIVED, "interval": 10, "coordinator_timeout": 20.0} | options
    return Checkpointer(url, backend=HostBackend(link or LocalChannel()), **settings)


# Jobs, step by step


@dataclass
class Job:
    """One launch of a training job, driven in one thread: every rank does its part when it is told to.

    `stores` gives single ranks a store of their own (one that dies, say).
    """

    store: Store
    size: int = 2
    stores: dict[int, Store] = field(default_factory=dict)
    clock: Clock = field(default_factory=FakeClock)
    incarnation: Incarnation | None = None
    latest: Decided | None = None
    attempts: dict[int, int] = field(default_factory=dict)
    state_of: Callable[[int, int, int], Mapping[str, Any]] = state

    def of(self, rank: int) -> Store:
        return self.stores.get(rank, self.store)

    def open(self, choose: GenerationId | None = None) -> Incarnation:
        store = self.of(0)
        opening = Opening(store, topology(self.size), FACTS, self.clock)
        self.incarnation = opening.open(
            opening.identify(),
            choose=None if choose is None else (lambda _: choose),
            check=lambda decided: check_whole(Checkpoint(store, decided)),
            guarantee=lambda decided: self._kept(manifest_of(decided)),
        )
        base = self.incarnation.base_generation
        self.latest = History.load(store).decided(base) if base else None
        return self.incarnation

    def _kept(self, manifest: records.Manifest) -> Level:
        level = manifest.guarantee.level
        return "coverage" if level == "exact" and manifest.topology.participants != self.size else level

    @property
    def number(self) -> int:
        assert self.incarnation is not None
        return self.incarnation.number

    def next_generation(self, step: int) -> GenerationId:
        self.attempts[step] = self.attempts.get(step, 0) + 1
        return GenerationId(self.number, step, self.attempts[step])

    def shard(self, generation: GenerationId, rank: int, **changes: Any) -> Shard:
        """What `rank` would write: its part of `state_of(step, rank, size)`."""
        identity = self.identity(generation, rank)
        wanted: dict[str, Any] = {
            "components": self.state_of(generation.step, rank, self.size),
            "derived": DERIVED,
            "guarantee": None,
            "require": None,
            "metadata": None,
            "unchanged": (),
            "latest": self.latest,
            "remapped": False,
            "obstacle": lambda generation: notes.obstacle(self.store, identity.run_id, generation),
            "clock": self.clock,
        }
        backend = HostBackend(ThreadChannel(Hub(self.size), rank))
        order = snapshot.Order(**wanted | changes)
        limits = snapshot.Limits(chunk_bytes=CHUNK_BYTES)
        return snapshot.take(backend, identity, order, Exchange(backend.link), limits)

    def identity(self, generation: GenerationId, rank: int) -> Identity:
        assert self.incarnation is not None
        claim, run_id = self.incarnation.claim.nonce, self.incarnation.run.run_id
        return Identity(run_id=run_id, generation=generation, claim=claim, participants=self.size, rank=rank)

    def write(self, generation: GenerationId, rank: int, **order: Any) -> records.Receipt:
        return write(self.of(rank), self.shard(generation, rank, **order), clock=self.clock)

    def coordinator(self) -> Coordinator:
        assert self.incarnation is not None
        return Coordinator(self.of(0), self.incarnation.run.run_id, self.number, self.clock)

    def save(self, step: int, **order: Any) -> Decided:
        """A whole save: every rank writes, the last one first, and rank 0 decides."""
        generation = self.next_generation(step)
        for rank in reversed(range(self.size)):
            self.write(generation, rank, **order)
        decided = self.coordinator().commit(generation, self.size, timeout=5.0)
        if decided.committed:
            self.latest = decided
        return decided


@contextmanager
def memory_directory() -> Iterator[FilePath]:
    """A fresh directory, in memory where there is a place for that: these tests make and sync thousands of files."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="ckpt-test-") as directory:
        yield FilePath(directory)


def file_store(path: FilePath) -> FileStore:
    return FileStore(str(path), timeout=0.5)


def contents(path: FilePath) -> dict[str, bytes]:
    """Every file below `path`, by relative path."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def manifest(decided: Decided) -> records.Manifest:
    assert isinstance(decided.record, records.Manifest), decided.record
    return decided.record


def flip(path: FilePath, position: int = -1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


# What must hold


def commits(store: Store) -> list[Checkpoint]:
    """Every commit that is not retired, newest first."""
    return [Checkpoint(store, decided) for decided in History.load(store).commits()]


def check_commits(store: Store) -> list[GenerationId]:
    """Verify every readable commit deep, and return them, newest first."""
    found = []
    for checkpoint in commits(store):
        verification = verify(checkpoint, deep=True)
        assert verification.ok, verification.problems
        found.append(checkpoint.generation)
    return found


def restored_step(store: Store, generation: GenerationId, size: int) -> int:
    """The step whose state a commit holds, after comparing every leaf with what `state` gives for it."""
    decided = History.load(store).decided(generation)
    assert decided is not None
    checkpoint = Checkpoint(store, decided)
    for rank in range(size):
        ranks = {"rng": rank}
        expected = state(generation.step, rank, size)
        host = restore.host(checkpoint, list(expected), rules=Rules(), ranks=ranks)
        whole = {**expected, "rng": expected["rng"].value, "params": {**expected["params"], "w": weights(generation.step)}}
        assert same(host, whole), (host, whole)
    return generation.step
