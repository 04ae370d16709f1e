"""An adapter for tests: one implementation writes, and the minimal reader reads whatever one process reads.

So the reading half of every case is asked of the reader that was written from the spec alone:
`python -m ckpt_conformance run --adapter "python tests/conformance/mixed_adapter.py torch" --only damage`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ckpt_conformance.adapters import minimal, verbs
from ckpt_conformance.adapters.process import main
from ckpt_conformance.adapters.verbs import VERBS, Job

READING = ("latest", "restore", "verify")


def framework(name: str) -> Any:
    if name == "torch":
        from ckpt_conformance.adapters.torch import Torch

        return Torch()
    from ckpt_conformance.adapters.jax import Jax

    return Jax()


def read_with_minimal(verb: str) -> None:
    """Let the minimal reader answer a verb, where it does."""
    other = VERBS[verb]

    def answer(job: Job) -> dict[str, Any]:
        told = dict(job.request.fields)
        if told["processes"] > 1 or told.get("mode", "read") != "read" or told.get("cast") or told.get("remap"):
            return other(job)
        status = minimal.main(json.dumps(told))
        sys.stdout.flush()
        os._exit(status)

    VERBS[verb] = answer


if __name__ == "__main__":
    assert verbs.VERBS is VERBS
    for read in READING:
        read_with_minimal(read)
    main(framework(next(word for word in sys.argv[1:] if not word.startswith("-"))))
