"""Failpoints: a store that kills, stops, holds or fails its process at a named moment (ADAPTER.md, failpoints).

Every moment is an operation on the run's store, or on the node's, seen right before it is made or right after it has succeeded.
No code of the implementation knows of it. A process that is about to die or stop while it delivers its part lets the others
deliver theirs first: what the store then holds does not depend on who was faster.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import tensorstore as ts

from ckpt_conformance.adapters.answers import Cannot
from ckptcore import names
from ckptcore.array_spec import MANIFEST
from ckptcore.errors import InvalidRecord, StoreError
from ckptcore.limits import Limits
from ckptcore.names import GenerationId
from ckptcore.store import Store

Phase = Literal["before", "after"]

_DELIVERING = frozenset(
    {"before-data", "during-data", "before-receipt", "after-receipt", "after-staged", "on-nodes", "during-upload", "during-copy"}
)
ON_NODE = frozenset({"during-copy"})
"""Moments that are operations on a node's store."""
_PATIENCE = 5.0  # seconds
_ON_NODES = ".staged.json"


@dataclass(frozen=True, kw_only=True)
class Failpoint:
    """What happens to the process of `rank` at its moment `name`, once. `step`: of a save; None: an opening, a collection.

    What is held goes on when `released` is set.
    """

    name: str
    rank: int
    action: str
    step: int | None = None
    released: threading.Event = field(default_factory=threading.Event, compare=False)

    @classmethod
    def of(cls, told: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, rank: int) -> Failpoint | None:
        """That of a rank among those of a request. Raises `Cannot` for any that is not known: on all ranks, or on none."""
        points = map(cls._read, () if told is None else (told,) if isinstance(told, Mapping) else told)
        return {point.rank: point for point in points}.get(rank)

    @classmethod
    def _read(cls, told: Mapping[str, Any]) -> Failpoint:
        if told["name"] not in MOMENTS or told["action"] not in ("kill", "stop", "error", "hold"):
            raise Cannot(f"there is no failpoint {told['name']!r} with the action {told['action']!r}")
        return cls(name=told["name"], rank=told["rank"], action=told["action"], step=told.get("step"))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One operation. `generation` and `rest` are those of its key, where it is below `generations/` or a decision in `ledger/`.

    `incarnation` is the number that this process has claimed, if it has; `settling` whether it is opening the run with it;
    `deriving` whether it has begun to store what is derived of `generation`.
    """

    phase: Phase
    operation: str
    key: str
    rank: int
    incarnation: int | None = None
    settling: bool = False
    deriving: bool = False
    data: bytes = b""
    generation: GenerationId | None = None
    rest: str = ""
    on_node: bool = False

    def is_(self, phase: Phase, operation: str) -> bool:
        """Whether it is this operation, at this time."""
        return (self.phase, self.operation) == (phase, operation)

    @property
    def receipt(self) -> bool:
        """Whether it concerns anybody's receipt."""
        return self.rest.startswith("receipts/")

    @property
    def own_receipt(self) -> bool:
        """Whether it concerns this rank's receipt, one that vouches for data."""
        return self.rest == f"receipts/{self.rank:05d}.json" and b'"status":"complete"' in self.data

    @property
    def decision(self) -> bool:
        """Whether it concerns the decision of a generation."""
        return self.generation is not None and self.key == names.ledger_key(self.generation)

    @property
    def older(self) -> bool:
        """Whether the generation is of an incarnation before the one that was claimed."""
        return self.generation is not None and self.incarnation is not None and self.generation.incarnation < self.incarnation


