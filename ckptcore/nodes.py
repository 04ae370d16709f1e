"""Data on the nodes first: a rank's database on storage of its own, whole there before it is durable (spec: data on the nodes).

The protocol around it stays as it is. A node store has the keys of the run's store; what is in it can be uploaded at any time,
by whoever has it, and is the same whoever does it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorstore as ts
from blake3 import blake3

from ckptcore import names, records
from ckptcore.array_sinks import Sink, opener
from ckptcore.array_spec import MANIFEST, answer, write_error
from ckptcore.clock import Clock
from ckptcore.digests import ALGORITHM, digest
from ckptcore.errors import CallError, Damaged, DamageError, InvalidRecord, ProtocolViolation, StoreError, UnsafeStore
from ckptcore.events import log
from ckptcore.names import GenerationId
from ckptcore.records import Receipt
from ckptcore.store import Store, open_store
from ckptcore.storereads import bounded_bytes, has_size, record_bytes

MARKER = "node"
"""The key of what tells one node store from another."""
_MARKER = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Local:
    """Where a job's processes keep their data first, and how it gets to the run's store.

    `path`: a directory on storage of the node (NVMe, `/dev/shm`), the same text on every rank; processes of a node may share it.
    `upload_limit`: bytes a second that one process uploads at most. `copies`: 1 keeps what each rank saves on another node too
    until it is uploaded, over the network and without that limit, so that a node may be lost. Raises `CallError` for a path that
    is a URL, a limit that is no positive number, and other numbers of copies than 0 and 1.
    """

    path: str | os.PathLike[str]
    upload_limit: float | None = None
    copies: int = 0

    def __post_init__(self) -> None:
        if "://" in os.fspath(self.path):
            raise CallError(f"Local({os.fspath(self.path)!r}): expected a directory of this machine")
        if self.upload_limit is not None and not self.upload_limit > 0:
            raise CallError(f"Local(upload_limit={self.upload_limit!r}): expected a positive number of bytes a second")
        if type(self.copies) is not int or self.copies not in (0, 1):
            raise CallError(f"Local(copies={self.copies!r}): expected 0 or 1")


@dataclass(frozen=True)
class Held:
    """A rank's part of a generation that is whole on this node: the bytes of its receipt, and the receipt."""

    data: bytes
    receipt: Receipt

    @property
    def generation(self) -> GenerationId:
        """The generation."""
        return GenerationId.parse(self.receipt.generation)

    @property
    def prefix(self) -> str:
        """The prefix of its database, in both stores."""
        return names.database_prefix(self.generation, self.receipt.rank, self.receipt.database or "")

    @property
    def files(self) -> list[records.File]:
        """The files of its database, in the order in which they are copied: what all others are reached from comes last."""
        return sorted(self.receipt.files, key=lambda file: file.path == MANIFEST)

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.receipt.files)


