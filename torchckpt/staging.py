"""The snapshot: what this rank writes, in host memory that no later training step can change.

Everything is copied, since training changes tensors in place, and numpy arrays too. The copies go into one
buffer that is used again by the next save: fresh memory costs a page fault every 4 KiB, which takes longer than the
copy itself. Copies from a CUDA device are all started before the first is waited for, and the buffer is pinned so that they
are transfers without a detour; they run on a stream of their own, which begins after the work that the caller has queued.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ckptcore import dtypes
from ckptcore.backend import Staged
from ckptcore.errors import CallError, StagingLimit
from ckptcore.geometry import Box
from torchckpt import leaves, shards

_ALIGNED = 64
"""Every chunk begins at a multiple of this many bytes: a cache line, and a whole element of any dtype."""
_GROWTH = 1 << 20
"""The buffer's size is a multiple of this, so that states which grow by a few bytes do not need a new one."""
_LARGE = 1 << 18
"""From this many bytes on, how they are copied matters more than the calls around it."""


@dataclass(frozen=True)
class Source:
    """A leaf's array: a tensor, a `DTensor`, or a numpy array.

    `own` is the box that this rank holds, in global coordinates. `itemsize` is stored bytes an element.
    """

    data: torch.Tensor | np.ndarray | np.generic
    own: Box
    itemsize: int


class Slab:
    """One buffer of host memory, for one snapshot at a time.

    It grows when a snapshot needs more. The arrays of a snapshot lie in it: the next call of `stage` overwrites them, so
    whoever stages sees to it that the save before has ended.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._unpin: weakref.finalize | None = None

    def reserve(self, nbytes: int, *, pinned_by: Any = None) -> torch.Tensor:
        """At least `nbytes` bytes, the same memory as before if it suffices, pinned if `torch.cuda` is given as `pinned_by`.

        Raises `CallError` if it cannot be pinned.
        """
        if self._memory is None or self._memory.numel() < nbytes:
            self.release()
            with torch.inference_mode(mode=False):  # else the memory could not be written to outside of that mode
                self._memory = torch.empty(-(-nbytes // _GROWTH) * _GROWTH, dtype=torch.uint8, device="cpu")
        if pinned_by is not None and self._unpin is None and nbytes:
            self._unpin = _pin(self, self._memory, pinned_by.cudart())
        return self._memory

    def release(self) -> None:
        """Give the memory back as soon as no snapshot uses it any more."""
        if self._unpin is not None:
            self._unpin()
        self._memory = self._unpin = None


class Copier(Protocol):
    """Starts copies, then waits for all of them."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy `source` into `target`, host memory of its shape and dtype; `finish` says when it is there."""

    def finish(self) -> None:
        """Return when every copy is done."""


class PlainCopier:
    """Copies at once: from the CPU, and from devices without streams that are known here."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Copier.copy`. With one thread, as torchrun sets it, numpy is a third faster: it calls memcpy."""
        if torch.get_num_threads() == 1 and source.is_cpu and source.is_contiguous() and source.nbytes >= _LARGE:
            np.copyto(leaves.to_numpy(target), leaves.to_numpy(source))
        else:
            target.copy_(source)

    def finish(self) -> None:
        """See `Copier.finish`."""


class CudaCopier:
    """Copies on one stream a device, each of which waits for what the caller has queued on its own.

    Whoever calls keeps the sources until `finish`: then no stream has to be told of their memory.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._streams: dict[torch.device, Any] = {}

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Copier.copy`."""
        with self._cuda.stream(self._stream(source.device)):
            # Of a lazy one torch would copy the memory as it is, and conjugate or negate on the host before it has arrived.
            target.copy_(source.resolve_conj().resolve_neg(), non_blocking=True)

    def finish(self) -> None:
        """See `Copier.finish`."""
        for stream in self._streams.values():
            stream.synchronize()

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            stream = self._cuda.Stream(device)
            stream.wait_stream(self._cuda.current_stream(device))
            self._streams[device] = stream
        return self._streams[device]


class _Part(NamedTuple):
    """One array of the snapshot: a box of what this rank holds of a leaf, cut out, not yet copied. `dtype` is logical."""

    data: torch.Tensor | np.ndarray
    dtype: np.dtype
    nbytes: int

    def view(self, memory: np.ndarray, offset: int) -> np.ndarray:
        """Its copy, which begins at byte `offset` of `memory`."""
        return np.ndarray(tuple(self.data.shape), self.dtype, memory, offset)


