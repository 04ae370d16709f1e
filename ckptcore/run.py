"""`open_run`: read a run beside a live job. It never claims, settles or changes anything (spec: reading)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ckptcore import forks, ledger, notes, records, restore
from ckptcore import verify as verification
from ckptcore.arguments import check_like
from ckptcore.backend import Backend
from ckptcore.clock import Clock
from ckptcore.errors import CallError, DamageError, DeadlineExceeded, NotFound
from ckptcore.events import log, shorten
from ckptcore.formats.renames import Names
from ckptcore.formats.safetensors_export import MAX_SHARD_BYTES, export_safetensors
from ckptcore.history import History
from ckptcore.incarnations import stored
from ckptcore.inspect import explaining
from ckptcore.inspect.status import Status, status
from ckptcore.ledger import Decided, manifest_of
from ckptcore.listing import Generation, best, describe
from ckptcore.match import Conversion, Rename, Rules, cast_name
from ckptcore.names import GenerationId, Named, named_generation
from ckptcore.reader import Checkpoint
from ckptcore.store import Storage, Store, open_store

MAX_OVERTAKEN = 10
"""How often a reader that retention has overtaken begins again."""


class Run:
    """A run, read only. Every call looks at the store anew; nothing is claimed."""

    def __init__(self, store: Store, storage: Storage, backend: Backend | None = None, clock: Clock | None = None) -> None:
        self._store, self._storage, self._backend = store, storage, backend
        self._clock = clock or Clock()
        self._history = History.load(store)

    def __repr__(self) -> str:
        return f"Run({self.url!r})"

    @property
    def url(self) -> str:
        """The run's canonical URL."""
        return self._store.url

    @property
    def identity(self) -> records.Run:
        """The run's identity record."""
        return self._history.run

    def head(self) -> records.Manifest | None:
        """The manifest of the resume point, as the records tell it; None for a run without one."""
        decided = self._fresh().head()
        return manifest_of(decided) if decided else None

    def latest(self, *, verified: bool = False) -> records.Manifest | None:
        """The newest commit of any kind; with `verified`, the newest that a verification found whole."""
        history = self._fresh()
        for decided in history.commits():
            told = history.notes.get(decided.generation, [])
            if not verified or (notes.has(told, "verified") and history.mark(decided.generation) is None):
                return manifest_of(decided)
        return None

    def generations(self) -> list[Generation]:
        """Every generation the ledger knows, and those that have files but no decision yet, oldest first."""
        history = self._fresh()
        undecided = {g for g in stored(self._store) if g not in history.generations}
        return [describe(history, generation) for generation in sorted({*history.generations, *undecided})]

    def best(self, metric: str, mode: Literal["min", "max"] = "min") -> Generation:
        """The checkpoint with the least, or greatest, value of a metric; of equal ones the newer. NaN does not compete.

        Quarantined and damaged ones are passed over, saves of weights are not. Raises `NotFound` when none has the metric.
        """
        usable = [found for found in self.generations() if self._history.mark(found.id) is None]
        return best(usable, metric, mode, where=f"run {self.url}")

    def follow(self, after: Named | None = None, timeout: float | None = None) -> Iterator[records.Manifest]:
        """Yield commits newer than `after` (default: the newest now) as they appear, and older ones that are rolled forward.

        Ends with `DeadlineExceeded` when `timeout` seconds pass without one; without `timeout` it goes on for ever.
        """
        last = None if after is None else named_generation(after)
        seen = {decided.generation for decided in self._fresh().commits() if last is None or decided.generation <= last}
        while True:
            for decided in self._wait_for_others(seen, timeout):
                seen.add(decided.generation)
                yield manifest_of(decided)

    def checkpoint(self, *, step: int | None = None, generation: Named | None = None) -> Checkpoint:
        """One commit, opened: the head, the newest of `step`, or `generation`.

        Raises `NotFound`, or a `DamageError` when the record that is asked for cannot be read.
        """
        history = self._fresh()
        if generation is not None:
            known = named_generation(generation)
            decided = history.decided(known)
            if decided is None:
                raise history.unreadable.get(known) or NotFound(f"run {self.url} has no generation {known}")
        elif step is not None:
            decided = next((d for d in history.commits() if d.generation.step == step), None)
        else:
            decided = next(history.readable(), None)
        if decided is None:
            if step is not None:
                history.raise_unreadable(step)
            steps = sorted({d.generation.step for d in history.commits()})
            raise NotFound(
                f"run {self.url} has no checkpoint{'' if step is None else f' of step {step}'}; it has steps {steps[-20:]}"
            )
        return Checkpoint(self._store, decided)

    def restore(
        self,
        *,
        like: Any = None,
        step: int | None = None,
        generation: Named | None = None,
        components: str | Sequence[str] | None = None,
        rename: Rename | None = None,
        cast: Any = None,
        missing: Literal["error", "keep"] = "error",
        extra: Literal["error", "ignore"] = "error",
        rank: int = 0,
        convert: Conversion | None = None,
    ) -> Mapping[str, Any] | Any:
        """Read components into `like`'s layout, or without `like` as nested dicts and lists of host arrays.

        With `components` a single name, `like` and the result are that component itself. The head is read; when it
        turns out damaged and neither `step` nor `generation` was given, the one before, loudly. `rank` selects whose
        rank-scoped state is read. `convert` says how a checkpoint of another framework is read (`ckptcore.convert`).
        """
        single = components if isinstance(components, str) else None
        chosen = (single,) if single else tuple(components) if components is not None else None
        wanted = None if like is None else {single: like} if single else check_like(like)
        rules = Rules(rename=rename, cast=cast_name(cast), missing=missing, extra=extra, convert=convert)
        if convert is not None and like is None:
            raise CallError("convert needs `like`: it says what the other framework's leaves become")
        tried: list[str] = []
        for checkpoint in self._attempts(step, generation):
            if tried:
                log.warning("falling back to %s: %s", checkpoint.generation, shorten(tried[-1]))
            try:
                result = self._restore(checkpoint, wanted, chosen, rules, rank)
                return result[single] if single else result
            except DamageError as error:
                if step is not None or generation is not None:
                    raise
                tried.append(f"{checkpoint.generation} cannot be read: {error}")
        raise NotFound(f"run {self.url} has no checkpoint that can be read" + "".join(f"\n  - {reason}" for reason in tried))

    def verify(
        self,
        *,
        step: int | None = None,
        generation: Named | None = None,
        deep: bool = False,
        note: bool = False,
        progress: Callable[[int], object] = lambda _: None,
    ) -> verification.Verification:
        """Check one commit (default: the head) against its manifest; with `note`, record the result.

        `progress` is told of array bytes as they are read, deep only.
        """
        checkpoint = self.checkpoint(step=step, generation=generation)
        found = verification.verify(checkpoint, deep=deep, progress=progress)
        if note:
            verification.record(checkpoint, found, clock=self._clock)
        return found

    def explain(self) -> list[str]:
        """What the next start would resume from, and why each newer candidate is passed over; a line each."""
        history = self._fresh()
        return list(explaining.by_records(history, [g for g in stored(self._store) if g not in history.generations]))

    def status(self) -> Status:
        """How the run is doing: what a failure now would cost, what saves cost, and what goes wrong with them."""
        return status(self._store, self._clock)

    def quarantine(self, generation: Named, reason: str) -> None:
        """Mark a checkpoint as one that nobody may resume from. Raises `NotFound` for an unknown one."""
        if not isinstance(reason, str):
            raise CallError(f"reason is {type(reason).__name__}, expected a text that says what is wrong with the checkpoint")
        run_id = self.identity.run_id
        known = ledger.commit(self._store, run_id, named_generation(generation)).generation
        notes.write(self._store, run_id, known, "quarantine", clock=self._clock, text=records.clip(reason))

    def annotate(
        self,
        generation: Named,
        *,
        metrics: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        pin: str | None = None,
    ) -> None:
        """Note on a checkpoint what was learned later; retention never takes tagged or pinned ones.

        Raises `NotFound` for an unknown one, `CallError` for notes that are none; then nothing is written.
        """
        run_id = self.identity.run_id
        known = ledger.commit(self._store, run_id, named_generation(generation)).generation
        notes.annotate(self._store, run_id, known, clock=self._clock, metrics=metrics, tags=tags, pin=pin)

    def export_safetensors(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        generation: Named | None = None,
        component: str,
        names: Names | None = None,
        dtype: Any = None,
        max_shard_bytes: int = MAX_SHARD_BYTES,
    ) -> list[Path]:
        """Write the arrays of a component (of the head, by default) as safetensors files; see `export_safetensors`."""
        checkpoint = self.checkpoint(step=step, generation=generation)
        options = {"component": component, "names": names, "dtype": dtype, "max_shard_bytes": max_shard_bytes}
        return export_safetensors(checkpoint, path, **options)

    def fork(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        generation: Named | None = None,
        components: str | Sequence[str] | None = None,
        storage: Storage | None = None,
    ) -> str:
        """Create a new run at `url` whose first state comes from a commit of this one; return its run ID.

        `components`: which to take (a text is one of them); all by default. The commit is pinned here.
        """
        target = open_store(url, storage or self._storage)
        checkpoint = self.checkpoint(step=step, generation=generation)
        named = [components] if isinstance(components, str) else components
        chosen = list(named or checkpoint.manifest.components)
        return forks.fork(self._store, target, checkpoint.decided, chosen, clock=self._clock).run_id

    def _restore(
        self, checkpoint: Checkpoint, like: Mapping[str, Any] | None, components: tuple[str, ...] | None, rules: Rules, rank: int
    ) -> Mapping[str, Any]:
        ranks: dict[str, int | None] = {
            name: rank for name, entry in checkpoint.manifest.components.items() if entry.scope == "rank"
        }
        if like is None:
            return restore.host(checkpoint, list(components or checkpoint.manifest.components), rules=rules, ranks=ranks)
        if self._backend is None:
            raise CallError("`like` needs a framework: use jaxckpt.open_run; ckptcore.open_run gives nested host arrays")
        chosen = list(like) if components is None else [name for name in components if name in like]
        target = self._backend.target(like, chosen)
        return target.place(restore.find(checkpoint, target, rules=rules, ranks=ranks))

    def _attempts(self, step: int | None, generation: Named | None) -> Iterator[Checkpoint]:
        if step is not None or generation is not None:
            yield self.checkpoint(step=step, generation=generation)
            return
        tried: set[GenerationId] = set()
        history = self._fresh()
        for _ in range(MAX_OVERTAKEN):
            for decided in history.readable():
                if decided.generation not in tried:
                    tried.add(decided.generation)
                    yield Checkpoint(self._store, decided)
            # Retention may have been faster than this reader: is there something newer by now?
            history = self._fresh()
            if all(decided.generation in tried for decided in history.readable()):
                return

    def _fresh(self) -> History:
        self._history.refresh()
        return self._history

    def _wait_for_others(self, seen: Collection[GenerationId], timeout: float | None) -> list[Decided]:
        """Commits that are not among `seen`, oldest first."""
        for _ in self._clock.polls(timeout if timeout is not None else 1e9, first=0.05, most=2.0):
            fresh = [decided for decided in self._fresh().commits() if decided.generation not in seen]
            if fresh:
                return fresh[::-1]
        raise DeadlineExceeded(f"run {self.url} has no new commit after {timeout:g} s")


def open_run(url: str | os.PathLike[str], *, storage: Storage | None = None, backend: Backend | None = None) -> Run:
    """Open a run for reading. Raises `NotFound` when there is none at `url`."""
    settings = storage or Storage()
    return Run(open_store(url, settings), settings, backend)
