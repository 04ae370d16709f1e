"""The wheel in clean environments: with no extra, with each alone, and with all together. `make wheel` runs it.

Every environment is made anew outside of the source tree and gets nothing but the wheel and what it asks for. A few minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"

LOOP = """
import {framework} as ckpt, {arrays} as np
state = lambda x: {{"params": {{"w": np.full((8,), float(x))}}, "optimizer": {{"count": x}}, "data": {{"position": x}}}}
for start in (0, 3):
    with ckpt.Checkpointer("run", derived={{"schedule": "optimizer", "rng": "step"}}) as saver:
        restored = saver.restore_or_init(lambda: state(0), like=state(0))
        assert restored.step == start, restored
        assert restored.components["params"]["w"][0] == start
        saver.save(start + 3, state(start + 3)).result()
"""
WITHOUT = """
import importlib
for name, extra in (("jaxckpt", "jax"), ("torchckpt", "torch")):
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert f"jaxckpt[{extra}]" in str(error), error
    else:
        raise SystemExit(f"{name} was imported without its framework")
"""
SUPERVISED = """
import subprocess, sys
program = '''
import torch, torchckpt
torchckpt.initialize()
torch.manual_seed(0)
state = {"model": torch.nn.Linear(2, 2)}
with torchckpt.Checkpointer("run", derived={"optimizer": "step", "schedule": "step", "rng": "step", "data": "step"}) as saver:
    step = saver.restore_or_init(lambda: state, like=state).step
    while step < 4:
        step += 1
        saver.save(step, state).result()
'''
supervise = [sys.executable, "-m", "ckptcli", "supervise", "--run", "run", "--nproc", "2", "--", sys.executable, "-c", program]
sys.exit(subprocess.call(supervise))
"""
JAX = ["-c", LOOP.format(framework="jaxckpt", arrays="jax.numpy")]
TORCH = ["-c", LOOP.format(framework="torchckpt", arrays="torch")]
CONFORMANCE = ["-m", "ckpt_conformance", "run", "--adapter", "minimal", "--only", "golden/read"]
INTERVAL = ["-m", "ckptcli", "interval", "--mtbf", "1d", "--blocking", "5min", "--persist", "5min"]
METRICS = ["-m", "ckptcli", "status", str(GOLDEN), "--prometheus", "metrics.prom"]

ENVIRONMENTS: dict[str, list[list[str]]] = {
    "": [["-c", WITHOUT]],
    "conformance": [CONFORMANCE],
    "interval": [INTERVAL],
    "metrics": [METRICS],
    "jax": [JAX],
    "torch": [TORCH],
    "conformance,interval,jax,metrics,supervise,torch": [JAX, TORCH, CONFORMANCE, INTERVAL, METRICS, ["-c", SUPERVISED]],
}
"""Extras → what has to run with them, each in a folder of its own."""


def main() -> None:
    """Build the wheel, then try it everywhere. Ends with a status other than 0 at the first that fails."""
    with tempfile.TemporaryDirectory(prefix="ckpt-wheel-") as folder:
        top = Path(folder)
        build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(top), str(ROOT)]
        run([sys.executable, *build], top)
        (wheel,) = top.glob("*.whl")
        for extras, programs in ENVIRONMENTS.items():
            environment = top / "environment"
            try_one(environment, f"{wheel}[{extras}]" if extras else str(wheel), programs)
            shutil.rmtree(environment)
            sys.stdout.write(f"the wheel works with {extras or 'no extra'}\n")
            sys.stdout.flush()


def try_one(environment: Path, wanted: str, programs: list[list[str]]) -> None:
    """Install `wanted` into a new environment and run the programs there."""
    run([sys.executable, "-m", "venv", str(environment)], environment.parent)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    run([str(python), *install, wanted], environment)
    run([str(environment / "bin" / "ckpt"), "ls", str(GOLDEN)], environment)
    for number, program in enumerate(programs):
        place = environment / f"program-{number}"
        place.mkdir()
        run([str(python), *program], place)


def run(command: list[str], folder: Path) -> None:
    """Run to the end, with nothing of this tree on the path; show what it printed if it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)[:500]}: status {done.returncode}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