MOMENTS: Mapping[str, Callable[[Seen], bool]] = MappingProxyType(
    {
        "before-data": lambda seen: seen.phase == "before" and seen.operation in ("kvstore", "put_if_absent") and seen.rest != "",
        # TensorStore has written the files of this rank's database; values, layout and the sync are still to come.
        "during-data": lambda seen: seen.is_("before", "sync") and seen.rest.startswith(f"state/ranks/{seen.rank:05d}-"),
        "before-receipt": lambda seen: seen.is_("before", "put_if_absent") and seen.own_receipt,
        "after-receipt": lambda seen: seen.is_("after", "put_if_absent") and seen.own_receipt,
        "before-index": lambda seen: seen.is_("before", "put_if_absent") and seen.rest.startswith("index/"),
        "before-merge": lambda seen: seen.is_("before", "kvstore") and seen.rest == "state/",
        "before-fence": lambda seen: seen.is_("before", "get") and seen.deriving and seen.key == _next_claim(seen),
        "before-decision": lambda seen: seen.is_("before", "put_if_absent") and seen.decision,
        "after-decision": lambda seen: seen.is_("after", "put_if_absent") and seen.decision,
        "after-claim": lambda seen: seen.is_("after", "put_if_absent") and _is_incarnation(seen.key, "claim"),
        "during-settle": lambda seen: seen.is_("after", "put_if_absent") and seen.settling and seen.decision and seen.older,
        "before-base": lambda seen: seen.is_("before", "put_if_absent") and _is_incarnation(seen.key, "base"),
        "after-retired": lambda seen: seen.is_("after", "put_if_absent") and seen.key.endswith(".retired.json"),
        "after-staged": lambda seen: seen.is_("after", "put_if_absent") and seen.rest == f"staged/{seen.rank:05d}.json",
        "on-nodes": lambda seen: seen.is_("after", "put_if_absent") and seen.key.endswith(_ON_NODES),
        # Whoever finishes an upload, of whatever rank, has copied the files; the sync and the receipt are still to come.
        "during-upload": lambda seen: seen.is_("before", "sync") and seen.rest.startswith("state/ranks/"),
        # On the node: the files of another rank's part are there, and durable.
        "during-copy": lambda seen: (
            seen.on_node and seen.is_("before", "put_if_absent") and seen.receipt and not seen.own_receipt
        ),
        "during-delete": lambda seen: seen.is_("before", "delete_prefix") and seen.generation is not None and not seen.rest,
    }
)
"""Moment → whether an operation is it. Those of a save are asked of the operations on its own generation only."""


def _next_claim(seen: Seen) -> str:
    return names.claim_key((seen.incarnation or 0) + 1)


def _is_incarnation(key: str, what: str) -> bool:
    parsed = names.parse_incarnation_key(key)
    return parsed is not None and parsed[1] == what


