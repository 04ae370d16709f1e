"""Restored leaves in the form of the target's: device arrays, numpy arrays, Python values.

A restored array is bit for bit what was saved, `weak_type` included (a strong float32 in the
place of a weak one would turn bfloat16 arithmetic into float32), and lies where the target's
sharding says. Memory handed over by the core belongs to the leaf: JAX may use it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ckptcore import dtypes
from ckptcore.backend import Found, Wanted
from ckptcore.errors import CallError, StructureMismatch
from ckptcore.geometry import Box
from ckptcore.names import show_path
from jaxckpt import shards
from jaxckpt.leaves import is_key

Boxes = Mapping[Box, np.ndarray]
Ready = Callable[[], Any]
"""Gives a leaf, once what it is made of is on the devices."""


@dataclass
class Transfers:
    """Host arrays for the devices. All go in one call: for small ones the call is what takes time."""

    values: list[np.ndarray] = field(default_factory=list)
    places: list[Sharding | None] = field(default_factory=list)
    made: dict[int, jax.Array] = field(default_factory=dict)
    boxes: Callable[[Sharding, tuple[int, ...]], Mapping[Any, Box]] = field(default_factory=lambda: cache(shards.boxes))
    """As `shards.boxes`. Many leaves share sharding and shape; on many devices the boxes are what takes time."""

    def add(self, value: np.ndarray, place: Sharding | None) -> Callable[[], jax.Array]:
        """Send `value` with the others to `place`; None: to JAX's default device, uncommitted."""
        number = len(self.values)
        self.values.append(value)
        self.places.append(place)
        return lambda: self.made.pop(number)

    def start(self) -> None:
        """Send them all."""
        free = [number for number, place in enumerate(self.places) if place is None]
        bound = [number for number, place in enumerate(self.places) if place is not None]
        self.made.update(zip(free, jax.device_put([self.values[number] for number in free]), strict=True))
        values, places = [self.values[number] for number in bound], [self.places[number] for number in bound]
        self.made.update(zip(bound, jax.device_put(values, places), strict=True))
        self.values.clear()


def place(leaf: Any, wanted: Wanted, found: Found, transfers: Transfers) -> Ready:
    """What gives, after the transfers, the restored leaf for `leaf` of the target: an array, abstract array, number, or value."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return _device_leaf(leaf, wanted, found, transfers)
    if isinstance(leaf, np.ndarray | np.generic):
        return lambda: _host_leaf(leaf, wanted, found)
    if found.boxes is None:
        return lambda: found.value
    value = next(iter(found.boxes.values()))
    return lambda: value.tobytes() if isinstance(leaf, bytes) else type(leaf)(value[()])


def keep(leaf: Any, wanted: Wanted) -> Any:
    """The target's own leaf, for one that the checkpoint lacks. Raises `StructureMismatch` for an abstract one."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        where = show_path(wanted.component, wanted.path)
        raise StructureMismatch(
            "the target cannot fill what the checkpoint lacks", [f"{where}: only an abstract array; give a real one to keep"]
        )
    return leaf


def device_sharding(leaf: jax.Array | jax.ShapeDtypeStruct, where: str) -> Sharding | None:
    """Where a leaf of the target (for a typed key: its key data) is to lie; None for JAX's default device.

    An array that is not committed to a device gives None, and is restored uncommitted, so that
    it can be used beside arrays on any mesh. Raises `CallError` for an abstract mesh.
    """
    sharding = leaf.sharding
    if sharding is None or (isinstance(leaf, jax.Array) and not getattr(leaf, "committed", True)):
        return None
    if isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, jax.sharding.Mesh):
        raise CallError(f"{where}: the target's sharding has an abstract mesh; give one with devices")
    if is_key(leaf) and isinstance(sharding, NamedSharding):
        # The key data has one more dimension, of which every device holds all.
        spec = (*sharding.spec, *(None,) * (leaf.ndim - len(sharding.spec)), None)
        return NamedSharding(sharding.mesh, PartitionSpec(*spec), memory_kind=sharding.memory_kind)
    return sharding


def _device_leaf(leaf: jax.Array | jax.ShapeDtypeStruct, wanted: Wanted, found: Found, transfers: Transfers) -> Ready:
    where = show_path(wanted.component, wanted.path)
    boxes, weak = found.boxes, found.weak_type
    if boxes is None:
        number = _number(found.value, wanted)
        boxes, weak = dict.fromkeys(wanted.boxes, number), bool(getattr(leaf, "weak_type", False))
    sharding = device_sharding(leaf, where)
    if sharding is None:
        array = transfers.add(boxes[wanted.boxes[0]], _default_place(found.memory_kind))
    else:
        array = _sharded_array(boxes, _shape(wanted), sharding, dtypes.numpy_dtype(wanted.dtype or ""), transfers)
    if wanted.prng_impl is not None:
        return lambda: jax.random.wrap_key_data(array(), impl=wanted.prng_impl)
    return (lambda: _weak(array())) if weak else array


def _sharded_array(
    boxes: Boxes, shape: tuple[int, ...], sharding: Sharding, dtype: Any, transfers: Transfers
) -> Callable[[], jax.Array]:
    held = transfers.boxes(sharding, shape)
    parts: Sequence[Callable[[], jax.Array]] = [
        transfers.add(boxes[held[device]], SingleDeviceSharding(device, memory_kind=sharding.memory_kind))
        for device in held
        if device in sharding.addressable_devices
    ]
    return lambda: jax.make_array_from_single_device_arrays(shape, sharding, [part() for part in parts], dtype=dtype)


def _default_place(memory_kind: str | None) -> Sharding | None:
    device = jax.local_devices()[0]
    if memory_kind is None or memory_kind not in {memory.kind for memory in device.addressable_memories()}:
        return None
    return SingleDeviceSharding(device, memory_kind=memory_kind)


def _weak(array: jax.Array) -> jax.Array:
    """`array` with a weak type. No public function makes one from bytes for every shape and sharding."""
    aval: Any = array.aval
    parts = [shard.data for shard in array.addressable_shards]
    make: Any = type(array)
    return make(aval.update(weak_type=True), array.sharding, parts, committed=array.committed)


def _host_leaf(leaf: np.ndarray | np.generic, wanted: Wanted, found: Found) -> Any:
    array = _number(found.value, wanted) if found.boxes is None else next(iter(found.boxes.values()))
    if isinstance(leaf, np.generic):
        return array[()]
    array = array.astype(leaf.dtype, copy=False)  # the same type, perhaps in the other byte order
    return array if array.flags.writeable else array.copy()


def _number(value: Any, wanted: Wanted) -> np.ndarray:
    """A stored Python number as a 0-d array of the target's dtype, which holds it (`ckptcore.match`)."""
    with np.errstate(over="ignore"):  # a cast that the caller asked for
        return np.array(value).astype(dtypes.numpy_dtype(wanted.dtype or ""))


def _shape(wanted: Wanted) -> tuple[int, ...]:
    return () if wanted.shape is None else wanted.shape
