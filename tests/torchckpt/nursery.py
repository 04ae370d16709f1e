"""A process that has imported torch, and forks the processes of test jobs.

Importing torch takes seconds of a core, for every rank of every job; a fork takes none. An order is one
message: JSON, a descriptor for the output of the process, and one for the report on it: a line with its
process id, and one with its exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
from typing import Any

LONGEST_ORDER = 1 << 17
PRELOADED = (
    "numpy",
    "tensorstore",
    "msgspec",
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torchdata.stateful_dataloader",
)
"""What takes long to import. Not what is tested: a job imports that by itself."""


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each order. Returns in each of them, with its order; and at the end of orders, with None."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, LONGEST_ORDER, 2)
        if not message:
            return None
        if os.fork() == 0:
            connection.close()
            return _born(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _born(order: dict[str, Any], output: int, report: int) -> dict[str, Any]:
    """Fork once more: the outer process keeps the inner one, and reports on it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(report)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        return order
    os.close(output)
    os.write(report, b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def run(order: dict[str, Any]) -> None:
    """Be the process that was ordered, as if newly started: what ends it ends this interpreter."""
    import numpy as np

    np.random.seed(random.SystemRandom().getrandbits(32))  # noqa: NPY002 -- the global one is what a fork would share
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [order["script"], *order["argv"]]
    runpy.run_path(order["script"], run_name="__main__")


def main() -> None:
    """Serve the socket whose descriptor is the only argument."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # forks need not look through all of it when they end
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        order = serve(connection)
    if order is not None:
        run(order)


if __name__ == "__main__":
    main()
