"""What the end of a rank's standard error says: the exception that ended it, and whether another rank is the reason. Pure."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^\[rank\d+\]:? ?", re.MULTILINE)
"""torch puts it before every line of an exception."""

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
"""A traceback and, as group, the exception: its first line, and those after it that are indented."""

_CONSEQUENCE = re.compile(
    r"""
      gloo/transport | gloo\ \w+\ failed | connection\ closed\ by\ peer\ \[
    | nccl(remote|communicator) | nccl.*(timeout|timed\ out|remote|abort) | watchdog\ caught\ collective
    | DistNetworkError | DistStoreError | DistBackendError.*(socket|peer|remote)
    | coordination\ ?service | jax\ distributed\ service
    | ckptcore\.errors\.(DeadlineExceeded|SaveAborted)
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""How ranks fail because another one has: gloo, NCCL, torch's store, JAX's coordination service, our waits for other ranks."""

_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError|out of memory|RESOURCE_EXHAUSTED|bad_alloc|(cannot|can't) allocate memory", re.IGNORECASE
)
_SILENT = re.compile(r"stopped sending heartbeats\):\n((?:\d+\n)+)")
_FATAL = re.compile(r"^F\d{4} [\d:.]+ +\d+ \S+\] (.*)$", re.MULTILINE)
"""The line with which native code of JAX ends its process."""

_NOT_BEGUN = re.compile(r"^ckpt supervise: (.*)$", re.MULTILINE)
"""Why a rank did not become its program (`ckptsupervise.rank`)."""

_SHOWN = 500
"""Characters of a message."""


def exception(words: str) -> str:
    """The exception that ended the program, without its traceback, or native code's last message, or why there was no program.

    Empty if there is none.
    """
    plain = _PREFIX.sub("", words)
    found = [match[1] for match in _TRACEBACK.finditer(plain)] or _FATAL.findall(plain) or _NOT_BEGUN.findall(plain)
    return found[-1].strip()[:_SHOWN] if found else ""


def is_consequence(words: str) -> bool:
    """Whether the program ended since another rank had, or could not be reached."""
    return bool(_CONSEQUENCE.search(exception(words)))


def is_superseded(words: str) -> bool:
    """Whether it ended since another job has taken the run."""
    return exception(words).startswith("ckptcore.errors.Superseded")


def lacks_memory(words: str) -> bool:
    """Whether it ended since there was no memory left, of the host or of a device."""
    return bool(_MEMORY.search(exception(words)))


def silent_ranks(words: str) -> frozenset[int]:
    """The ranks that JAX's coordination service has not heard of for too long."""
    return frozenset(int(rank) for match in _SILENT.finditer(words) for rank in match[1].split())
