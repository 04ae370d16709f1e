"""Import: a checkpoint in another format as a run of its own, whose only commit has its leaves (spec: records, "origin").

The commit keeps the guarantee `weights`: no job resumes from it, runs start from it (`start_from`) and readers read it. It is
made through the protocol that every save goes through, in bounded memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ckptcore import names
from ckptcore.checkpointer import Checkpointer
from ckptcore.components import kind_of
from ckptcore.errors import CallError
from ckptcore.formats.foreign import Source
from ckptcore.formats.hosting import Hosting
from ckptcore.history import History
from ckptcore.records import Manifest
from ckptcore.store import Storage, Store, open_store

RECEIPT_TIMEOUT = 600.0
"""Seconds that the process waits for its own receipt, which it has written by then."""


def import_source(
    source: Source,
    url: str | os.PathLike[str],
    *,
    storage: Storage | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Manifest:
    """Make a run at `url` that holds the one component of `source`, at step 0; return its manifest.

    An import that was interrupted is taken up by another one from the same source. `progress` is told of array bytes as they
    are read. Raises `CallError` if there is a run with a checkpoint already, or one that began elsewhere; a `DamageError` for a
    source that is not whole; `StoreError`, `SaveError`.
    """
    (component,) = source.names
    source.leaves(component)  # whatever is wrong with what it says of itself, before there is a run
    store = open_store(url, storage)
    _check_new(store)
    derived = {} if kind_of(component) == "parameters" else {"parameters": component}
    host = Hosting(source.framework, progress)
    with Checkpointer(
        url, backend=host, storage=storage, derived=derived, start_from=source, coordinator_timeout=RECEIPT_TIMEOUT
    ) as saver:
        handle = saver.save(0, {component: source}, guarantee="weights")
        try:
            return handle.result()
        except BaseException:
            host.stop()
            raise


def _check_new(store: Store) -> None:
    if store.get(names.RUN) is None:
        return
    decided = next(History.load(store).commits(), None)
    if decided is not None:
        raise CallError(f"{store.url} holds a run with checkpoints already; import to a new URL")
