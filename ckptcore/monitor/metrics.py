"""Prometheus metrics: what a job tells of itself while it runs, and what a run's records tell anybody.

Two ways to the same names: `Metrics` listens to a job's events and is scraped from it, and `exposition` renders a `Status` for
node_exporter's textfile collector. Each has a registry of its own. Alert rules that use them: docs/alerts.yml.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, Literal

from ckptcore.errors import CallError
from ckptcore.events import Event, log
from ckptcore.inspect.failures import failure
from ckptcore.inspect.incidents import PARTS, Account
from ckptcore.inspect.status import Newest, Status


@dataclass(frozen=True)
class Metric:
    """One metric: its kind, its HELP text, and its labels besides `run`, the run's URL."""

    kind: Literal["Gauge", "Counter"]
    help: str
    labels: tuple[str, ...] = ()


CAPTURED = "Unix time at which the state in the newest checkpoint that a job could go on from was captured."
SHARED = {
    "ckpt_newest_commit_captured_timestamp_seconds": Metric("Gauge", CAPTURED),
    "ckpt_newest_commit_step": Metric("Gauge", "Completed updates in that checkpoint."),
    "ckpt_newest_verified_captured_timestamp_seconds": Metric(
        "Gauge", "As ckpt_newest_commit_captured_timestamp_seconds, of the newest whose bytes or files were verified."
    ),
    "ckpt_steps_at_risk": Metric("Gauge", "Steps that would be done again if the job failed now, as far as is known."),
    "ckpt_last_save_phase_seconds": Metric(
        "Gauge",
        "How long the newest save took, by phase: stage (training stands still) and write, wait (for receipts) and commit.",
        ("phase",),
    ),
    "ckpt_last_save_bytes": Metric("Gauge", "Bytes that all ranks wrote for the newest commit."),
    "ckpt_slowest_rank": Metric("Gauge", "The rank that needed the longest for its part of the newest commit."),
    "ckpt_slowest_rank_seconds": Metric("Gauge", "How long that rank needed for the snapshot and the writing."),
}
"""Of a job and of a run's records."""

LIVE = {
    "ckpt_saves_total": Metric(
        "Counter", "Saves whose outcome is known, by outcome: committed, aborted, undecided.", ("outcome",)
    ),
    "ckpt_failures_total": Metric(
        "Counter", "What went wrong, by kind: of aborted saves the reason, and other events.", ("kind",)
    ),
    "ckpt_saved_bytes_total": Metric("Counter", "Bytes that all ranks wrote for commits."),
    "ckpt_phase_seconds_total": Metric("Counter", "Time that saves took, by phase, as rank 0 has it.", ("phase",)),
    "ckpt_retired_total": Metric("Counter", "Commits that retention has retired."),
    "ckpt_save_in_flight": Metric("Gauge", "1 while a save is written and not decided."),
    "ckpt_step": Metric("Gauge", "Completed updates when the job last asked whether to save."),
}
"""Of a job alone."""

STORED = {
    "ckpt_generations": Metric("Gauge", "Generations by state, as `ckpt ls` has them.", ("state",)),
    "ckpt_aborted_generations": Metric("Gauge", "Aborted saves in the ledger, by kind.", ("kind",)),
    "ckpt_backlog_generations": Metric("Gauge", "Retired and aborted generations whose data is still there."),
    "ckpt_backlog_bytes": Metric("Gauge", "Bytes of the retired ones among them."),
}
"""Of a run's records alone."""

SUPERVISED = {
    "ckpt_attempt": Metric("Gauge", "The number of the newest launch by a supervisor."),
    "ckpt_attempt_processes": Metric("Gauge", "Ranks of that launch."),
    "ckpt_attempt_open": Metric("Gauge", "1 while no end of that launch is recorded."),
    "ckpt_incidents": Metric("Gauge", "Launches that ended before their time, by kind.", ("kind",)),
    "ckpt_newest_incident_timestamp_seconds": Metric("Gauge", "Unix time at which the newest of these was noticed."),
    "ckpt_supervised_seconds": Metric(
        "Gauge",
        "Where the time under supervision went: productive, blocked (by saves), detect, relaunch, restore, recompute.",
        ("part",),
    ),
    "ckpt_lost_steps": Metric("Gauge", "Completed updates that were made again after incidents."),
    "ckpt_goodput_ratio": Metric("Gauge", "The productive part of the time under supervision, 0 to 1."),
    "ckpt_goodput_predicted_ratio": Metric("Gauge", "The same as the interval model has it, for the costs that were measured."),
    "ckpt_mtbf_seconds": Metric("Gauge", "Time under supervision by incident."),
}
"""Of a run's records, if a supervisor has launched its job."""