@dataclass
class FailingStore:
    """A store that passes everything on to `inner`, and acts on this process at one moment. Safe to use from several threads.

    `run`: the run's store, where this one is a node's.
    """

    inner: Store
    failpoint: Failpoint
    processes: int
    run: Store | None = None
    _done: bool = False
    _claimed: int | None = None
    _settling: bool = False
    _deriving: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self.inner.url

    @property
    def driver(self) -> str:
        """See `Store.driver`."""
        return self.inner.driver

    @property
    def context(self) -> ts.Context:
        """See `Store.context`."""
        return self.inner.context

    @property
    def limits(self) -> Limits:
        """See `Store.limits`."""
        return self.inner.limits

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """See `Store.put_if_absent`."""
        self._pass("before", "put_if_absent", key, data)
        found = self.inner.put_if_absent(key, data)
        if found == data:
            self._note(key)
            self._pass("after", "put_if_absent", key, data)
        return found

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        self._pass("before", "get", key)
        return self.inner.get(key, start, stop)

    def size(self, key: str, guess: int | None = None) -> int | None:
        """See `Store.size`."""
        return self.inner.size(key, guess)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        return self.inner.list(prefix)

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        return self.inner.children(prefix)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self.inner.delete(key)

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        self._pass("before", "delete_prefix", prefix)
        return self.inner.delete_prefix(prefix)

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""
        self._pass("before", "sync", prefix)
        self.inner.sync(prefix)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        self._pass("before", "kvstore", prefix)
        return self.inner.kvstore(prefix)

    def _note(self, key: str) -> None:
        """Keep what later moments depend on."""
        parsed = names.parse_incarnation_key(key)
        if parsed is not None:
            self._settling = parsed[1] == "claim"
            self._claimed = parsed[0]

    def _pass(self, phase: Phase, operation: str, key: str, data: bytes = b"") -> None:
        """Act if this is the moment, and has not come before."""
        with self._lock:
            seen = self._seen(phase, operation, key, data)
            if self._done or not MOMENTS[self.failpoint.name](seen) or not self._is_asked(seen):
                self._deriving = self._deriving or (seen.rest.startswith("index/") and self._is_asked(seen))
                return
            self._done = True
        if self.failpoint.action != "error" and self.failpoint.name in _DELIVERING and seen.generation is not None:
            self._let_deliver(seen.generation)
        self._act(key)

    def _seen(self, phase: Phase, operation: str, key: str, data: bytes) -> Seen:
        generation, rest = _generation_of(key)
        return Seen(
            phase=phase,
            operation=operation,
            key=key,
            rank=self.failpoint.rank,
            incarnation=self._claimed,
            settling=self._settling,
            deriving=self._deriving,
            data=data,
            generation=generation,
            rest=rest,
            on_node=self.run is not None,
        )

    def _is_asked(self, seen: Seen) -> bool:
        """Whether an operation belongs to what the failpoint is about: the save of its step, or anything where it has none."""
        step, generation = self.failpoint.step, seen.generation
        if step is None or generation is None:
            return step is None or seen.deriving  # the fence names no generation: it follows what does
        return generation.step == step and generation.incarnation == (self._claimed or generation.incarnation)

    def _let_deliver(self, generation: GenerationId) -> None:
        """Wait until the receipts of all others are there; for a while, in case that they do not come.

        Where nothing of this rank is there, others that keep their data on nodes come as far as their staged receipts. Where it
        copies, its own receipt is waited for: its upload goes on beside that.
        """
        own = f"{self.failpoint.rank:05d}.json"
        wanted = {own} if self.run is not None else {f"{rank:05d}.json" for rank in range(self.processes)} - {own}
        until = time.monotonic() + _PATIENCE
        while not wanted <= self._delivered(generation) and time.monotonic() < until:
            time.sleep(0.005)

    def _delivered(self, generation: GenerationId) -> set[str]:
        store = self.run or self.inner
        staged = store.children(names.staged_prefix(generation)) if self.failpoint.name == "before-data" else []
        return {*store.children(names.receipts_prefix(generation)), *staged}

    def _act(self, key: str) -> None:
        if self.failpoint.action == "error":
            raise StoreError(f"{self.failpoint.name}: input/output error (injected)")
        back = self._halve(key)
        if self.failpoint.action == "hold":
            self.failpoint.released.wait()  # the suite ends a job that takes too long
        else:
            self._signal()
        for lost, data in back.items():
            self.inner.put_if_absent(lost, data)

    def _signal(self) -> None:
        # To this very thread: a signal to the process may find another one first, and this one would go on meanwhile.
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL if self.failpoint.action == "kill" else signal.SIGSTOP)

    def _halve(self, key: str) -> dict[str, bytes]:
        """Leave the store as a death in the middle of the operation would. What has to come back if the process goes on.

        A database whose manifest, which TensorStore writes last, is not there; a deletion that has deleted every other file.
        """
        if self.failpoint.name == "during-delete":
            for lost in [*self.inner.list(key)][::2]:
                self.inner.delete(lost)
        if self.failpoint.name not in ("during-data", "during-upload"):
            return {}
        manifest = self.inner.get(key + MANIFEST)
        self.inner.delete(key + MANIFEST)
        return {} if manifest is None else {key + MANIFEST: manifest}


def _generation_of(key: str) -> tuple[GenerationId | None, str]:
    """The generation that a key is about, and the rest of a key below its folder."""
    decided = names.parse_ledger_key(key.removesuffix(_ON_NODES) + ".json" if key.endswith(_ON_NODES) else key)
    if decided is not None:
        return decided[0], ""
    folder, _, below = key.partition("/")
    text, _, rest = below.partition("/")
    if folder + "/" != names.GENERATIONS:
        return None, ""
    try:
        return GenerationId.parse(text), rest
    except InvalidRecord:
        return None, ""


def failing(store: Store, failpoint: Failpoint | None, *, rank: int, processes: int, run: Store | None = None) -> Store:
    """`store`, with a failpoint if it is one of this rank; `run`: the run's store, if this is a node's. For the main thread."""
    if failpoint is None or failpoint.rank != rank:
        return store
    if failpoint.action == "hold":
        signal.signal(signal.SIGCONT, lambda *_: failpoint.released.set())
    return FailingStore(store, failpoint, processes, run)
