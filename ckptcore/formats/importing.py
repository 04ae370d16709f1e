"""Import: a checkpoint in another format as a run of its own, whose only commit has its leaves (spec: records, "origin").

The commit keeps the guarantee `weights`: no job resumes from it, runs start from it (`start_from`) and readers read it. It is
made through the protocol that every save goes through, in bounded memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ckptcore import canonical, names, nested, records, values
from ckptcore.checkpointer import Checkpointer
from ckptcore.components import kind_of
from ckptcore.errors import CallError, InvalidRecord, NotFound, UnsupportedLeaf
from ckptcore.formats.foreign import Source
from ckptcore.formats.hosting import Hosting
from ckptcore.history import History
from ckptcore.layout import make_plan
from ckptcore.records import Manifest
from ckptcore.store import Storage, Store, open_store

RECEIPT_TIMEOUT = 600.0
"""Seconds that the process waits for its own receipt, which it has written by then."""
_SHOWN = 200
"""Characters of either end of a reason that are shown."""


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
    host = Hosting(source.framework, progress)
    _check_source(source, component, host)
    store = open_store(url, storage)
    _check_new(store)
    derived = {} if kind_of(component) == "parameters" else {"parameters": component}
    with Checkpointer(
        url, backend=host, storage=storage, derived=derived, start_from=source, coordinator_timeout=RECEIPT_TIMEOUT
    ) as saver:
        handle = saver.save(0, {component: source}, guarantee="weights")
        try:
            return handle.result()
        except BaseException:
            host.stop()
            raise


def _check_source(source: Source, component: str, host: Hosting) -> None:
    """Whatever a save would refuse of what the source says of itself, before there is a run: a failed one would block its URL.

    Raises `NotFound` for a source without leaves, `UnsupportedLeaf` for names that are too long, or in each other's way, and
    for values that a checkpoint cannot hold; a `DamageError` for what is not valid.
    """
    flat = host.flatten({component: source})
    if not flat.arrays and not flat.values:
        raise NotFound(f"{source.title} has no leaves to import as component {component!r}: see names=")
    try:
        plan = make_plan(flat.components, flat.arrays, flat.values, rank=0)
        for leaf in (*flat.arrays, *flat.values):
            nested.check_depth(leaf.path, where=component)
        nested.build({leaf.path: None for leaf in (*flat.arrays, *flat.values)}, where=component)
        for value in flat.values:
            canonical.encode(values.encode(value.value, where=value.name))
        records.encode(plan.layout)
    except (UnsupportedLeaf, InvalidRecord) as error:
        raise UnsupportedLeaf(f"{source.title} cannot be imported so: {_bounded(str(error))}; see names=") from error


def _bounded(reason: str) -> str:
    """Both ends of a reason, which quotes names of any length and perhaps of no valid text."""
    text = reason.encode("utf-8", "replace").decode()
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} … {text[-_SHOWN:]}"


def _check_new(store: Store) -> None:
    if store.get(names.RUN) is None:
        return
    decided = next(History.load(store).commits(), None)
    if decided is not None:
        raise CallError(f"{store.url} holds a run with checkpoints already; import to a new URL")