_TROUBLE = frozenset({"fallen-back", "superseded", "undecided", "collection-failed", "damaged", "verification-failed"})
_OUTCOMES = frozenset({"committed", "aborted", "undecided"})
_ENDS = _OUTCOMES | {"failed", "superseded"}
_PHASES = {"staged": "stage", "written": "write", "receipts-complete": "wait", "committed": "commit"}


def client() -> ModuleType:
    """The `prometheus_client` module. Raises `ImportError` that names the extra."""
    try:
        import prometheus_client  # noqa: PLC0415 -- only who wants metrics needs it
    except ImportError as error:
        raise ImportError("metrics need prometheus-client: pip install 'jaxckpt[metrics]'") from error
    return prometheus_client


class _Registered:
    """Metrics in a registry of their own, all with the label `run`."""

    def __init__(self, run: str, metrics: dict[str, Metric]) -> None:
        library = client()
        self.registry, self._run = library.CollectorRegistry(), run
        self._made = {
            name: getattr(library, metric.kind)(name, metric.help, ("run", *metric.labels), registry=self.registry)
            for name, metric in metrics.items()
        }

    def __call__(self, name: str, **labels: str) -> Any:
        return self._made[f"ckpt_{name}"].labels(run=self._run, **labels)


class Metrics:
    """A listener that turns the events of rank 0 into metrics. `registry` is its own. Raises `ImportError` without the extra."""

    def __init__(self, run: str) -> None:
        self._of = _Registered(run, SHARED | LIVE)
        self.registry = self._of.registry
        self._committed_step: int | None = None

    def at(self, step: int) -> None:
        """The job has completed `step` updates."""
        self._of("step").set(step)
        self._of("steps_at_risk").set(step - (self._committed_step or 0))

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if event.kind == "staged":
            self._of("save_in_flight").set(1)
        if event.kind in _ENDS:
            self._of("save_in_flight").set(0)
        if event.kind in _OUTCOMES:
            self._of("saves_total", outcome=event.kind).inc()
        if event.kind == "aborted":
            self._of("failures_total", kind=failure(event.message)).inc()
        if event.kind in _TROUBLE:
            self._of("failures_total", kind=event.kind).inc()
        if event.kind == "retired":
            self._of("retired_total").inc()
        self._timed(event)
        self._captured(event)

    def _timed(self, event: Event) -> None:
        phase, seconds = _PHASES.get(event.kind), event.detail.get("seconds")
        if phase is not None and seconds is not None:
            self._of("last_save_phase_seconds", phase=phase).set(seconds)
            self._of("phase_seconds_total", phase=phase).inc(seconds)
        if event.kind == "committed" and "bytes" in event.detail:
            self._of("last_save_bytes").set(event.detail["bytes"])
            self._of("saved_bytes_total").inc(event.detail["bytes"])
        if event.kind == "committed" and "slowest" in event.detail:
            self._of("slowest_rank").set(event.detail["slowest"])
            self._of("slowest_rank_seconds").set(event.detail["slowest_seconds"])

    def _captured(self, event: Event) -> None:
        captured, generation = event.detail.get("captured"), event.generation
        if captured is None or generation is None or event.detail.get("guarantee") == "weights":
            return  # no job goes on from weights
        if event.kind in ("committed", "restored"):
            self._committed_step = generation.step
            self._of("newest_commit_captured_timestamp_seconds").set(_timestamp(captured))
            self._of("newest_commit_step").set(generation.step)
        if event.kind == "verified":
            self._of("newest_verified_captured_timestamp_seconds").set(_timestamp(captured))