def stage(
    slab: Slab, sources: Mapping[str, Source], own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None
) -> Staged:
    """Copy to `slab` the boxes `own` and the whole value of each leaf in `replicated` (see `Flat.stage`).

    Raises `StagingLimit`, before anything is copied, when that takes more than `limit` bytes, and `CallError` for a box
    of which this rank does not hold everything. What was staged in `slab` before is overwritten.
    """
    wanted = {**own, **{name: (sources[name].own,) for name in replicated}}
    parts = {name: _parts(name, sources[name], boxes) for name, boxes in wanted.items()}
    nbytes = sum(part.nbytes for cut in parts.values() for part in cut)
    _check_limit(nbytes, limit)
    copies = iter(_copied(slab, [part for cut in parts.values() for part in cut]))
    arrays = {name: [dtypes.to_stored(next(copies), where=name) for _ in cut] for name, cut in parts.items()}
    whole = {name: arrays[name][0] for name in replicated}
    chunks = {
        name: [whole[name][box.slices(sources[name].own.start)] for box in boxes] if name in whole else arrays[name]
        for name, boxes in own.items()
    }
    return Staged(chunks=chunks, whole=whole, nbytes=nbytes)


def _check_limit(nbytes: int, limit: int | None) -> None:
    if limit is not None and nbytes > limit:
        raise StagingLimit(
            f"rank {shards.rank()}: the snapshot takes {nbytes} bytes, max_staging_bytes allows {limit}. "
            f"Raise it to at least {nbytes}, or save fewer components at a time."
        )


def _parts(name: str, source: Source, boxes: Sequence[Box]) -> list[_Part]:
    """The boxes of one leaf, as views. A copy would repeat what is too small until it fits: so shapes are checked."""
    data = shards.local(source.data) if isinstance(source.data, torch.Tensor) else np.asarray(source.data)
    if boxes and tuple(data.shape) != tuple(map(sub, source.own.stop, source.own.start)):
        raise CallError(f"{name}: rank {shards.rank()} has shape {tuple(data.shape)}, which is not that of {source.own}")
    logical = leaves.dtype_name(data.dtype, name) if isinstance(data, torch.Tensor) else dtypes.name_of(data.dtype, where=name)
    dtype = dtypes.numpy_dtype(logical)
    views = [data if box == source.own else data[_inside(box, source, name)] for box in boxes]
    return [_Part(view, dtype, math.prod(view.shape) * source.itemsize) for view in views]


def _inside(box: Box, source: Source, name: str) -> tuple[slice, ...]:
    if not source.own.contains(box):
        raise CallError(f"{name}: rank {shards.rank()} holds {source.own}, of which {box} is no part")
    return box.slices(source.own.start)


def _copied(slab: Slab, parts: Sequence[_Part]) -> list[np.ndarray]:
    """The copies of `parts` in the slab, in the same order, in logical dtypes."""
    offsets = list(accumulate((-(-part.nbytes // _ALIGNED) * _ALIGNED for part in parts), initial=0))
    on_cuda = any(isinstance(part.data, torch.Tensor) and part.data.is_cuda for part in parts)
    memory = slab.reserve(offsets[-1], pinned_by=torch.cuda if on_cuda else None)
    places = list(zip(parts, offsets, strict=False))
    _copy_tensors(memory, [(part.data, offset) for part, offset in places if isinstance(part.data, torch.Tensor)])
    host = memory.numpy()
    copies = [part.view(host, offset) for part, offset in places]
    for part, copy in zip(parts, copies, strict=True):
        if isinstance(part.data, np.ndarray):
            np.copyto(copy, part.data, casting="equiv")
    return copies


def _copy_tensors(memory: torch.Tensor, tensors: Sequence[tuple[torch.Tensor, int]]) -> None:
    copiers = _copiers()
    views = _Views(memory)
    try:
        # Devices first: their transfers go on while the host copies its own.
        for tensor, offset in sorted(tensors, key=lambda pair: pair[0].is_cpu):
            copiers.get(tensor.device.type, copiers["cpu"]).copy(views.of(tensor, offset), tensor)
    finally:
        # Also after an error: no copy may still be writing when the slab is used again.
        for copier in copiers.values():
            copier.finish()


def _copiers() -> dict[str, Copier]:
    """By type of device; that of the CPU serves all others."""
    return {"cpu": PlainCopier(), "cuda": CudaCopier()}


class _Views:
    """Tensors over the slab. One step from a view of all of it in the right dtype: it takes a third of the usual three."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    def of(self, like: torch.Tensor, offset: int) -> torch.Tensor:
        """Contiguous memory from `offset` on, of the shape and dtype of `like`."""
        typed = self._typed.get(like.dtype)
        if typed is None:
            typed = self._typed[like.dtype] = self._memory.view(like.dtype)
        shape = tuple(like.shape)
        strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        return typed.as_strided(shape, strides, offset // like.itemsize)


def _pin(owner: Slab, memory: torch.Tensor, cudart: Any) -> weakref.finalize:
    """Pin memory until the result is called, or `owner` is gone. (torch's own pinned memory takes the next power of two.)"""
    address, nbytes = memory.data_ptr(), memory.numel()
    status = int(cudart.cudaHostRegister(address, nbytes, 1))  # 1: for every device
    if status:
        raise CallError(
            f"rank {shards.rank()}: {nbytes} bytes of host memory cannot be pinned for the snapshot (CUDA error {status}). "
            "Free host memory or raise the limit on locked memory (ulimit -l)."
        )
    unpin = weakref.finalize(owner, cudart.cudaHostUnregister, address)
    unpin.atexit = False
    return unpin
