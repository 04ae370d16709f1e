"""Opening runs as a user does, with the store of a failpoint underneath."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

from ckpt_conformance.adapters.failpoints import ON_NODE, failing
from ckpt_conformance.adapters.framework import Framework
from ckpt_conformance.adapters.request import Request
from ckptcore import nodes, probe
from ckptcore.checkpointer import Checkpointer
from ckptcore.clock import Clock
from ckptcore.finishing import Finishing
from ckptcore.history import History
from ckptcore.incarnations import Incarnation, Opening
from ckptcore.ledger import Decided
from ckptcore.nodes import Local
from ckptcore.reader import Checkpoint
from ckptcore.run import Run
from ckptcore.session import Session, open_session
from ckptcore.store import Store, open_store
from ckptcore.verify import check_whole


def store(request: Request) -> Store:
    """The store of the request's run."""
    opened = open_store(request.url, request.storage)
    return failing(opened, request.failpoint, rank=request.rank, processes=request.processes)


def checkpointer(framework: Framework, request: Request, **options: Any) -> Checkpointer:
    """The product's `Checkpointer`, on the store of the request."""
    made: Checkpointer = framework.library.Checkpointer(
        request.url,
        storage=request.storage,
        run_id=request["run_id"],
        coordinator_timeout=request.deadline,
        on_preemption="ignore",
        local=None if request["local"] is None else Local(request["local"], copies=request["copies"] or 0),
        **options,
    )
    if request.failpoint is not None and request.failpoint.rank == request.rank:
        _put_under(made, store(request))
    if request.failpoint is not None and request.failpoint.name in ON_NODE:
        nodes.open_store = partial(_node_store, request)  # whatever this process opens on its node
    return made


def _node_store(request: Request, url: str | os.PathLike[str]) -> Store:
    run = open_store(request.url, request.storage)
    return failing(open_store(url), request.failpoint, rank=request.rank, processes=request.processes, run=run)


def _put_under(made: Checkpointer, other: Store) -> None:
    """Let a new `Checkpointer` use another store. It holds its store in these two places, and hands it on from there."""
    made._store = other  # noqa: SLF001
    made._resumer = replace(made._resumer, store=other)  # noqa: SLF001


def reader(framework: Framework, request: Request) -> Run:
    """The run of a request, for reading."""
    return framework.library.open_run(request.url, storage=request.storage)


def recover(framework: Framework, request: Request) -> Session:
    """Finish uploads, then claim, settle and record the base, on rank 0, and hand it to the others: nothing is restored.

    `Checkpointer` has no such call: it opens a run in order to restore, and refuses what the restore could not keep.
    """
    channel = framework.backend(request.url).channel()
    if request["local"] is not None:
        Finishing(store=store(request), local=Local(request["local"]), channel=channel, clock=Clock()).run()
    return open_session(store(request), channel, partial(_claim, framework, request))


def _claim(framework: Framework, request: Request) -> Incarnation:
    run_store = store(request)
    facts = probe.probe(run_store, single_writer=request.storage.single_writer)
    opening = Opening(run_store, framework.backend(request.url).topology(()), facts)
    run = opening.identify()
    History.load(run_store).head()  # as `Checkpointer` does: a head that is not known is refused before anything is claimed

    def check(decided: Decided) -> None:
        check_whole(Checkpoint(run_store, decided))

    return opening.open(run, check=check, guarantee=lambda _: None)
