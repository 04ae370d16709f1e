"""A training loop of `benchmarks.soak`: it saves after each step, and reports in JSON what it takes after every so many saves."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import memory
from ckptcore.checkpointer import Checkpointer
from ckptcore.keep import Keep

WIDTH = 256
DERIVED = {"schedule": "step", "rng": "step", "data": "step"}
KEPT = 3

Step = Callable[[], Any]
"""One step of training; gives the components to save after it."""


def jax_loop(folder: Path) -> tuple[Checkpointer, Step]:
    """Adam's shape: weights and two moments."""
    import jax  # noqa: PLC0415 - one framework a process

    import jaxckpt  # noqa: PLC0415

    @jax.jit
    def update(state: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * 0.999 + 0.001, state)

    state = {name: {"w": jax.numpy.ones((WIDTH, 4 * WIDTH)), "b": jax.numpy.ones(WIDTH)} for name in ("params", "mu", "nu")}

    def step() -> Any:
        nonlocal state
        state = jax.block_until_ready(update(state))
        return {"params": state["params"], "optimizer": {"mu": state["mu"], "nu": state["nu"]}}

    return jaxckpt.Checkpointer(folder / "run", derived=DERIVED, keep=Keep(last=KEPT), on_preemption="ignore"), step


def torch_loop(folder: Path) -> tuple[Checkpointer, Step]:
    """A layer and Adam."""
    import torch  # noqa: PLC0415

    import torchckpt  # noqa: PLC0415

    torch.set_num_threads(1)
    model = torch.nn.Linear(WIDTH, 4 * WIDTH)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        model(torch.ones(WIDTH)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    return torchckpt.Checkpointer(folder / "run", derived=DERIVED, keep=Keep(last=KEPT), on_preemption="ignore"), step


LOOPS = {"jax": jax_loop, "torch": torch_loop}


def samples(framework: str, folder: Path, saves: int, every: int) -> Iterator[dict[str, Any]]:
    """What the process takes after every `every` saves; times are medians over them, bytes read are means."""
    checkpointer, step = LOOPS[framework](folder)
    with checkpointer:
        number = 0
        while number < saves:
            steps, blocked, saved, before, worked = [], [], [], _io(), time.process_time()
            for _ in range(min(every, saves - number)):
                number += 1
                started = time.perf_counter()
                components = step()
                stepped = time.perf_counter()
                handle = checkpointer.save(number, components)
                blocked.append(time.perf_counter() - stepped)
                steps.append(stepped - started)
                handle.result()
                saved.append(time.perf_counter() - stepped)
            worked, after = time.process_time() - worked, _io()
            yield {
                "saves": number,
                "step_seconds": median(steps),
                "blocked_seconds": median(blocked),
                "save_seconds": median(saved),
                "cpu_seconds": worked / len(steps),
                "bytes_read": (after["rchar"] - before["rchar"]) / len(steps),
                "reads": (after["syscr"] - before["syscr"]) / len(steps),
                **_taken(folder / "run"),
            }


def _taken(run: Path) -> dict[str, int]:
    gc.collect()  # what is to be freed is not what grows
    files = [path.relative_to(run).parts[0] for path in run.rglob("*") if path.is_file()]
    return {
        "resident_bytes": memory.resident(),
        "objects": len(gc.get_objects()),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - the directory itself is among them
        "threads": threading.active_count(),
        "system_threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "data_files": files.count("generations"),
        "record_files": len(files) - files.count("generations"),
    }


def _io() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def main(asked: dict[str, Any]) -> None:
    """Print one line of JSON for each sample."""
    for sample in samples(asked["framework"], Path(asked["folder"]), asked["saves"], asked["every"]):
        print(json.dumps(sample), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
