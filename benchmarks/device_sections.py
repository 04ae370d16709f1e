"""The sections of `device.py`: the same for both frameworks, whose parts `device_jax` and `device_torch` know."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.memory import Peak, resident
from ckptcore.backend import Backend
from ckptcore.geometry import CHUNK_BYTES
from ckptcore.keep import Keep
from ckptcore.layout import make_plan

State = dict[str, Any]
"""Name → array on the device."""
Figures = dict[str, Any]

LARGEST = 2 << 30
"""Bytes of the state on an accelerator, where host memory has room for ten of them."""
DRY = 8 << 20
"""Bytes of the state on a CPU."""
ROUNDS = 3
STEPS = 30
"""Steps that are timed without a save."""
LARGE = 24
SMALL = 48


class Skipped(Exception):
    """Why a section does not run here."""


class Wrong(Exception):
    """What was saved or restored is not what it has to be."""


class Device(Protocol):
    """One framework on the device that it finds, or on the CPU."""

    title: str
    accelerated: bool

    def state(self, nbytes: int) -> State:
        """`LARGE` arrays of together `nbytes`, some of them bfloat16, and `SMALL` tiny ones, random and ready."""
        ...

    def host(self, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copies of the bits in host memory, as unsigned integers."""
        ...

    def down(self, nbytes: int) -> Callable[[], float]:
        """A function that copies so many bytes from the device to pinned memory in one piece; it returns seconds."""
        ...

    def up(self, nbytes: int) -> Callable[[], float]:
        """The same from pinned memory to the device."""
        ...

    def backend(self) -> Backend:
        """A backend of its own."""
        ...

    def checkpointer(self, url: str, **options: Any) -> Any:
        """The framework's `Checkpointer`."""
        ...

    def open_run(self, url: str) -> Any:
        """The framework's `open_run`."""
        ...

    def overwrite(self, state: State) -> State:
        """Change every value, at the same memory if the framework can, and do not wait. Raises `Wrong` if the memory stays."""
        ...

    def target(self, state: State) -> State:
        """What to restore such a state into, on the device."""
        ...

    def check_place(self, like: State, found: State) -> None:
        """Raise `Wrong` unless each array lies where the target said."""
        ...

    def step(self) -> Callable[[], None]:
        """A training step's worth of matrix products that returns when it is done."""
        ...

    def random(self, folder: str, timeout: float) -> Figures:
        """Save and restore random generators; raise `Wrong` unless they go on alike."""
        ...

    def pinned(self, state: State, folder: str, timeout: float) -> Figures:
        """What host memory the saves use. Raises `Skipped` or `Wrong`."""
        ...

    def spread(self, nbytes: int) -> tuple[State, State]:
        """A state over all devices, and the target of a restore that lies otherwise. Raises `Skipped` for one device."""
        ...


