"""Which commit a caller means who goes back to a step or a generation (spec: base, "chosen")."""

from __future__ import annotations

from ckptcore.errors import ForkRequired, NotFound
from ckptcore.history import History
from ckptcore.ledger import manifest_of
from ckptcore.names import GenerationId


def named(chosen: int | GenerationId, history: History) -> GenerationId:
    """The generation that a caller goes back to, by its step or its ID.

    Raises `NotFound` when there is no such commit, `ForkRequired` when it holds weights only.
    """
    if isinstance(chosen, int):
        return _of_step(history, chosen)
    decided = history.decided(chosen)
    if decided is None:
        raise history.unreadable.get(chosen) or NotFound(f"run {history.store.url} has no generation {chosen}")
    if manifest_of(decided).guarantee.level == "weights":
        raise _weights_only(history, f"generation {chosen}", f"generation={str(chosen)!r}")
    return chosen


def _of_step(history: History, step: int) -> GenerationId:
    commits = [decided for decided in history.commits() if decided.generation.step == step]
    resumable = [decided.generation for decided in commits if manifest_of(decided).guarantee.level != "weights"]
    if resumable:
        return next((generation for generation in resumable if history.obstacle(generation) is None), resumable[0])
    if commits:
        raise _weights_only(history, f"the checkpoint of step {step}", f"step={step}")
    history.raise_unreadable(step)
    steps = sorted({decided.generation.step for decided in history.commits()})
    raise NotFound(f"run {history.store.url} has no checkpoint of step {step}; it has steps {steps[-20:]}")


def _weights_only(history: History, what: str, option: str) -> ForkRequired:
    return ForkRequired(
        f"{what} holds weights only, and that is a new run, not a continuation:"
        f" Checkpointer(new_url, start_from=…) or open_run({history.store.url!r}).fork(new_url, {option})"
    )
