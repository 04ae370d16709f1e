"""How a process of an adapter ends: its answer, its exit status, and the words for what went wrong (ADAPTER.md)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ckptcore.errors import CheckpointError

DONE, REFUSED, CANNOT, FAILED = 0, 10, 11, 1

_NEAREST: Mapping[str, str] = MappingProxyType(
    {
        "error": "deadline",  # the job's own channel broke: another process is gone
        "damage": "damaged",
        "staging-limit": "call",
        "protocol-violation": "invalid-record",
        "save": "save-failed",
    }
)


class Cannot(Exception):
    """The implementation does not offer what is asked."""


def kind_of(error: CheckpointError) -> str:
    """The contract's word for an error of the product."""
    return _NEAREST.get(error.kind, error.kind)


def end_of(error: CheckpointError | Cannot) -> tuple[int, dict[str, Any]]:
    """The exit status and the answer for an error that a user would see."""
    if isinstance(error, Cannot):
        return CANNOT, {"message": str(error)}
    return REFUSED, {"error": kind_of(error), "message": str(error)}


def give(answer: Mapping[str, Any]) -> None:
    """Print the answer as the last line of standard output, whatever libraries have left in their buffers."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    data = b"\n" + json.dumps(answer, sort_keys=True).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]
