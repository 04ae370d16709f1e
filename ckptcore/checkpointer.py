"""`Checkpointer`: what a training loop calls. The same for every framework; a backend does the rest.

Rules that hold whatever happens: `save` returns when later steps cannot change what is saved;
an error in the background is raised by `result()`, by the next `save` and by `close()`; all ranks
resume from one checkpoint or none does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

from ckptcore import guarantees, ledger, notes, phases, snapshot, wants
from ckptcore.arguments import check_components, check_init, check_like, check_seconds, check_step, check_switch
from ckptcore.backend import Backend
from ckptcore.beginning import Beginning, described, prepare
from ckptcore.cadence import Cadence
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.copies import Copies
from ckptcore.errors import CallError, CheckpointError, NotFound, Preempted, Superseded
from ckptcore.events import Event, Listener, log, tell
from ckptcore.formats.foreign import Start
from ckptcore.geometry import CHUNK_BYTES
from ckptcore.guarantees import Derived
from ckptcore.handle import SaveHandle
from ckptcore.heartbeat import Pulse
from ckptcore.history import History, read_run
from ckptcore.keep import Keep
from ckptcore.ledger import Decided, manifest_of
from ckptcore.match import Conversion, Rename, Rules, cast_name
from ckptcore.monitor.observers import Observers
from ckptcore.names import GenerationId, Named, named_generation
from ckptcore.nodes import Local, NodeStore
from ckptcore.preemption import Preemption, is_failure
from ckptcore.records import Level, Manifest, Run
from ckptcore.restored import Restored
from ckptcore.resuming import AGREEMENT_TIMEOUT, Request, Resumer
from ckptcore.saving import Saving, give_up
from ckptcore.schedule import Every, Optimal
from ckptcore.session import Session, together_telling
from ckptcore.store import Storage, open_store
from ckptcore.union import Exchange
from ckptcore.writer import Identity, Shard


class Checkpointer:
    """Saves and restores one run, on every rank of a job. Use it as a context manager.

    `url`: a path, `file://`, `s3://`, `gs://`, `memory://`; the same on every rank.
    `storage`: what a URL cannot say. `local`: where each node keeps data first. `keep`: retention.
    `interval`: steps between saves, `Every(...)` or `Optimal(...)`.
    `require`: the least guarantee a save must give. `derived`: needs of the guarantee that are met inside another
    component or by the step (`{"schedule": "optimizer", "rng": "step"}`). `start_from`: the URL of a run
    whose weights a new run starts from, or a `Source` such as `Safetensors`; used only while this run has no commit of its own.
    `run_id`: the run that has to be at `url`; another one, or none, is refused.
    `on_preemption`: `"save"` saves at the step all ranks agree on and raises `Preempted`, `"ignore"` does nothing.
    `coordinator_timeout`: seconds to wait for every rank's receipt. `max_staging_bytes`: bound of one snapshot.
    `chunk_bytes`: the most bytes of one chunk; smaller ones suit other meshes better.
    `fetch_once`: a chunk that several ranks restore whole is read from the store by one of them, and passed on to the others.
    `verify_rate`: bytes a second at which rank 0 reads each commit back in the background, to note whether it is whole.
    `metrics_port`: the port at which rank 0 serves Prometheus metrics.
    `on_event`: called with an `Event` for everything that happens, some of it in background threads.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        backend: Backend,
        watch: Callable[[], Preemption] | None = None,
        storage: Storage | None = None,
        local: str | os.PathLike[str] | Local | None = None,
        keep: Keep | None = None,
        interval: int | Every | Optimal | None = None,
        require: Level | None = None,
        derived: Derived | None = None,
        start_from: Start | None = None,
        run_id: str | None = None,
        on_preemption: Literal["save", "ignore"] = "save",
        coordinator_timeout: float = 600.0,
        max_staging_bytes: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        fetch_once: bool = False,
        verify_rate: float | None = None,
        metrics_port: int | None = None,
        on_event: Listener | None = None,
    ) -> None:
        if on_preemption not in ("save", "ignore"):
            raise CallError(f"on_preemption={on_preemption!r}: expected 'save' or 'ignore'")
        if require is not None:
            guarantees.strength(require)
        if derived is not None:
            guarantees.check_derived(derived)
        if keep is not None and not isinstance(keep, Keep):
            raise CallError(f"keep={keep!r}: expected Keep(last=…)")
        check_switch(fetch_once, what="fetch_once")
        self._storage = storage or Storage()
        self._store = open_store(url, self._storage)
        self._backend, self._channel, self._clock = backend, backend.channel(), Clock()
        self._pulse = Pulse.of(os.environ, self._channel.rank)
        self._keep, self._derived = keep, dict(derived or {})
        self._require: Level | None = require
        self._timeout, self._limits = coordinator_timeout, snapshot.Limits(chunk_bytes, max_staging_bytes)
        self._exchange = Exchange(self._channel)
        self._local = local if isinstance(local, Local | None) else Local(local)
        self._cadence = Cadence(interval, self._channel, self._clock)
        self._handle: SaveHandle | None = None
        self._watch = watch() if watch is not None and on_preemption == "save" else None  # it may refuse: nothing runs by then
        self._on_event = self._observers = Observers(
            self._store,
            self._channel.rank,
            on_event=on_event,
            metrics_port=metrics_port,
            verify_rate=verify_rate,
            saving=self._in_flight,
        )
        self._resumer = Resumer(
            store=self._store,
            storage=self._storage,
            backend=backend,
            channel=self._channel,
            clock=self._clock,
            start_from=start_from,
            on_event=self._on_event,
            run_id=run_id,
            local=self._local,
            fetch_once=fetch_once,
        )
        self._preempted = self._closed = self._remapped = False
        self._untidy = True
        self._session: Session | None = None
        self._copies: Copies | None = None
        self._history: History | None = None
        self._phases: dict[str, int] = {}
        self._latest: Decided | None = None
        self._last_step = 0
        self._attempts: dict[int, int] = {}

    @property
    def url(self) -> str:
        """The run's canonical URL."""
        return self._store.url

    @property
    def incarnation(self) -> int | None:
        """This job's incarnation; None before the first restore or save."""
        return self._session.incarnation.number if self._session else None

    def restore_or_init(
        self,
        init: Callable[[], Mapping[str, Any]],
        *,
        like: Mapping[str, Any],
        accept_guarantee: Level | None = None,
        remap: Mapping[int, int] | None = None,
        convert: Conversion | None = None,
    ) -> Restored:
        """Restore the run's head into `like`'s containers and shardings, or start fresh with `init()`.

        `like` has the components that `init` makes: arrays or abstract arrays (a sharded run needs their shardings),
        values, and objects that are filled in place. `init` is called only when there is nothing to restore. A
        checkpoint that cannot keep its promise here raises `GuaranteeError` unless `accept_guarantee` names the weaker
        one. `remap` gives, for rank-scoped components, the old rank whose copy each new rank takes. `convert` says how
        a checkpoint of another framework is read (`ckptcore.convert`). All ranks call this alike.
        """
        check_init(init)
        rules = Rules(convert=convert)
        request = Request(like=check_like(like), rules=rules, accept=accept_guarantee, remap=remap)
        with self._pulse.during("restore"):
            restored = self._resume(request) or self._begun(init, like, rules)
            self._pulse.restored(restored.step)
        return restored

    def restore(
        self,
        *,
        like: Mapping[str, Any] | None = None,
        step: int | None = None,
        generation: Named | None = None,
        components: str | Sequence[str] | None = None,
        rename: Rename | None = None,
        cast: Any = None,
        missing: Literal["error", "keep"] = "error",
        extra: Literal["error", "ignore"] = "error",
        accept_guarantee: Level | None = None,
        remap: Mapping[int, int] | None = None,
        convert: Conversion | None = None,
    ) -> Restored:
        """Restore the head, the newest checkpoint of `step`, or `generation`, to go on training from it.

        Without `like`, nested dicts and lists of host arrays. A new incarnation is claimed, so saves that follow
        continue from what was restored. Raises `NotFound` when there is nothing to restore. To read without
        going on, use `open_run`.
        """
        chosen = (components,) if isinstance(components, str) else tuple(components) if components is not None else None
        rules = Rules(rename=rename, cast=cast_name(cast), missing=missing, extra=extra, convert=convert)
        if step is not None and generation is not None:
            raise CallError(f"step={step} and generation={generation!r}: give one of them")
        request = Request(
            like=None if like is None else check_like(like),
            components=chosen,
            chosen=step if generation is None else named_generation(generation),
            rules=rules,
            accept=accept_guarantee,
            remap=remap,
        )
        with self._pulse.during("restore"):
            restored = self._resume(request)
            if restored is None:
                raise NotFound(f"run {self.url} has no checkpoint yet")
            self._pulse.restored(restored.step)
        return restored

    def should_save(self, step: int) -> bool:
        """Whether to save after `step` completed updates; the same answer on every rank. Call it at every step."""
        self._observers.at(step)
        self._pulse.stepped(step)
        if self._watch is not None and not self._preempted:
            self._preempted = self._watch.reached(step)
            if self._preempted:
                self._tell("preempted", None, f"told to stop: the state after step {step} will be saved, then this job ends")
        return self._preempted or self._cadence.due(step)

    def heartbeat(self, step: int | None = None, *, seconds: float | None = None) -> None:
        """Tell a supervisor that training goes on; `should_save` and `save` do so too. Nothing happens unless there is one.

        `step`: completed updates. `seconds`: this rank's own time for the newest of them, without waiting for other ranks:
        by that a rank is found that slows down the rest. Call it on any rank, as often as you like.
        """
        told = None if step is None else check_step(step)
        self._pulse.stepped(told, None if seconds is None else check_seconds(seconds))

    def save(
        self,
        step: int,
        components: Mapping[str, Any],
        *,
        guarantee: Level | None = None,
        metrics: Mapping[str, Any] | None = None,
        metadata: Any = None,
        unchanged: Sequence[str] = (),
    ) -> SaveHandle:
        """Take a snapshot of `components` after `step` completed updates, and save it in the background.

        Returns when the snapshot is safe from later steps. Waits for the save before. If that one failed and nobody has
        seen its error, this one is started all the same, then the error is raised: ranks that have seen it and ranks
        that have not stay in step. `guarantee="weights"` makes a save that no run resumes from. `unchanged` names
        components that are as in the checkpoint before and are not written again. All ranks call this alike, with the
        same `step`. After a preemption it waits for the commit and raises `Preempted`. On JAX's CPU backend an array made
        by `device_put` of a numpy array may be that array's own memory: do not write to it before the save has ended.
        """
        check_step(step)
        check_components(components)
        if self._closed:
            raise CallError("this Checkpointer is closed")
        self._pulse.stepped(step)
        with self._pulse.during("save"):
            earlier = self._earlier_error()
            if isinstance(earlier, Superseded):
                raise earlier
            if isinstance(unchanged, str):
                raise CallError(f"unchanged={unchanged!r}: expected a sequence of component names, such as ({unchanged!r},)")
            order = snapshot.Order(
                components=components,
                derived=self._derived,
                guarantee=guarantee,
                require=self._require,
                metadata=metadata,
                metrics={} if metrics is None else metrics,
                unchanged=unchanged,
                latest=self._latest,
                remapped=self._remapped,
                obstacle=self._obstacle,
                clock=self._clock,
            )
            try:
                handle = self._start(step, order)
                if self._preempted:
                    handle.result()
                    raise Preempted(f"told to stop: step {step} is saved as {handle.generation}")
            except BaseException as error:
                if earlier is not None:
                    error.add_note(f"(the save before had failed too: {earlier})")
                raise
            if earlier is not None:
                raise earlier
            return handle

    def _start(self, step: int, order: snapshot.Order) -> SaveHandle:
        """Take the snapshot and start the background half."""
        session = self._opened()
        generation = self._next_generation(session, step)
        self._cadence.saved(step)  # first: whatever happens to a rank from here on, none waits for it in there
        self._check_order(step)
        started = self._clock.monotonic()
        shard = self._take(session, generation, order)
        told = notes.numbers(order.metrics)  # now: an array among them may be donated to the next step
        seconds = self._clock.monotonic() - started
        shard.phases.update(phases.before(self._phases), stage=int(seconds * 1e6))
        self._tell("staged", generation, detail={"seconds": seconds, "bytes": shard.staged.nbytes})
        saving = Saving(
            store=self._store,
            shard=shard,
            timeout=self._timeout,
            keep=self._keep,
            metrics=told,
            tidy=self._untidy,
            known=self._history,
            node=None if self._local is None else NodeStore.of(self._local, session.run_id, self._clock),
            copies=self._copies,
            clock=self._clock,
            on_event=self._on_event,
        )
        self._last_step = step
        self._handle = SaveHandle(generation, self._finish, saving, waiting=partial(self._pulse.during, "save"))
        return self._handle

    def wait(self) -> None:
        """Wait for the save in flight; raise its error unless it was seen. Nothing of a failed save stays behind."""
        with self._pulse.during("save"):
            error = self._earlier_error()
        if error is not None:
            raise error

    def _earlier_error(self) -> BaseException | None:
        """Wait for the save in flight. Returns an error that nobody has seen, once."""
        if self._handle is None:
            return None
        error = self._handle.wait()
        self._handle = None  # only now: an interrupt while waiting must not lose it
        return error

    def annotate(
        self,
        generation: Named,
        *,
        metrics: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        pin: str | None = None,
    ) -> None:
        """Note on a checkpoint what was learned later. Call it on one rank; retention never takes tagged or pinned ones.

        `generation`: its ID, or a handle, manifest or `Restored` of it. Raises `NotFound` for one that is no checkpoint,
        or not yet, and `CallError` for notes that are none; then nothing is written.
        """
        named = named_generation(generation)
        run_id = self._session.run_id if self._session else read_run(self._store).run_id
        known = ledger.commit(self._store, run_id, named).generation
        notes.annotate(self._store, run_id, known, clock=self._clock, metrics=metrics, tags=tags, pin=pin)

    def close(self) -> None:
        """Wait for the save in flight and let go of signals. Raises a background error nobody has seen."""
        self._pulse.enter("final")
        try:
            self._let_go()
        finally:
            self._pulse.enter("final")  # once more: what ends here is told, what comes is the program's own

    def _let_go(self) -> None:
        if not self._closed:
            self._closed = True
            if self._watch is not None:
                self._watch.close()
        try:
            self.wait()
        finally:
            if self._copies is not None:
                self._copies.close()
            self._observers.close()
            self._backend.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if error is not None and self._handle is not None and not self._handle.done():
            # This may take as long as a dead rank is waited for: nobody should have to guess why, nor over what.
            log.error("the job ends with %s: %s; waiting for save %s", type(error).__name__, error, self._handle.generation)
        end = self._let_go if is_failure(error) else self.close  # a supervisor tells in which phase a rank has failed
        try:
            end()
        except CheckpointError as late:
            if error is None:
                raise
            error.add_note(f"(a save had failed too: {late})")

    def _resume(self, request: Request) -> Restored | None:
        if self._closed:
            raise CallError("this Checkpointer is closed")
        self._check_size()
        self.wait()
        session, resumed = self._resumer.resume(request)
        self._begin(session, resumed.base if resumed else None)
        if resumed is None:
            return None
        self._remapped = any(new != old for new, old in (request.remap or {}).items())
        base, generation = session.incarnation.base, resumed.base.generation
        manifest = manifest_of(resumed.base)
        self._tell("restored", generation, f"reason: {base.reason}", {"captured": manifest.captured})
        return Restored(generation.step, resumed.components, generation, base.guarantee, base.reason, manifest)

    def _begun(self, init: Callable[[], Mapping[str, Any]], like: Mapping[str, Any], rules: Rules) -> Restored:
        """The first state of a run that has nothing to restore."""
        run = self._opened().incarnation.run
        if run.parent is None and run.origin is None:
            return Restored(0, check_components(init(), what="what init() returned"))
        return self._first(run, partial(prepare, run, self._resumer.start_from, init=init, like=like, rules=rules))

    def _first(self, run: Run, prepared: Callable[..., Beginning]) -> Restored:
        """The first state of a run that was begun from another one, or from a checkpoint in another format."""
        work = partial(prepared, url=self.url, backend=self._backend, storage=self._storage, rank=self._channel.rank)
        what = "whether every rank has what the run begins with"
        beginning, told = together_telling(
            self._channel, work, lambda found: wants.tell(found.target), timeout=AGREEMENT_TIMEOUT, what=what
        )
        elsewhere = wants.gather(self._channel, beginning.target, told).elsewhere
        components = self._resumer.restoring(partial(beginning.finish, elsewhere), what=what)
        self._last_step = beginning.step
        return Restored(beginning.step, components, reason=described(run))

    def _check_size(self) -> None:
        """Refuse a job that has got its ranks since: each would take itself for the whole of it, and fence off the others."""
        now = self._backend.topology(()).participants
        if now != self._channel.size:
            raise CallError(
                f"this Checkpointer was made when the job had {self._channel.size} processes; now it has {now}. Make it after"
                " jax.distributed.initialize() or torch.distributed.init_process_group()"
            )

    def _opened(self) -> Session:
        if self._session is None:
            self._check_size()
            self._begin(self._resumer.open_fresh(), None)
        return self._session  # pyright: ignore[reportReturnType]

    def _begin(self, session: Session, base: Decided | None) -> None:
        if self._local is not None and self._local.copies and self._copies is None:
            node = NodeStore.of(self._local, session.run_id, self._clock)
            self._copies = Copies.open(self._store, node, self._channel, self._on_event, timeout=AGREEMENT_TIMEOUT)
        self._session, self._latest, self._attempts, self._remapped = session, base, {}, False
        self._pulse.opened(session.incarnation.number, session.run_id)
        self._history = History(self._store, session.incarnation.run)
        self._untidy = True  # what the incarnations before have left is not collected yet
        self._last_step = base.generation.step if base else 0
        self._cadence.begin(self._last_step)

    def _finish(self, saving: Saving) -> Manifest:
        self._untidy, self._phases = True, {}  # unless all goes well
        started = self._clock.monotonic()
        decided = saving.run()
        self._untidy, self._phases = False, saving.shard.phases
        self._cadence.cost(self._phases["stage"] / 1e6, self._clock.monotonic() - started)
        manifest = manifest_of(decided)
        if manifest.guarantee.level != "weights":
            self._latest, self._remapped = decided, False
        return manifest

    def _take(self, session: Session, generation: GenerationId, order: snapshot.Order) -> Shard:
        """The snapshot. When it cannot be taken here, the other ranks are told, so that they do not wait for it."""
        identity = Identity(
            run_id=session.run_id,
            generation=generation,
            claim=session.incarnation.claim.nonce,
            participants=session.channel.size,
            rank=session.rank,
        )
        try:
            return snapshot.take(self._backend, identity, order, self._exchange, self._limits)
        except Exception as error:
            self._untidy = True
            if identity.participants > 1:
                coordinator = Coordinator(self._store, session.run_id, generation.incarnation, self._clock, self._on_event)
                give_up(coordinator, identity, error)
            raise

    def _obstacle(self, generation: GenerationId) -> str | None:
        return notes.obstacle(self._store, self._opened().run_id, generation)

    def _next_generation(self, session: Session, step: int) -> GenerationId:
        """The attempt counts calls, which all ranks make alike, whatever becomes of them on each."""
        self._attempts = {known: count for known, count in self._attempts.items() if known >= self._last_step}
        attempt = self._attempts[step] = self._attempts.get(step, 0) + 1
        return GenerationId(session.incarnation.number, step, attempt)

    def _check_order(self, step: int) -> None:
        if step < self._last_step:
            raise CallError(
                f"step {step} lies before step {self._last_step}, where this job is; restore the older checkpoint first"
            )

    def _in_flight(self) -> GenerationId | None:
        handle = self._handle
        return None if handle is None or handle.done() else handle.generation

    def _tell(self, kind: Any, generation: GenerationId | None, message: str = "", detail: dict[str, Any] | None = None) -> None:
        tell(self._on_event, Event(kind, self._channel.rank, generation, message, detail or {}))