@dataclass
class Clock:
    """The time that is left of a limit in seconds."""

    limit: float

    def __post_init__(self) -> None:
        self._started = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds, at least 1, so that it can be a time-out."""
        return max(1.0, self._started + self.limit - time.monotonic())


@dataclass(frozen=True)
class Bench:
    """What a section works with. `nbytes`: the size of the state."""

    device: Device
    folder: Path
    clock: Clock
    nbytes: int

    def run_url(self, name: str) -> str:
        """A new folder for a run; what lay in it before is gone."""
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        return str(place)


def run(device: Device, folder: Path, clock: Clock) -> Iterator[tuple[str, Figures]]:
    """Run each section for which there is time, print its line, and yield its name with its figures.

    A section that fails has an `error`, one that does not run says why under `skipped`; the others run all the same.
    """
    bench = Bench(device, folder, clock, min(LARGEST, _free() // 10) if device.accelerated else DRY)
    for section, seconds in SECTIONS.items():
        name = section.__name__.replace("_", " ")
        outcome = _outcome(section, bench, seconds if device.accelerated else 0.0)
        print(f"{name:<18}{_line(outcome, dry=not device.accelerated)}", flush=True)
        yield name, outcome
        gc.collect()


def _outcome(section: Callable[[Bench], Figures], bench: Bench, seconds: float) -> Figures:
    if bench.clock.left < max(seconds, 1.5):
        return {"skipped": "out of time"}
    started = time.monotonic()
    try:
        figures = section(bench)
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is shown, and the other sections run
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return figures | {"section_seconds": time.monotonic() - started}


def _line(outcome: Figures, *, dry: bool) -> str:
    """For people. In a dry run without floors and ratios to them: there is no copy to a device that they could be of."""
    if "skipped" in outcome:
        return f"skipped: {outcome['skipped']}"
    if "error" in outcome:
        return f"FAILED: {outcome['error']}\n{outcome['traceback']}"
    return ", ".join(
        f"{name.replace('_', ' ')} {_shown(name, value)}" for name, value in outcome.items() if not (dry and _compares(name))
    )


def _compares(name: str) -> bool:
    return "ratio" in name or "floor" in name


def _shown(name: str, value: Any) -> str:
    if name.endswith("seconds") and isinstance(value, float):
        return f"{value:.3f}"
    if name.endswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


# The sections


def staging(bench: Bench) -> Figures:
    """Device to host: the snapshot, against one large copy to pinned memory."""
    state, backend = bench.device.state(bench.nbytes), bench.device.backend()
    floor = _best(bench.device.down(bench.nbytes))
    seconds = [_stage(backend, state) for _ in range(ROUNDS + 1)]
    backend.release()
    again = min(seconds[1:])
    return {
        "state_bytes": bench.nbytes,
        "floor_seconds": floor,
        "floor_gb_per_s": bench.nbytes / floor / 1e9,
        "first_seconds": seconds[0],
        "again_seconds": again,
        "ratio_to_floor": again / floor,
    }


def blocking(bench: Bench) -> Figures:
    """How long `save` keeps the training loop, and when the checkpoint is there."""
    state, blocked, total = bench.device.state(bench.nbytes), [], []
    floor = _best(bench.device.down(bench.nbytes))
    with bench.device.checkpointer(bench.run_url("blocking"), keep=Keep(last=2)) as saver:
        for step in range(1, ROUNDS + 1):
            started = time.perf_counter()
            handle = _save(saver, step, state)
            blocked.append(time.perf_counter() - started)
            handle.result(bench.clock.left)
            total.append(time.perf_counter() - started)
    return {
        "first_blocked_seconds": blocked[0],
        "blocked_seconds": min(blocked[1:]),
        "ratio_to_floor": min(blocked[1:]) / floor,
        "total_seconds": statistics.median(total),
    }


def overlap(bench: Bench) -> Figures:
    """The steps of a loop of matrix products, alone and while a save is written in the background."""
    state, step = bench.device.state(bench.nbytes), bench.device.step()
    for _ in range(3):
        step()
    alone = [_timed(step) for _ in range(STEPS)]
    with bench.device.checkpointer(bench.run_url("overlap"), keep=Keep(last=2)) as saver:
        _save(saver, 1, state).result(bench.clock.left)  # what only a first save does is done
        handle = _save(saver, 2, state)
        beside = [_timed(step)]
        while not handle.done() and bench.clock.left > 1:
            beside.append(_timed(step))
        handle.result(bench.clock.left)
    alone += [_timed(step) for _ in range(STEPS)]
    middle, during = statistics.median(alone), statistics.median(beside)
    return {
        "step_seconds": middle,
        "step_during_save_seconds": during,
        "ratio": during / middle,
        "slowest_during_save_seconds": max(beside),
        "steps_during_save": len(beside),
    }


def donation(bench: Bench) -> Figures:
    """The saved memory is written to as soon as `save` has returned: the checkpoint holds the old values, bit for bit."""
    state, url = bench.device.state(bench.nbytes // 4), bench.run_url("donation")
    expected: dict[str, np.ndarray] = {}
    with bench.device.checkpointer(url) as saver:
        for step in range(1, ROUNDS + 1):
            expected = bench.device.host(state)
            handle = _save(saver, step, state)
            for _ in range(3):
                state = bench.device.overwrite(state)
            handle.result(bench.clock.left)
            found = bench.device.open_run(url).restore(components="params", step=step)
            _check_bits(expected, {name: _bits(np.asarray(found[name])) for name in expected})
    _check_other(expected, bench.device.host(state))
    return {"rounds": ROUNDS, "arrays": len(expected), "bits": "the old ones"}


def random_state(bench: Bench) -> Figures:
    """Random generators go on as if nothing had happened."""
    return bench.device.random(bench.run_url("random"), bench.clock.left)


def pinned(bench: Bench) -> Figures:
    """Pinned memory, and what a save leaves behind in host memory."""
    return bench.device.pinned(bench.device.state(bench.nbytes // 4), bench.run_url("pinned"), bench.clock.left)


def restore(bench: Bench) -> Figures:
    """From a checkpoint in the page cache to the device, against one large copy from pinned memory."""
    url, state = bench.run_url("restore"), bench.device.state(bench.nbytes)
    with bench.device.checkpointer(url) as saver:
        _save(saver, 1, state).result(bench.clock.left)
    expected, floor = bench.device.host(state), _best(bench.device.up(bench.nbytes))
    run = bench.device.open_run(url)
    to_host = _timed(lambda: run.restore(components="params"))
    target = bench.device.target(state)
    del state
    gc.collect()
    with Peak() as peak:
        started = time.perf_counter()
        found = run.restore(like=target, components="params")
        seconds = time.perf_counter() - started
    bench.device.check_place(target, found)
    _check_bits(expected, bench.device.host(found))
    return {
        "floor_seconds": floor,
        "floor_gb_per_s": bench.nbytes / floor / 1e9,
        "to_host_seconds": to_host,
        "to_device_seconds": seconds,
        "placing_ratio_to_floor": max(0.0, seconds - to_host) / floor,
        "host_peak_bytes": peak.bytes,
        "peak_over_state": peak.bytes / bench.nbytes,
    }


def several_devices(bench: Bench) -> Figures:
    """A state over all devices, saved, and restored to another layout."""
    state, target = bench.device.spread(bench.nbytes // 4)
    url = bench.run_url("devices")
    with bench.device.checkpointer(url) as saver:
        _save(saver, 1, state).result(bench.clock.left)
        blocked = _timed(lambda: _save(saver, 2, state))
    expected = bench.device.host(state)
    found = bench.device.open_run(url).restore(like=target, components="params")
    bench.device.check_place(target, found)
    _check_bits(expected, bench.device.host(found))
    return {"state_bytes": bench.nbytes // 4, "blocked_seconds": blocked, "bits": "the same on another layout"}


SECTIONS: dict[Callable[[Bench], Figures], float] = {
    donation: 15.0,
    random_state: 3.0,
    pinned: 8.0,
    staging: 5.0,
    blocking: 20.0,
    restore: 20.0,
    overlap: 15.0,
    several_devices: 10.0,
}
"""In the order in which they run, what must be right first; seconds that have to be left for each on an accelerator."""


def kept_after(save: Callable[[], None], *, nbytes: int) -> Figures:
    """How much more host memory is resident after a save of `nbytes` is over than before it."""
    gc.collect()
    before = resident()
    save()
    gc.collect()
    kept = max(0, resident() - before)
    return {"kept_after_save_bytes": kept, "kept_over_state": kept / nbytes}


def _save(saver: Any, step: int, state: State) -> Any:
    return saver.save(step, {"params": state}, guarantee="weights")


def _stage(backend: Backend, state: State) -> float:
    """Seconds of a snapshot alone."""
    started = time.perf_counter()
    flat = backend.flatten({"params": state})
    plan = make_plan(flat.components, flat.arrays, flat.values, rank=0, chunk_bytes=CHUNK_BYTES)
    own = {name: [plan.grids[name].cell(cell) for cell in cells] for name, cells in plan.own.items()}
    flat.stage(own, [], None)
    return time.perf_counter() - started


def _free() -> int:
    """Bytes of host memory that are free, rounded down to whole MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") >> 20 << 20


def _best(copy: Callable[[], float]) -> float:
    return min(copy() for _ in range(ROUNDS + 1))


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _check_bits(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
    """Raise `Wrong` naming what differs."""
    different = [name for name, bits in expected.items() if not np.array_equal(bits, found[name])]
    if different:
        raise Wrong(f"{len(different)} of {len(expected)} arrays have other bits: {', '.join(sorted(different)[:5])}")


def _check_other(before: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]) -> None:
    """Raise `Wrong` if nothing was changed: then a section that looks for changes has shown nothing."""
    if any(np.array_equal(before[name], now[name]) for name in before):
        raise Wrong("the arrays have not changed, so that this shows nothing")
