"""One process's database of chunks: written without copies, digested on the way (spec: arrays).

Chunks go into transactions of about `BATCH_BYTES`. Each is committed as soon as it is full, so
that the disk works while the next is digested, and its metadata and small chunks cost no writes
of their own. Memory that the caller staged is referenced, not copied; what has to be copied
first (chunks that are not contiguous or need padding) is bounded by the store's `bytes_in_flight`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorstore as ts

from ckptcore import dtypes, records
from ckptcore.array_spec import ANSWER_TIMEOUT, MANIFEST, Piece, StoredArray, answer, database, write_error
from ckptcore.digests import digest
from ckptcore.errors import CallError, StoreError
from ckptcore.store import Store
from ckptcore.workers import Workers

BATCH_BYTES = 128 << 20
BATCH_WRITES = 8192
INLINE_BYTES = 64 << 10
"""Below this a digest takes less time than handing it to a thread."""


@dataclass
class _Batch:
    """Writes that are committed together. `held` counts bytes that exist only for them."""

    transaction: ts.Transaction = field(default_factory=lambda: ts.Transaction(atomic=False))
    arrays: dict[str, None] = field(default_factory=dict)
    writing: list[ts.Future[Any]] = field(default_factory=list)
    nbytes: int = 0
    held: int = 0

    def full(self, most: int) -> bool:
        """Whether it is time to commit: it holds `most` bytes of its own, or is as large as a batch should be."""
        return self.nbytes >= BATCH_BYTES or len(self.writing) >= BATCH_WRITES or self.held >= most

    def describe(self) -> str:
        names = list(self.arrays)
        return f"array {names[0]!r}" if len(names) == 1 else f"{len(names)} arrays from {names[0]!r} to {names[-1]!r}"


class DatabaseWriter:
    """Writes the database below `prefix`, which belongs to this process alone. Used from one thread.

    Arrays given to `add` must not change until `finish` or `close` has returned. `streamed`: they exist only to
    be written, so their memory is bounded too; an array may be added in several parts. After an
    error the database is of no use: its process delivers a failed receipt.
    """

    def __init__(self, store: Store, prefix: str, *, streamed: bool = False) -> None:
        self._store = store
        self._prefix = prefix
        self._streamed = streamed
        self._spec = database(store, prefix)
        self._kvstore: ts.KvStore | None = None
        self._most = store.limits.bytes_in_flight // 2
        """Half for the batch that fills, half for those that are being written."""
        self._pool = Workers(store.limits.threads, "digest")
        self._batch = _Batch()
        self._flying: deque[tuple[_Batch, ts.Future[Any]]] = deque()
        self._closed = False

    def add(self, array: StoredArray, chunks: Mapping[int, np.ndarray]) -> dict[int, str]:
        """Start writing chunks of `array`: chunk index → its elements, in the stored dtype and the cell's shape.

        Returns the BLAKE3 digest of each chunk's bytes (see `ckptcore.dtypes`). With no chunks
        only the metadata is written. Raises `StoreFull`, `StoreUnavailable` or `StoreError` for
        this or an earlier array, `CallError` for a chunk that does not fit.
        """
        if self._closed:
            raise CallError("the database is finished: nothing can be added to it")
        try:
            return self._add(array, chunks)
        except (ValueError, OSError, NotImplementedError) as error:
            self.close()
            raise write_error(error, f"array {array.name!r} in {self._prefix}") from error
        except BaseException:
            self.close()
            raise

    def finish(self) -> list[records.File]:
        """Wait until everything is durable; return the database's files, `manifest.ocdbt` with its digest.

        Nothing was added: no files. Raises what `add` raises.
        """
        if self._closed:
            raise CallError("the database is finished already, or has failed")
        try:
            self._flush()
            self._drain()
        finally:
            self.close()
        if self._kvstore is None:
            return []
        self._store.sync(self._prefix)
        return [self._file(key) for key in self._store.list(self._prefix)]

    def close(self) -> None:
        """Give the database up: wait for what is under way, whatever becomes of it, and drop the rest."""
        self._closed = True
        with suppress(TimeoutError):  # then the store is dead, and the others need not be waited for
            for _, committing in self._flying:
                committing.exception(timeout=ANSWER_TIMEOUT)
        self._flying.clear()
        self._pool.close()

    def _add(self, array: StoredArray, chunks: Mapping[int, np.ndarray]) -> dict[int, str]:
        opened: dict[str, ts.TensorStore] = {}
        digests: dict[int, str | Future[str]] = {}
        if not chunks:
            for piece in array.pieces():
                self._open(array, piece)
        for chunk, given in chunks.items():
            data = _checked(array, chunk, given)
            piece = array.piece(chunk)
            if piece.prefix not in opened:
                opened[piece.prefix] = self._open(array, piece)
            self._write(opened[piece.prefix], array, chunk, data, copied=self._streamed or data is not given)
            digests[chunk] = digest(data) if data.nbytes < INLINE_BYTES else self._pool.submit(digest, data)
        return {chunk: found if isinstance(found, str) else found.result() for chunk, found in digests.items()}

    def _open(self, array: StoredArray, piece: Piece) -> ts.TensorStore:
        """Write a zarr array's metadata and open it, without waiting for either."""
        if self._kvstore is None:
            opening = ts.KvStore.open(self._spec, context=self._store.context)
            self._kvstore = answer(opening, f"database {self._prefix}", write_error)
        self._batch.arrays[array.name] = None
        root = self._kvstore.with_transaction(self._batch.transaction)
        self._batch.writing.append(root.write(piece.metadata_key, piece.metadata_bytes))
        spec = {
            "driver": "zarr3",
            "kvstore": {**self._spec, "path": piece.prefix},
            "metadata": piece.metadata,
            "open": True,
            "assume_metadata": True,
            # A chunk of zeros is stored like any other: an absent one is an error, never zeros.
            "store_data_equal_to_fill_value": True,
        }
        return answer(ts.open(spec, context=self._store.context), f"array {array.name!r} in {self._prefix}", write_error)

    def _write(self, target: ts.TensorStore, array: StoredArray, chunk: int, data: np.ndarray, *, copied: bool) -> None:
        batch, size = self._batch, array.chunk_bytes(chunk)
        batch.arrays[array.name] = None
        batch.nbytes += size
        batch.held += data.nbytes * copied + size * (data.nbytes < size)
        place = array.grid.cell(chunk).slices(array.piece(chunk).origin)
        writing = target.with_transaction(batch.transaction)[place].write(data, can_reference_source_data_indefinitely=True)
        batch.writing.append(writing.copy)
        if batch.full(self._most):
            self._flush()

    def _flush(self) -> None:
        batch, self._batch = self._batch, _Batch()
        if batch.writing:
            self._flying.append((batch, self._commit(batch)))
        while self._flying and (self._flying[0][1].done() or sum(flying.held for flying, _ in self._flying) > self._most):
            self._land()

    def _commit(self, batch: _Batch) -> ts.Future[Any]:
        """Start to commit a batch, after all its writes have become part of the transaction."""
        what = f"{batch.describe()} in {self._prefix}"
        for writing in batch.writing:
            answer(writing, what, write_error)
        batch.writing.clear()
        return batch.transaction.commit_async()

    def _land(self) -> None:
        """Wait for the oldest commit. Raises its error."""
        batch, committing = self._flying.popleft()
        answer(committing, f"{batch.describe()} in {self._prefix}", write_error)

    def _drain(self) -> None:
        """Wait for all commits. Raises the first error."""
        while self._flying:
            self._land()

    def _file(self, key: str) -> records.File:
        path = key.removeprefix(self._prefix)
        data = self._store.get(key) if path == MANIFEST else None
        size = self._store.size(key) if path != MANIFEST else None if data is None else len(data)
        if size is None:
            raise StoreError(f"{key} vanished right after it was written: something else deletes files of this run")
        return records.File(path=path, size=size, digest=None if data is None else digest(data))


def _checked(array: StoredArray, chunk: int, data: np.ndarray) -> np.ndarray:
    """The chunk's elements, contiguous. Raises `CallError` when they are not what the layout says."""
    shape, dtype = array.grid.cell(chunk).shape, dtypes.numpy_dtype(array.dtype)
    data = np.asarray(data)  # indexing a 0-d array gives a numpy scalar
    if data.shape != shape or data.dtype != dtype:
        raise CallError(
            f"{array.describe(chunk)} was staged as {data.dtype}{list(data.shape)}, its layout says {dtype}{list(shape)}"
        )
    return data if data.flags.c_contiguous else np.ascontiguousarray(data)