@dataclass(frozen=True)
class NodeStore:
    """What a process keeps of one run on its node."""

    local: Local
    store: Store
    clock: Clock

    @classmethod
    def of(cls, local: Local, run_id: str, clock: Clock) -> NodeStore:
        """The part of a run. Nothing is made yet."""
        return cls(local, open_store(Path(local.path).expanduser().absolute() / run_id), clock)

    def keep(self, receipt: Receipt) -> Held:
        """Put the receipt beside its files, which are whole: from now on they count (N-3)."""
        data = records.encode(receipt)
        key = names.receipt_key(GenerationId.parse(receipt.generation), receipt.rank)
        if self.store.put_if_absent(key, data) != data:
            raise ProtocolViolation(
                f"{key} in {self.store.url} was written by somebody else: two processes act as rank {receipt.rank}, or the run"
                " was put back to an older state; stop one, or empty the node's directory"
            )
        return Held(data, receipt)

    def held(self) -> Iterator[Held]:
        """Everything that is whole here, oldest first (N-6). What is not is passed over."""
        for generation in self._generations():
            for receipt in self.store.children(names.receipts_prefix(generation)):
                found = self._held(names.receipts_prefix(generation) + receipt)
                if found is not None:
                    yield found

    def _held(self, key: str) -> Held | None:
        try:
            data = bounded_bytes(self.store, key)
            held = None if data is None else Held(data, records.decode(data, Receipt, key=key))
            return held if held is not None and all(self._is_whole(held, file) for file in held.receipt.files) else None
        except DamageError:
            return None
        except StoreError as error:  # what cannot be read of one part says nothing of the others
            log.warning("what this node holds of %s cannot be read, and is left alone: %s", key, error)
            return None

    def _is_whole(self, held: Held, file: records.File) -> bool:
        key = held.prefix + file.path
        if file.digest is None:
            return has_size(self.store, key, file.size)
        return digest(bounded_bytes(self.store, key, file.size) or b"") == file.digest

    def upload(self, store: Store, held: Held, check: Callable[[], object] = lambda: None) -> int:
        """Copy the files to the run's store and make them durable there (N-5). Returns how many bytes were copied.

        Files that are there with their size are not copied again: whoever writes below this prefix copies the same files, and
        TensorStore gives a file its name only when it is whole and durable. The receipt is the caller's to put.
        """
        if not held.receipt.files:
            return 0
        copied = 0
        target = answer(ts.KvStore.open(store.kvstore(held.prefix), context=store.context), held.prefix, write_error)
        started = self.clock.monotonic()
        for file in held.files:
            check()
            key = held.prefix + file.path
            if has_size(store, key, file.size):
                continue
            data = self._read(key)
            if data is None or len(data) != file.size:
                raise Damaged(f"{key} in {self.store.url} has changed: something else deletes or writes files of this node store")
            answer(target.write(file.path, data), key, write_error)
            copied += len(data)
            self._hold_back(copied, started)
        store.sync(held.prefix)
        return copied

    def _read(self, key: str) -> bytes | None:
        try:
            return self.store.get(key)
        except StoreError as error:
            raise Damaged(f"{key} on the node cannot be read: {error}") from error

    def _hold_back(self, copied: int, started: float) -> None:
        if self.local.upload_limit is not None:
            due = started + copied / self.local.upload_limit
            self.clock.sleep(max(0.0, due - self.clock.monotonic()))

    def marker(self) -> str:
        """What tells this node store from those of other nodes (N-12). Raises `UnsafeStore` if something else is there."""
        found = self.store.put_if_absent(MARKER, self.clock.nonce().encode()).decode("ascii", "replace")
        if not _MARKER.fullmatch(found):
            raise UnsafeStore(f"{MARKER} in {self.store.url} is not the marker of a node store; remove it")
        return found

    def room(self) -> int:
        """Bytes that are free where this node store lies."""
        found = os.statvfs(Path(self.local.path).expanduser())
        return found.f_bavail * found.f_frsize

    def take(self, held: Held, pieces: Callable[[int], Iterable[memoryview]]) -> None:
        """Write the files of another rank's part, each from `pieces(size)`, and make them durable here (N-14). `keep` comes next.

        Raises `Damaged` for a file of another digest than the receipt gives, and whatever `pieces` raises.
        """
        if not held.receipt.files:
            return
        sink_of = opener(self.store.kvstore(held.prefix), self.store.context)
        for file in held.files:
            self._take(sink_of(file.path), held.prefix + names.check_key(file.path), file, pieces(file.size))
        self.store.sync(held.prefix)

    def _take(self, sink: Sink, key: str, file: records.File, pieces: Iterable[memoryview]) -> None:
        hasher = blake3()
        try:
            for piece in pieces:
                if file.digest is not None:
                    hasher.update(piece)
                sink.write(piece)
            if file.digest not in (None, f"{ALGORITHM}:{hasher.hexdigest()}"):
                raise Damaged(f"{key}, as it came, differs from its digest")
            sink.finish()
        finally:
            sink.abandon()

    def discard(self, generation: GenerationId, rank: int) -> None:
        """Delete a rank's part of a generation, its own or a copy, that nobody needs here (N-10, N-16)."""
        self.store.delete(names.receipt_key(generation, rank))
        prefix = f"{names.state_prefix(generation)}ranks/"
        for name in self.store.children(prefix):
            if name.startswith(f"{rank:05d}-"):
                self.store.delete_prefix(f"{prefix}{name}/")

    def tidy(self, store: Store, incarnation: int, ranks: Collection[int]) -> None:
        """Delete what is decided, but for the newest commit, which a restart reads from here, and what older incarnations left.

        `incarnation` has settled those: what of them is not decided was never whole on the nodes. Of an aborted save that no
        newer commit has followed only the parts of `ranks` are deleted, which are this process's own and those that it keeps a
        copy of: others of this node may be writing theirs still (N-10).
        """
        kept = False
        for generation in sorted(self._generations(), reverse=True):
            decision = record_bytes(store, names.ledger_key(generation))
            # Records are canonical, and a quote inside of a string is escaped: this text is the field.
            commit = decision is not None and b'"decision":"commit"' in decision
            if commit and not kept:
                kept = True
            elif (decision is not None and kept) or generation.incarnation < incarnation:
                self.store.delete_prefix(names.generation_prefix(generation))
            elif decision is not None:
                for rank in ranks:
                    self.discard(generation, rank)

    def _generations(self) -> Iterator[GenerationId]:
        for name in self.store.children(names.GENERATIONS):
            try:
                yield GenerationId.parse(name)
            except InvalidRecord:
                continue


class Nearby:
    """A run's store, in which the databases of `held` are read from the node (N-9)."""

    def __init__(self, store: Store, node: Store, held: Sequence[Held]) -> None:
        self._store, self._node, self._held = store, node, [each for each in held if each.receipt.files]
        self.url, self.driver, self.context, self.limits = store.url, store.driver, store.context, store.limits
        self.put_if_absent, self.get, self.size = store.put_if_absent, store.get, store.size
        self.list, self.children, self.sync = store.list, store.children, store.sync
        self.delete, self.delete_prefix = store.delete, store.delete_prefix

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """As `Store.kvstore`, with a layer for each database that lies on the node."""
        base = self._store.kvstore(prefix)
        near = [held.prefix for held in self._held if held.prefix.startswith(prefix)]
        if not near:
            return base
        layers = [{"base": self._node.kvstore(key), "prefix": key.removeprefix(prefix)} for key in near]
        return {"driver": "kvstack", "layers": [{"base": base}, *layers]}


def nearby(store: Store, local: Local, run_id: str, generation: GenerationId, clock: Clock) -> Store | None:
    """`store` with what this node has of a commit in front of it; None if it has nothing."""
    node = NodeStore.of(local, run_id, clock)
    held = [each for each in node.held() if each.generation == generation]
    return Nearby(store, node.store, held) if any(each.receipt.files for each in held) else None
