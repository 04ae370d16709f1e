"""What `device.py` does with PyTorch: on the first CUDA device, or on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import torchckpt
from benchmarks.device_sections import LARGE, SMALL, Figures, Skipped, State, Wrong, kept_after
from torchckpt.backend import TorchBackend

NO_CUDA = "no CUDA device"
TINY = 1024
"""Elements of a small array."""


def open_device() -> Torch:
    """What there is."""
    return Torch("cuda:0" if torch.cuda.is_available() else "cpu")


class Torch:
    """`benchmarks.device_sections.Device` for PyTorch."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.accelerated = self.device.type == "cuda"
        count = torch.cuda.device_count() if self.accelerated else 1
        kind = torch.cuda.get_device_name(self.device) if self.accelerated else "cpu"
        self.title = f"{count} x {kind}, torch {torch.__version__}, CUDA {torch.version.cuda}"

    def state(self, nbytes: int, devices: tuple[torch.device, ...] = ()) -> State:
        """See `Device.state`. With several devices they take turns."""
        places = devices or (self.device,)
        each = nbytes // LARGE // 4
        state: State = {}
        for number in range(LARGE):
            dtype, count = (torch.bfloat16, 2 * each) if number % 6 == 5 else (torch.float32, each)
            # A matrix, so that chunks of it are cut out of something.
            shape = (count // 64, 64)
            state[f"large{number:02}"] = torch.rand(shape, device=places[number % len(places)], dtype=dtype)
        for number in range(SMALL):
            state[f"small{number:02}"] = torch.rand(TINY, device=places[number % len(places)])
        self._wait()
        return state

    def host(self, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See `Device.host`."""
        self._wait()
        integers = {2: torch.int16, 4: torch.int32}
        views = {name: tensor.detach().view(integers[tensor.element_size()]) for name, tensor in state.items()}
        return {name: view.cpu().numpy().copy().view(f"u{view.element_size()}") for name, view in views.items()}

    def down(self, nbytes: int) -> Callable[[], float]:
        """See `Device.down`."""
        there = torch.ones(nbytes, dtype=torch.uint8, device=self.device)
        return self._copy(self._host_buffer(nbytes), there)

    def up(self, nbytes: int) -> Callable[[], float]:
        """See `Device.up`."""
        there = torch.ones(nbytes, dtype=torch.uint8, device=self.device)
        return self._copy(there, self._host_buffer(nbytes))

    def backend(self) -> TorchBackend:
        """See `Device.backend`."""
        return TorchBackend()

    def checkpointer(self, url: str, **options: Any) -> torchckpt.Checkpointer:
        """See `Device.checkpointer`."""
        return torchckpt.Checkpointer(url, on_preemption="ignore", **options)

    def open_run(self, url: str) -> Any:
        """See `Device.open_run`."""
        return torchckpt.open_run(url)

    def overwrite(self, state: State) -> State:
        """See `Device.overwrite`: in place."""
        before = {name: tensor.data_ptr() for name, tensor in state.items()}
        with torch.no_grad():
            for tensor in state.values():
                tensor.mul_(-1.5).add_(0.25)
        if before != {name: tensor.data_ptr() for name, tensor in state.items()}:
            raise Wrong("a tensor that was changed in place lies elsewhere")
        return state

    def target(self, state: State) -> State:
        """See `Device.target`."""
        return {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def check_place(self, like: State, found: State) -> None:
        """See `Device.check_place`: the tensors themselves were filled."""
        if any(found[name] is not tensor or found[name].device != tensor.device for name, tensor in like.items()):
            raise Wrong("the tensors that were given were not filled in place")

    def step(self) -> Callable[[], None]:
        """See `Device.step`."""
        side, count = (4096, 8) if self.accelerated else (256, 2)
        one, other = (torch.rand(side, side, device=self.device) for _ in range(2))

        def step() -> None:
            for _ in range(count):
                torch.mm(one, other)
            self._wait()

        return step

    def random(self, folder: str, timeout: float) -> Figures:
        """See `Device.random`: the generators of the CPU and of every CUDA device."""
        devices = [torch.device("cpu"), *(torch.device("cuda", number) for number in range(self._count()))]
        torch.manual_seed(1234)

        def draw() -> list[list[float]]:
            return [torch.rand(1000, device=device).tolist() for device in devices]

        draw()  # so that no generator stands where its seed has put it
        component = torchckpt.rng_state()
        with self.checkpointer(folder) as saver:
            saver.save(1, {"rng": component, "params": {"w": torch.ones(1)}}, guarantee="weights").result(timeout)
        expected = [draw(), draw()]
        torch.manual_seed(1)
        self.open_run(folder).restore(like=component, components="rng")
        if [draw(), draw()] != expected:
            raise Wrong("random numbers after the restore differ from those after the save")
        return {"generators": len(devices), "cuda": f"{self._count()} generators" if self._count() else f"skipped: {NO_CUDA}"}

    def pinned(self, state: State, folder: str, timeout: float) -> Figures:
        """See `Device.pinned`: the buffer is pinned, is one from save to save, and goes with the checkpointer."""
        if not self.accelerated:
            raise Skipped(NO_CUDA)
        nbytes = sum(tensor.nbytes for tensor in state.values())
        seen: list[tuple[int, int, bool]] = []
        blocked: list[float] = []
        with self.checkpointer(folder) as saver:
            for step in range(1, 4):
                started = time.perf_counter()
                handle = saver.save(step, {"params": state}, guarantee="weights")
                blocked.append(time.perf_counter() - started)
                seen.append(_buffer(saver))
                handle.result(timeout)
        if not all(pinned for _, _, pinned in seen):
            raise Wrong(f"the snapshot's memory is not pinned: {seen}")
        if len(set(seen)) != 1:
            raise Wrong(f"the snapshot's memory is not used again: {seen}")
        return {
            "pinned_bytes": seen[0][1],
            "over_state": seen[0][1] / nbytes,
            "first_blocked_seconds": blocked[0],
            "blocked_seconds": statistics.median(blocked[1:]),
            **kept_after(lambda: self._save_once(state, folder + "-kept", timeout), nbytes=nbytes),
        }

    def spread(self, nbytes: int) -> tuple[State, State]:
        """See `Device.spread`: each tensor on one device, restored to the next one."""
        devices = tuple(torch.device("cuda", number) for number in range(self._count()))
        if len(devices) < 2:
            raise Skipped("one CUDA device only" if devices else NO_CUDA)
        state = self.state(nbytes, devices)
        following = {device: devices[(number + 1) % len(devices)] for number, device in enumerate(devices)}
        return state, {name: torch.zeros_like(tensor, device=following[tensor.device]) for name, tensor in state.items()}

    def _save_once(self, state: State, folder: str, timeout: float) -> None:
        with self.checkpointer(folder) as saver:
            saver.save(1, {"params": state}, guarantee="weights").result(timeout)

    def _host_buffer(self, nbytes: int) -> torch.Tensor:
        return torch.ones(nbytes, dtype=torch.uint8, pin_memory=self.accelerated)

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> Callable[[], float]:
        def copy() -> float:
            self._wait()
            started = time.perf_counter()
            target.copy_(source, non_blocking=True)
            self._wait()
            return time.perf_counter() - started

        return copy

    def _count(self) -> int:
        return torch.cuda.device_count() if self.accelerated else 0

    def _wait(self) -> None:
        for number in range(self._count()):
            torch.cuda.synchronize(number)


def _buffer(saver: torchckpt.Checkpointer) -> tuple[int, int, bool]:
    """Address and size of the memory that snapshots lie in, and whether it is pinned."""
    backend: Any = saver._backend  # noqa: SLF001 - nothing public tells
    memory = backend._slab.reserve(0)  # noqa: SLF001
    return memory.data_ptr(), memory.numel(), memory.is_pinned()
