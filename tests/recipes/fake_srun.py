"""`srun` as far as the recipes need it: tasks on nodes that are all this machine, with what Slurm tells each of them.

The number of nodes and of tasks on each are in SLURM_NNODES and SLURM_NTASKS_PER_NODE, as `sbatch` sets them. SIGTERM goes on to
the tasks; with `--kill-on-bad-exit` the first that fails ends the others. The status is the greatest of all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main(arguments: list[str]) -> int:
    options = [each for each in arguments if each.startswith("--") and arguments.index(each) < _first_word(arguments)]
    command = arguments[_first_word(arguments) :]
    nodes, per_node = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS_PER_NODE"])
    if "--ntasks=1" in options:
        nodes = per_node = 1
    tasks = [subprocess.Popen(command, env=_environment(rank, nodes, per_node)) for rank in range(nodes * per_node)]
    signal.signal(signal.SIGTERM, lambda *_: [task.send_signal(signal.SIGTERM) for task in tasks if task.poll() is None])
    while any(task.poll() is None for task in tasks):
        if "--kill-on-bad-exit=1" in options and any(task.poll() not in (None, 0, 143) for task in tasks):
            for task in tasks:
                task.kill()
        time.sleep(0.02)
    return max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in tasks)


def _first_word(arguments: list[str]) -> int:
    return next(place for place, each in enumerate(arguments) if not each.startswith("-"))


def _environment(rank: int, nodes: int, per_node: int) -> dict[str, str]:
    return {
        **os.environ,
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
        # All nodes are this machine, where rank 0 has to be found.
        "SLURM_STEP_NODELIST": "localhost" if nodes == 1 else f"localhost,other[2-{nodes}]",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
