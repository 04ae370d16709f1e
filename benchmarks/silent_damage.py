"""What happens to a checkpoint when one stored bit flips: here, and in Orbax.

Saves the same arrays with both, then, many times: copies the checkpoint, flips one bit at a random place of a
random data file, restores, and compares with what was saved.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

import jaxckpt
from benchmarks.arguments import count
from ckptcore.errors import CheckpointError

State = Mapping[str, np.ndarray]

OUTCOMES = ("refused", "silently wrong", "harmless")


@dataclass(frozen=True)
class Library:
    """How one library saves and restores, as it comes."""

    distribution: str
    save: Callable[[Path, Mapping[str, jax.Array]], None]
    restore: Callable[[Path], State]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How often."""
    parser.add_argument("--tries", type=count, default=60, metavar="N", help="flips in the checkpoint of each (default: 60)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """How each flip ended, in both libraries."""
    tries, rows = (2, 8) if options.smoke else (options.tries, 512)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # every refusal is told
    try:
        return {"tries": tries, "outcomes": [_trial(library, make_state(0, rows), tries, options.dir) for library in LIBRARIES]}
    finally:
        logging.disable(disabled)


def table(result: Mapping[str, Any]) -> str:
    """One row a library."""
    lines = [f"| one flipped bit in a data file, {result['tries']} tries | {' | '.join(OUTCOMES)} |", "| --- | --- | --- | --- |"]
    rows = [
        [f"{one['library']} {one['version']}", *(str(one["counted"][kind]) for kind in OUTCOMES)] for one in result["outcomes"]
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def make_state(seed: int, rows: int) -> dict[str, jax.Array]:
    """Four float32 arrays of so many rows of 4 KiB each."""
    generator = np.random.default_rng(seed)
    return {f"layer{i}": jax.numpy.asarray(generator.standard_normal((rows, 1024), np.float32)) for i in range(4)}


def flip(folder: Path, generator: random.Random) -> None:
    """Flip one bit of one data file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name == "d"]
    path = generator.choices(files, weights=[file.stat().st_size for file in files])[0]
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def outcome(restore: Callable[[Path], State], folder: Path, state: Mapping[str, jax.Array]) -> str:
    """One of `OUTCOMES`."""
    try:
        found = restore(folder)
    except (CheckpointError, ValueError, OSError):
        return "refused"
    same = all(np.asarray(state[name]).tobytes() == np.asarray(found[name]).tobytes() for name in state)
    return "harmless" if same else "silently wrong"


def _trial(library: Library, state: Mapping[str, jax.Array], tries: int, folder: Path) -> dict[str, Any]:
    """How `tries` flips ended."""
    generator, place = random.Random(1), folder / library.distribution
    library.save(place / "original", state)
    counted: Counter[str] = Counter()
    for _ in range(tries):
        copy = shutil.copytree(place / "original", place / "copy")
        flip(copy, generator)
        counted[outcome(library.restore, copy, state)] += 1
        shutil.rmtree(copy)
    return {
        "library": library.distribution,
        "version": version(library.distribution),
        "counted": {kind: counted[kind] for kind in OUTCOMES},
    }


def _save_here(folder: Path, state: Mapping[str, jax.Array]) -> None:
    """One committed save of weights."""
    with jaxckpt.Checkpointer(folder, interval=1) as checkpointer:
        checkpointer.save(1, {"params": dict(state)}, guarantee="weights").result()


def _restore_here(folder: Path) -> State:
    """Read the only commit back, to host arrays."""
    return jaxckpt.open_run(folder).restore(components="params", step=1)


def _save_orbax(folder: Path, state: Mapping[str, jax.Array]) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "1", dict(state))


def _restore_orbax(folder: Path) -> State:
    with ocp.StandardCheckpointer() as checkpointer:
        return jax.tree.map(np.asarray, checkpointer.restore(folder / "1"))


LIBRARIES = (
    Library("jaxckpt", _save_here, _restore_here),
    Library("orbax-checkpoint", _save_orbax, _restore_orbax),
)
