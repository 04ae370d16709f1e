"""The snapshot: what this rank writes, in host memory that no later training step can change.

Where the bytes come from decides how they are made safe:

- numpy memory may be changed in place, so it is copied;
- device memory is copied to the host, all transfers started before the first is waited for;
- memory of JAX's CPU backend is held by a numpy view without a copy. While the view lives,
  JAX does not reuse the buffer: donating the array copies. The view is held, never the shard
  object, whose memory a donation takes away. It cannot be told whether it is foreign memory, an
  aligned numpy array that `jax.device_put` has taken as it is: writing to that shows in the save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from ckptcore import dtypes
from ckptcore.backend import Staged
from ckptcore.errors import StagingLimit
from ckptcore.geometry import Box
from jaxckpt import shards

Fetch = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Source:
    """A leaf's array. `local`: this rank holds the whole value by itself. `itemsize`: stored bytes an element."""

    data: jax.Array | np.ndarray
    local: bool
    itemsize: int


def stage(
    sources: Mapping[str, Source], own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None
) -> Staged:
    """Stage the boxes `own` and the whole value of each leaf in `replicated` (see `Flat.stage`).

    Raises `StagingLimit`, before anything is staged, when that takes more than `limit` bytes.
    """
    names = {**dict.fromkeys(own), **dict.fromkeys(replicated)}
    nbytes = sum(_needed(sources[name], own.get(name, ())) for name in names)
    _check_limit(nbytes, limit)
    local = {name: _fetch_whole(sources[name]) for name in names if sources[name].local}
    parts = {name: _fetch_parts(sources[name], own[name]) for name in own if not sources[name].local}
    # Every transfer is on its way: only now wait.
    whole = {name: dtypes.to_stored(fetch(), where=name) for name, fetch in local.items()}
    chunks: dict[str, Sequence[np.ndarray]] = {
        name: [dtypes.to_stored(fetch(), where=name) for fetch in fetches] for name, fetches in parts.items()
    }
    for name in own:
        if name in whole:
            chunks[name] = [whole[name][box.slices()] for box in own[name]]
    return Staged(chunks=chunks, whole={name: whole[name] for name in replicated}, nbytes=nbytes)


def _needed(source: Source, own: Sequence[Box]) -> int:
    elements = source.data.size if source.local else sum(box.size for box in own)
    return elements * source.itemsize


def _check_limit(nbytes: int, limit: int | None) -> None:
    if limit is not None and nbytes > limit:
        raise StagingLimit(
            f"rank {jax.process_index()}: the snapshot takes {nbytes} bytes, max_staging_bytes allows {limit}. "
            f"Raise it to at least {nbytes}, or save fewer components at a time."
        )


def _fetch_whole(source: Source) -> Fetch:
    """The whole value of a leaf that this rank holds by itself."""
    data = source.data
    if isinstance(data, np.ndarray):
        copied = np.array(data, dtype=data.dtype.newbyteorder("="), order="C", copy=True)
        return lambda: copied
    shard = data.addressable_shards[0]
    if tuple(shard.data.shape) == tuple(data.shape):
        return _fetch(shard.data)
    return lambda: np.array(_again(data, [shard.data for shard in data.addressable_shards]))


def _fetch_parts(source: Source, own: Sequence[Box]) -> list[Fetch]:
    """One fetch for each box, each from the one shard that holds it."""
    data = source.data
    if isinstance(data, np.ndarray) or not own:
        return []
    held = {shards.box(shard.index, data.shape): shard.data for shard in data.addressable_shards}
    if len(own) == 1 and own[0] in held:
        return [_fetch(held[own[0]])]  # the rule: a shard that is one chunk
    homes = [next(box for box in held if box.contains(cell)) for cell in own]
    wanted: dict[Box, int] = {}
    for home, cell in zip(homes, own, strict=True):
        wanted[home] = wanted.get(home, 0) + cell.size
    complete = {home: _fetch(held[home]) for home, size in wanted.items() if _take_whole(held[home], size)}
    return [
        _cut(complete[home], cell.slices(home.start)) if home in complete else _fetch(_slice(held[home], cell, home))
        for home, cell in zip(homes, own, strict=True)
    ]


def _take_whole(part: jax.Array, size: int) -> bool:
    """Whether to take a shard whole: it costs nothing on the CPU, elsewhere only if all of it is wanted."""
    return _on_cpu(part) or size == part.size


def _slice(part: jax.Array, cell: Box, home: Box) -> jax.Array:
    """A cell, cut out on the device. Starts are arguments, so that cells of one shape share one compilation."""
    start = [np.int32(mine - base) for mine, base in zip(cell.start, home.start, strict=True)]
    return jax.lax.dynamic_slice(part, start, cell.shape)


def _cut(fetch: Fetch, slices: tuple[slice, ...]) -> Fetch:
    return lambda: fetch()[slices]


def _fetch(part: jax.Array) -> Fetch:
    """Start the transfer of a single-device array; the result gives its host memory, the same each time."""
    if _on_cpu(part):
        view = np.asarray(part)
        return lambda: view
    part = _again(part, [part])
    part.copy_to_host_async()
    fetched: list[np.ndarray] = []

    def fetch() -> np.ndarray:
        if not fetched:
            host = np.asarray(part)
            # Host memory kinds may be given out without a copy, and donated like any other.
            fetched.append(host if shards.memory_kind(part.sharding) is None else host.copy())
        return fetched[0]

    return fetch


def _again(array: jax.Array, parts: list[jax.Array]) -> jax.Array:
    """An array of its own over the same memory: what JAX has fetched of an array it keeps for as long as that array lives."""
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts, dtype=array.dtype)


def _on_cpu(part: jax.Array) -> bool:
    return next(iter(part.devices())).platform == "cpu"
