"""The first state of a run that begins from another run, or from a checkpoint in another format (spec: forks).

Every rank prepares, then all exchange what they want, then every rank reads its own boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ckptcore import forks, records, restore
from ckptcore.backend import Backend, Found, Target
from ckptcore.clock import Clock
from ckptcore.errors import CallError, Damaged
from ckptcore.formats.foreign import Start
from ckptcore.match import Elsewhere, Rules
from ckptcore.readable import Readable
from ckptcore.reader import Checkpoint
from ckptcore.sharing import Sharing
from ckptcore.store import Storage


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a run begins with, before it is read: `state` as `init` made it, and the `target` that replaces parts of it."""

    step: int
    state: Mapping[str, Any]
    target: Target
    read: Callable[[Collection[Elsewhere], Sharing | None], Mapping[str, Found]]

    def finish(self, elsewhere: Collection[Elsewhere], sharing: Sharing | None = None) -> Mapping[str, Any]:
        """Read and place what this rank wants. `elsewhere` is what other ranks take; with `sharing` they read together."""
        return {**self.state, **self.target.place(self.read(elsewhere, sharing))}


def prepare(
    run: records.Run,
    start_from: Start | None,
    *,
    url: str,
    backend: Backend,
    storage: Storage,
    rank: int,
    init: Callable[[], Mapping[str, Any]],
    like: Mapping[str, Any],
    rules: Rules,
) -> Beginning:
    """How the run at `url`, which has a parent or an origin, begins on this rank.

    When a whole checkpoint was forked, and it has every component of `like`, the run goes on at its step and `init` is
    not called. Else `init` makes the state, what was taken replaces parts of it, and the run begins at step 0.
    Raises `CallError` if `start_from` is not the recorded origin.
    """
    if run.parent is not None:
        return _from_run(run.parent, backend=backend, storage=storage, rank=rank, init=init, like=like, rules=rules)
    if run.origin is None:
        raise CallError(f"run {url} has neither a parent nor an origin")
    source = forks.same_source(run.origin, start_from, url)
    state = init()
    into = _replaced(source, source.names, state, like, rules)
    target = backend.target({**state, **into}, into)
    find = partial(restore.find, source, target, rules=replace(rules, cast=source.cast), ranks={})
    return Beginning(step=0, state=state, target=target, read=lambda elsewhere, _: find(elsewhere=elsewhere))


def described(run: records.Run) -> str:
    """Where a run began, for people."""
    if run.parent is not None:
        return f"forked from generation {run.parent.generation} of run {run.parent.run_id}"
    return f"started from the {run.origin.format} checkpoint {run.origin.url}" if run.origin else "a fresh run"


def _from_run(
    parent: records.Parent,
    *,
    backend: Backend,
    storage: Storage,
    rank: int,
    init: Callable[[], Mapping[str, Any]],
    like: Mapping[str, Any],
    rules: Rules,
) -> Beginning:
    checkpoint = forks.open_parent(parent, storage)
    manifest = checkpoint.manifest
    whole = manifest.guarantee.level != "weights" and set(manifest.components) == set(parent.components)
    complete = whole and all(_is_drawn(name, checkpoint, parent.components, rules) for name in like)
    state = like if complete else init()
    taken = {drawn for name in like for drawn in rules.sources(name, checkpoint.framework)} if complete else parent.components
    into = _replaced(checkpoint, taken, state, like, rules)
    target = backend.target({**state, **into}, into)
    same = manifest.topology.participants == backend.topology(()).participants
    ranks = {name: rank if same else None for name, entry in manifest.components.items() if entry.scope == "rank"}
    step = manifest.step if complete else 0
    find = partial(restore.find, checkpoint, target, rules=rules, ranks=ranks)
    return Beginning(step=step, state=state, target=target, read=partial(_read, checkpoint, parent, find))


def _read(
    checkpoint: Checkpoint,
    parent: records.Parent,
    find: Callable[..., Mapping[str, Found]],
    elsewhere: Collection[Elsewhere],
    sharing: Sharing | None,
) -> Mapping[str, Found]:
    """What `find` finds. Damage is noted at the parent, which may be read-only to us."""
    checkpoint.sharing = sharing
    try:
        return find(elsewhere=elsewhere)
    except Damaged as error:
        forks.try_note(checkpoint.store, parent.run_id, checkpoint.generation, "damaged", text=str(error), clock=Clock())
        raise Damaged(f"the run this one starts from: {error}. {forks.OTHER.format(url=parent.url)}") from error


def _replaced(
    source: Readable, taken: Collection[str], state: Mapping[str, Any], like: Mapping[str, Any], rules: Rules
) -> dict[str, Any]:
    """What the components `taken` of `source` are restored into. Raises `CallError` if one of them is used for nothing."""
    given = {name: like.get(name, state[name]) for name in state if _is_drawn(name, source, taken, rules)}
    used = {drawn for name in given for drawn in rules.sources(name, source.framework)}
    unused = [name for name in taken if name not in used]
    if unused:
        made, drawn = sorted(state), sorted({drawn for name in state for drawn in rules.sources(name, source.framework)})
        by = f", which convert= makes from {drawn}: call it so, or see components= of the conversion"
        by = by if drawn != made else " (a source in another format takes component=, which says what its tensors are)"
        raise CallError(f"the run starts from the component {unused[0]!r} of {source.title}, but init() makes only {made}{by}")
    return given


def _is_drawn(name: str, source: Readable, taken: Collection[str], rules: Rules) -> bool:
    """Whether a component of the state can be made from what is `taken` of `source`."""
    drawn = set(rules.sources(name, source.framework)) & set(source.names)
    return bool(drawn) and drawn <= set(taken)
