"""What `device.py` does with JAX: on the devices of its default backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jaxckpt
from benchmarks.device_sections import LARGE, SMALL, Figures, Skipped, State, Wrong, kept_after
from jaxckpt.backend import JaxBackend

TINY = 1024
"""Elements of a small array."""


def open_device() -> Jax:
    """What there is. On the CPU two devices, so that a dry run has several."""
    jax.config.update("jax_num_cpu_devices", 2)
    return Jax(jax.local_devices()[0])


class Jax:
    """`benchmarks.device_sections.Device` for JAX."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.accelerated = device.platform != "cpu"
        self.title = f"{jax.local_device_count()} x {device.device_kind}, jax {jax.__version__}"

    def state(self, nbytes: int) -> State:
        """See `Device.state`. The small ones are on no device in particular, as what `jnp.ones` makes."""
        there = SingleDeviceSharding(self.device)
        large, small = _large(nbytes), {f"small{number:02}": (TINY,) for number in range(SMALL)}
        state: State = {
            name: jax.device_put(_random(number, shape, dtype), there)
            for number, (name, (shape, dtype)) in enumerate(large.items())
        }
        state |= {name: _random(number, shape, jnp.float32) for number, (name, shape) in enumerate(small.items())}
        return jax.block_until_ready(state)

    def host(self, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See `Device.host`. Of a copy: JAX keeps what is fetched of an array, and a save would find it there."""
        copies = jax.tree.map(jnp.copy, dict(state))
        return {name: np.array(array).view(f"u{array.dtype.itemsize}") for name, array in copies.items()}

    def down(self, nbytes: int) -> Callable[[], float]:
        """See `Device.down`."""
        there = jax.device_put(_random(0, (nbytes // 4,), jnp.float32), SingleDeviceSharding(self.device))
        return _copy(there, SingleDeviceSharding(self.device, memory_kind="pinned_host"))

    def up(self, nbytes: int) -> Callable[[], float]:
        """See `Device.up`."""
        here = SingleDeviceSharding(self.device, memory_kind="pinned_host")
        there = jax.device_put(_random(0, (nbytes // 4,), jnp.float32), here)
        return _copy(there, SingleDeviceSharding(self.device, memory_kind=self.device.default_memory().kind))

    def backend(self) -> JaxBackend:
        """See `Device.backend`."""
        return JaxBackend()

    def checkpointer(self, url: str, **options: Any) -> jaxckpt.Checkpointer:
        """See `Device.checkpointer`."""
        return jaxckpt.Checkpointer(url, on_preemption="ignore", **options)

    def open_run(self, url: str) -> Any:
        """See `Device.open_run`."""
        return jaxckpt.open_run(url)

    def overwrite(self, state: State) -> State:
        """See `Device.overwrite`: the arrays are donated to the step that makes the next ones."""
        made = _update(state)
        # On the CPU a snapshot holds the memory itself: an array that is donated meanwhile is copied.
        if self.accelerated and not all(array.is_deleted() for array in state.values()):
            raise Wrong("arrays that were donated are still there")
        return made

    def target(self, state: State) -> State:
        """See `Device.target`: abstract arrays, and of those on no device in particular the arrays."""
        return {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
            if array.committed
            else jnp.zeros_like(array)
            for name, array in state.items()
        }

    def check_place(self, like: State, found: State) -> None:
        """See `Device.check_place`."""
        for name, wanted in like.items():
            array = found[name]
            if array.sharding != wanted.sharding or array.committed != getattr(wanted, "committed", True):
                raise Wrong(f"{name} lies at {array.sharding}, committed: {array.committed}; wanted {wanted.sharding}")

    def step(self) -> Callable[[], None]:
        """See `Device.step`."""
        side, count = (4096, 8) if self.accelerated else (256, 2)
        one = _random(0, (side, side), jnp.float32)
        multiply = jax.jit(lambda matrix: [matrix @ (matrix + number) for number in range(count)])

        def step() -> None:
            jax.block_until_ready(multiply(one))

        return step

    def random(self, folder: str, timeout: float) -> Figures:
        """See `Device.random`: keys of two implementations, single ones and a batch."""
        keys = {
            "one": jax.random.key(1234),
            "rbg": jax.random.key(5, impl="rbg"),
            "batch": jax.random.split(jax.random.key(6), 4),
        }
        draw = jax.jit(lambda keys: [jax.random.bits(key, (1000,)) for key in (keys["one"], keys["rbg"], keys["batch"][2])])
        with self.checkpointer(folder) as saver:
            saver.save(1, {"rng": keys, "params": {"w": jnp.ones(1)}}, guarantee="weights").result(timeout)
        found = self.open_run(folder).restore(like=jax.eval_shape(lambda: keys), components="rng")
        if not all(map(np.array_equal, draw(keys), draw(found))):
            raise Wrong("random numbers of the restored keys differ")
        return {"keys": len(keys)}

    def pinned(self, state: State, folder: str, timeout: float) -> Figures:
        """See `Device.pinned`: arrays in pinned host memory come back there; nothing of a snapshot stays with the arrays."""
        nbytes = sum(array.nbytes for array in state.values())
        kinds = sorted(memory.kind for memory in self.device.addressable_memories())
        here = SingleDeviceSharding(self.device, memory_kind="pinned_host")
        offloaded = {"w": jax.device_put(_random(3, (1 << 20,), jnp.float32), here)}
        with self.checkpointer(folder) as saver:
            saver.save(1, {"params": offloaded}, guarantee="weights").result(timeout)
        target = {"w": jax.ShapeDtypeStruct(offloaded["w"].shape, jnp.float32, sharding=here)}
        found = self.open_run(folder).restore(like=target, components="params")
        if found["w"].sharding.memory_kind != "pinned_host" or not np.array_equal(found["w"], offloaded["w"]):
            raise Wrong(f"an array in pinned memory came back in {found['w'].sharding.memory_kind}, or with other values")
        return {
            "memory_kinds": " ".join(kinds),
            "offloaded": "came back in pinned_host",
            **kept_after(partial(self._save_once, state, folder + "-kept", timeout), nbytes=nbytes),
        }

    def spread(self, nbytes: int) -> tuple[State, State]:
        """See `Device.spread`: cut along the first axis, restored cut along the second."""
        devices = jax.local_devices()
        if len(devices) < 2:
            raise Skipped("one device only")
        mesh = Mesh(np.array(devices), ("all",))
        rows, columns = NamedSharding(mesh, P("all")), NamedSharding(mesh, P(None, "all"))
        large = {name: (_even(shape, len(devices)), dtype) for name, (shape, dtype) in _large(nbytes).items()}
        state = {name: jax.device_put(_random(number, *facts), rows) for number, (name, facts) in enumerate(large.items())}
        target = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=columns) for name, (shape, dtype) in large.items()}
        return jax.block_until_ready(state), target

    def _save_once(self, state: State, folder: str, timeout: float) -> None:
        with self.checkpointer(folder) as saver:
            saver.save(1, {"params": state}, guarantee="weights").result(timeout)


@partial(jax.jit, donate_argnums=0)
def _update(state: State) -> State:
    return {name: array * -1.5 + 0.25 for name, array in state.items()}


@partial(jax.jit, static_argnums=(1, 2))
def _drawn(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jax.random.uniform(key, shape, dtype)


def _random(seed: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return _drawn(jax.random.key(seed, impl="rbg"), shape, dtype)


def _large(nbytes: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of each large array: matrices, so that chunks of them are cut out of something."""
    each = nbytes // LARGE // 4
    kinds = [(jnp.bfloat16, 2 * each) if number % 6 == 5 else (jnp.float32, each) for number in range(LARGE)]
    return {f"large{number:02}": ((count // 64, 64), dtype) for number, (dtype, count) in enumerate(kinds)}


def _even(shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """The greatest shape within `shape` that can be cut into so many parts along each axis."""
    return tuple(extent // parts * parts for extent in shape)


def _copy(source: jax.Array, target: Any) -> Callable[[], float]:
    def copy() -> float:
        started = time.perf_counter()
        jax.device_put(source, target).block_until_ready()
        return time.perf_counter() - started

    return copy
