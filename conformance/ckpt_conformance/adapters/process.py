"""One process of an adapter, from its request to its exit."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from ckpt_conformance.adapters.answers import DONE, FAILED, Cannot, end_of, give
from ckpt_conformance.adapters.framework import Framework
from ckpt_conformance.adapters.peers import Peers
from ckpt_conformance.adapters.request import Request, read
from ckpt_conformance.adapters.serving import serve
from ckpt_conformance.adapters.verbs import VERBS, Job, describe
from ckptcore.errors import CheckpointError

_MEETING = 60.0  # seconds


def main(framework: Framework) -> None:
    """Answer the request on standard input, or with `--serve` fork a process for each that is ordered."""
    if "--serve" in sys.argv[1:] and not serve(framework.preloaded):
        return
    members = _Members()
    try:
        status, answer = _attempt(framework, members)
    except BaseException:  # noqa: BLE001 -- the last frame: what is not expected is shown, and is a failure
        traceback.print_exc()
        status, answer = FAILED, None
    if answer is not None:
        give(answer)
    members.leave()
    # The frameworks' own ends wait for every process of the job, also for those that were killed.
    os._exit(status)


class _Members:
    """The other processes of the job, once this one has met them."""

    def __init__(self) -> None:
        self._peers: Peers | None = None

    def meet(self, framework: Framework, request: Request) -> None:
        """Tell the others who this process is, and learn who they are."""
        channel = framework.backend("peers").channel()
        pids = channel.gather(str(os.getpid()).encode(), timeout=_MEETING, what="the processes of the job")
        self._peers = Peers(request.rank, [int(pid) for pid in pids], request.deadline)

    def leave(self) -> None:
        """Wait until this process may end."""
        if self._peers is not None:
            self._peers.leave()


def _attempt(framework: Framework, members: _Members) -> tuple[int, dict[str, Any]]:
    """The exit status and the answer."""
    with open(0, encoding="utf-8", closefd=False) as standard_input:
        told = json.load(standard_input)
    try:
        if told["verb"] == "describe":
            return DONE, describe(framework)
        request = read(told)
        devices = framework.join(request)
        members.meet(framework, request)
        if request.verb not in VERBS:
            raise Cannot(f"there is no verb {request.verb!r}")
        return DONE, VERBS[request.verb](Job(framework, devices, request))
    except (CheckpointError, Cannot) as error:
        traceback.print_exc()
        return end_of(error)
