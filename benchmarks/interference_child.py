"""The training loop of `interference`: FRAMEWORK SIZE ROUNDS LEAST-STEPS FOLDER."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import gt
from pathlib import Path
from typing import Any

from benchmarks.peers import ours

SIDE = 640
PRODUCTS = 4
COUNT = 20_000
"""Rounds of the plain Python of a step."""


def main(arguments: list[str]) -> int:
    """Run the loop, and write its blocks to `blocks.json` in the folder."""
    framework, size, rounds, least, folder = arguments
    blocks = _loop(framework, size, int(rounds), int(least), Path(folder))
    (Path(folder) / "blocks.json").write_text(json.dumps(blocks))
    return 0


def _loop(framework: str, size: str, rounds: int, least: int, folder: Path) -> dict[str, Any]:
    package, states = import_module(f"{framework}ckpt"), import_module(f"benchmarks.on_{framework}")
    components, compute = ours.components_of(states.arrays(size, "one")), COMPUTE[framework]()
    without, during = [], []
    with package.Checkpointer(folder / "run", on_preemption="ignore", derived=ours.DERIVED) as saver:
        saver.save(1, components).result()  # what only the first does
        length = least
        for number in range(2, rounds + 2):
            without.append(_block(compute, partial(gt, length)))
            started = time.perf_counter()
            handle = saver.save(number, components)
            blocked = time.perf_counter() - started
            block = _block(compute, partial(_not_saved, handle))
            handle.result()
            during.append(block | {"blocked": blocked, "seconds": time.perf_counter() - started})
            length = max(least, len(block["steps"]) // 2)  # half before each save, half behind it
        without.append(_block(compute, partial(gt, length)))
    return {"without": without, "during": during}


def _not_saved(handle: Any, steps: int) -> bool:
    return steps == 0 or not handle.done()


def _block(compute: Callable[[], None], goes_on: Callable[[int], bool]) -> dict[str, Any]:
    """Steps for as long as `goes_on(steps so far)`: seconds of each one's parts, and processor seconds of all threads."""
    steps: list[tuple[float, float]] = []
    cpu = time.process_time()
    while goes_on(len(steps)):
        started = time.perf_counter()
        compute()
        between = time.perf_counter()
        _python()
        steps.append((between - started, time.perf_counter() - between))
    return {"steps": steps, "cpu": time.process_time() - cpu}


def _python() -> int:
    """What a loop does besides: metrics, data, bookkeeping."""
    found: dict[int, int] = {}
    for number in range(COUNT):
        found[number & 255] = found.get(number & 127, 0) + number
    return len(found)


def _jax() -> Callable[[], None]:
    import jax  # noqa: PLC0415 - the other framework does without

    def products(matrix: jax.Array) -> jax.Array:
        for _ in range(PRODUCTS):
            matrix = matrix @ matrix / SIDE
        return matrix

    compiled, matrix = jax.jit(products), jax.numpy.ones((SIDE, SIDE))

    def step() -> None:
        compiled(matrix).block_until_ready()

    step()
    return step


def _torch() -> Callable[[], None]:
    import torch  # noqa: PLC0415 - the other framework does without

    torch.set_num_threads(1)
    matrix = torch.ones(SIDE, SIDE)

    def step() -> None:
        made = matrix
        for _ in range(PRODUCTS):
            made = made @ made / SIDE

    return step


COMPUTE = {"jax": _jax, "torch": _torch}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
