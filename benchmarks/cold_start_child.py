"""One process of `cold_start`: writes a checkpoint, or starts as a training job does and restores it.

It marks what it has come to on a pipe, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()
"""Before anything is imported that the interpreter has not imported by itself."""

# ruff: noqa: E402
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any

FRAMEWORK = {"jax": ("jax", "jax.numpy"), "torch": ("torch",)}
OTHERS = {"jax": (), "torch": ("torch.distributed.tensor", "torch._dynamo")}
"""What making an optimizer imports too, whoever saves."""
LIBRARIES = ("numpy", "tensorstore", "msgspec", "blake3")
WATCHED = {
    "opening: claim": (("ckptcore.incarnations", "Opening.identify"), ("ckptcore.incarnations", "Opening.claim")),
    "opening: settle": (("ckptcore.incarnations", "Opening.settle"),),
    "opening: the rest": (("ckptcore.resuming", "Resumer._claim"),),
    "records": (("ckptcore.reader", "Checkpoint._fetch"),),
    "plan": (("ckptcore.restore", "find"),),
    "chunks": (("ckptcore.array_reader", "ArrayReader.read_many"),),
    "place": (("jaxckpt.backend", "JaxTarget.place"), ("torchckpt.target", "TorchTarget.place")),
}
"""Phase → the functions that it is spent in, less what is spent in those of other phases that they call."""
PROBE = ("ckptcore.probe", "probe")
DIGESTS = (("ckptcore.digests", "check"), ("ckptcore.digests", "Checking.update"))
"""Module and function: replaced before others import them by name. Digests are made by several threads at a time."""


class Phases:
    """Seconds by phase: at any time one phase runs, the innermost that was entered. For one thread."""

    def __init__(self, began: float, started: float) -> None:
        self.seconds = {"interpreter": started - began}
        self._running = ["the rest"]
        self._since = started

    def mark(self, phase: str) -> None:
        """What has passed since the last mark was `phase`."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Run the block as `phase`. Of other threads nothing is counted: the first one waits for them meanwhile."""
        if current_thread() is not main_thread():
            yield
            return
        self.mark(self._running[-1])
        self._running.append(phase)
        try:
            yield
        finally:
            self.mark(self._running.pop())


class Threads:
    """Seconds and calls of functions that several threads run at one time."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = {}

    def watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, timed."""
        taken = self.calls.setdefault(name, [])

        @wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                taken.append(time.thread_time() - started)

        return timed


def main(arguments: list[str]) -> int:
    """`write FRAMEWORK SIZE FOLDER` or `read FRAMEWORK SIZE FOLDER PIPE BEGAN`."""
    action, framework, size, folder, *rest = arguments
    if action == "write":
        _write(framework, size, folder)
        return 0
    pipe, began = int(rest[0]), float(rest[1])
    with os.fdopen(pipe, "w") as out:
        json.dump(_read(framework, size, folder, began), out)
    return 0


def _write(framework: str, size: str, folder: str) -> None:
    program = import_module(f"benchmarks.cold_start_{framework}")
    with _opened(framework, folder) as checkpointer:
        checkpointer.save(1, program.state(size)).result()


def _read(framework: str, size: str, folder: str, began: float) -> dict[str, Any]:
    """Start, restore, and make one step. Seconds by phase, from the moment `began` at which the process was asked for."""
    phases, threads = Phases(began, STARTED), Threads()
    for name in FRAMEWORK[framework]:
        import_module(name)
    phases.mark("import the framework")
    for name in OTHERS[framework]:
        import_module(name)
    phases.mark("import what any optimizer does")
    for name in LIBRARIES:
        import_module(name)
    phases.mark("import the libraries of this project")
    _replace(*PROBE, partial(_within, phases, "opening: probe"))
    for place in DIGESTS:
        _replace(*place, partial(threads.watch, "digests"))
    import_module(_package(framework))
    phases.mark("import this project")
    _watch(framework, phases)
    program = import_module(f"benchmarks.cold_start_{framework}")
    phases.mark("the rest")
    with phases.within("start the framework"):
        program.start()
    with phases.within("make the target"):
        like = program.target(size)
    with _opened(framework, folder) as checkpointer:
        restored = checkpointer.restore_or_init(_refuse, like=like)
        with phases.within("arrive"):
            components = program.wait(restored.components)
        phases.mark("the rest")
        with phases.within("first step"):
            program.step(components)
    phases.mark("the rest")
    shared = {name: {"seconds": sum(taken), "calls": len(taken)} for name, taken in threads.calls.items()}
    return {"phases": phases.seconds, "threads": shared, "ended": time.monotonic(), "began": began}


def _refuse() -> Mapping[str, Any]:
    raise SystemExit("there was nothing to restore")


def _package(framework: str) -> str:
    return f"{framework}ckpt"


def _opened(framework: str, folder: str) -> Any:
    derived = {"schedule": "step", "rng": "step", "data": "step"}
    return import_module(_package(framework)).Checkpointer(folder, on_preemption="ignore", derived=derived)


def _replace(module_name: str, path: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what `change` makes of a function in its place. Raises `AttributeError` if it is gone."""
    owner: Any = import_module(module_name)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, name, change(getattr(owner, name)))


def _watch(framework: str, phases: Phases) -> None:
    """Let each watched function run as its phase. What is missing raises: a figure must not go missing unnoticed."""
    for phase, functions in WATCHED.items():
        for module_name, path in functions:
            if module_name.partition(".")[0] in ("ckptcore", _package(framework)):
                _replace(module_name, path, partial(_within, phases, phase))


def _within(phases: Phases, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which runs as `phase`."""

    @wraps(call)
    def watched(*args: Any, **options: Any) -> Any:
        with phases.within(phase):
            return call(*args, **options)

    return watched


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