def serve(metrics: Metrics, port: int) -> Callable[[], None]:
    """Serve `metrics` over HTTP on all interfaces; returns what ends that. A port that is taken is logged and stops nothing."""
    try:
        server, thread = client().start_http_server(port, registry=metrics.registry)
    except (OSError, OverflowError) as error:
        log.error("no metrics are served: port %d cannot be had (%s)", port, error)
        return lambda: None
    log.info("metrics are served at port %d", server.server_address[1])
    return lambda: _end(server, thread)


def _end(server: Any, thread: Thread) -> None:
    server.shutdown()
    thread.join(5.0)
    server.server_close()


def check_port(port: int) -> None:
    """Raise `CallError` unless `port` is one, `ImportError` without the extra: on every rank alike, though one of them serves."""
    if type(port) is not int or not 0 <= port <= 65535:
        raise CallError(f"metrics_port={port!r}: expected a port, 1 to 65535, or 0 for any that is free")
    client()


def exposition(status: Status) -> bytes:
    """A `Status` in Prometheus' text format. Raises `ImportError` without the extra."""
    of = _Registered(status.url, SHARED | STORED | (SUPERVISED if status.supervision else {}))
    _newest(of, "newest_commit_captured_timestamp_seconds", status.committed)
    _newest(of, "newest_verified_captured_timestamp_seconds", status.verified)
    if status.committed is not None:
        of("newest_commit_step").set(status.committed.generation.step)
    if status.steps_at_risk is not None:
        of("steps_at_risk").set(status.steps_at_risk)
    _save(of, status)
    for state, count in status.states.items():
        of("generations", state=state).set(count)
    for kind, count in status.failures.items():
        of("aborted_generations", kind=kind).set(count)
    of("backlog_generations").set(len(status.backlog.generations))
    of("backlog_bytes").set(status.backlog.bytes)
    if status.supervision is not None:
        _supervised(of, status.supervision)
    return client().generate_latest(of.registry)


def _save(of: _Registered, status: Status) -> None:
    save = status.save
    if save is None:
        return
    of("last_save_bytes").set(save.bytes)
    phases = {"stage": save.stage, "write": save.write, "wait": save.previous_wait, "commit": save.previous_commit}
    for phase, seconds in phases.items():
        if seconds is not None:
            of("last_save_phase_seconds", phase=phase).set(seconds)
    if save.slowest is not None:
        of("slowest_rank").set(save.slowest)
        of("slowest_rank_seconds").set(save.slowest_seconds)


def _supervised(of: _Registered, told: Account) -> None:
    newest, found = told.newest, told.goodput
    of("attempt").set(newest.number)
    of("attempt_processes").set(newest.plan.processes)
    of("attempt_open").set(newest.end is None)
    for kind, count in Counter(each.kind for each in told.incidents).items():
        of("incidents", kind=kind).set(count)
    for part in PARTS:
        of("supervised_seconds", part=part).set(getattr(found, part))
    of("lost_steps").set(sum(each.lost_steps or 0 for each in told.incidents))
    at = told.incidents[-1].at if told.incidents else None
    numbers = {
        "newest_incident_timestamp_seconds": at and at.timestamp(),
        "goodput_ratio": found.fraction,
        "goodput_predicted_ratio": told.predicted,
        "mtbf_seconds": found.mtbf,
    }
    for name, value in numbers.items():
        if value is not None:
            of(name).set(value)


def _newest(of: _Registered, name: str, newest: Newest | None) -> None:
    if newest is not None and newest.captured is not None:
        of(name).set(newest.captured.timestamp())


def write_textfile(path: str | os.PathLike[str], status: Status) -> None:
    """Put the metrics of a status where node_exporter's textfile collector finds them, whole or not at all.

    The name has to end in `.prom`. Raises `CallError` for a file that cannot be written.
    """
    target = Path(path)
    if target.suffix != ".prom":
        raise CallError(f"{target} does not end in .prom: node_exporter reads no other files")
    data = exposition(status)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)  # node_exporter is another user
        os.replace(temporary, target)  # noqa: PTH105 -- one call for two texts
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
        raise CallError(f"{target} cannot be written: {error.strerror or error}") from error


def _timestamp(captured: str) -> float:
    """Unix time of a record's time; NaN for a date that no calendar has."""
    try:
        return datetime.fromisoformat(captured).timestamp()
    except ValueError:
        return math.nan
