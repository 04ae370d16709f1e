"""What happens to a checkpoint when one stored bit flips: here, and in Orbax.

Saves the same arrays with both, then, many times: copies the checkpoint, flips one bit at a random place of a
random data file, restores, and compares with what was saved.

    python benchmarks/silent_damage.py [--tries 60]
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

import jaxckpt
from ckptcore.errors import CheckpointError

State = Mapping[str, np.ndarray]


def make_state(seed: int) -> dict[str, jax.Array]:
    """Four float32 arrays of 2 MiB each."""
    generator = np.random.default_rng(seed)
    return {f"layer{i}": jax.numpy.asarray(generator.standard_normal((512, 1024), np.float32)) for i in range(4)}


def save_here(folder: Path, state: Mapping[str, jax.Array]) -> None:
    """One committed save of weights."""
    with jaxckpt.Checkpointer(folder, interval=1) as checkpointer:
        checkpointer.save(1, {"params": dict(state)}, guarantee="weights").result()


def restore_here(folder: Path) -> State:
    """Read the only commit back, to host arrays."""
    return jaxckpt.open_run(folder).restore(components="params", step=1)


def save_orbax(folder: Path, state: Mapping[str, jax.Array]) -> None:
    """Orbax as it comes."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "1", dict(state))


def restore_orbax(folder: Path) -> State:
    """Orbax as it comes."""
    with ocp.StandardCheckpointer() as checkpointer:
        return jax.tree.map(np.asarray, checkpointer.restore(folder / "1"))


def flip(folder: Path, generator: random.Random) -> None:
    """Flip one bit of one data file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name == "d"]
    path = generator.choices(files, weights=[file.stat().st_size for file in files])[0]
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def outcome(restore: Callable[[Path], State], folder: Path, state: Mapping[str, jax.Array]) -> str:
    """`refused`, `silently wrong` or `harmless`."""
    try:
        found = restore(folder)
    except (CheckpointError, ValueError, OSError):
        return "refused"
    same = all(np.asarray(state[name]).tobytes() == np.asarray(found[name]).tobytes() for name in state)
    return "harmless" if same else "silently wrong"


def trial(name: str, save: Callable, restore: Callable[[Path], State], tries: int) -> None:
    """Print the outcomes of `tries` flips."""
    state, generator = make_state(0), random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        original = Path(scratch) / "original"
        save(original, state)
        counted: Counter[str] = Counter()
        for attempt in range(tries):
            copy = Path(scratch) / f"copy{attempt}"
            shutil.copytree(original, copy)
            flip(copy, generator)
            counted[outcome(restore, copy, state)] += 1
            shutil.rmtree(copy)
    print(f"{name:24} " + ", ".join(f"{kind}: {counted[kind]} of {tries}" for kind in ("refused", "silently wrong", "harmless")))


def main() -> int:
    """Run both trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=60)
    tries = parser.parse_args().tries
    logging.disable(logging.WARNING)
    trial(f"jaxckpt {version('jaxckpt')}", save_here, restore_here, tries)
    trial(f"orbax {version('orbax-checkpoint')}", save_orbax, restore_orbax, tries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
