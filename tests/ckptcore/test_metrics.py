"""Prometheus metrics: of a job that runs, by its events, and of a run, by its records."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ckptcore.errors import CallError
from ckptcore.events import Event, tell
from ckptcore.inspect.status import status
from ckptcore.monitor import metrics
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcore.supervised import moment, supervised
from tests.ckptcore.support import Job, checkpointer, file_store, on_ranks, state
from tests.ckptcore.training import train
from tests.processes import ROOT

GENERATION = GenerationId(1, 20, 1)
CAPTURED = "2026-01-31T12:00:00.500000Z"


def scraped(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and labels; `run` is left out, it is the same everywhere."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "run"]
            assert "run" in sample.labels
            found[sample.name, *labels] = sample.value
    return {key: value for key, value in found.items() if not key[0].endswith("_created")}


def of(listener: metrics.Metrics) -> dict[tuple[str, ...], float]:
    from prometheus_client import generate_latest

    return scraped(generate_latest(listener.registry).decode())


def test_weights_are_nothing_that_a_job_goes_on_from() -> None:
    told = metrics.Metrics("file:///run")
    told(Event("committed", 0, GenerationId(1, 10, 1), detail={"captured": CAPTURED, "guarantee": "exact"}))
    told(Event("committed", 0, GenerationId(1, 20, 1), detail={"captured": CAPTURED, "guarantee": "weights"}))
    assert of(told)["ckpt_newest_commit_step",] == 10


def test_a_save_as_events_tell_it() -> None:
    told = metrics.Metrics("file:///run")
    assert of(told) == {}
    told(Event("restored", 0, GenerationId(1, 10, 1), detail={"captured": CAPTURED}))
    told.at(19)
    assert of(told)["ckpt_steps_at_risk",] == 9
    told(Event("staged", 0, GENERATION, detail={"seconds": 0.5, "bytes": 100}))
    assert of(told)["ckpt_save_in_flight",] == 1
    told(Event("written", 0, GENERATION, detail={"seconds": 2.0, "bytes": 100}))
    told(Event("receipts-complete", 0, GENERATION, detail={"seconds": 3.0}))
    detail = {"seconds": 0.25, "captured": CAPTURED, "bytes": 400, "slowest": 3, "slowest_seconds": 5.5}
    told(Event("committed", 0, GENERATION, detail=detail))
    told.at(21)
    found = of(told)
    assert found.pop(("ckpt_newest_commit_captured_timestamp_seconds",)) == datetime.fromisoformat(CAPTURED).timestamp()
    assert found == {
        ("ckpt_newest_commit_step",): 20,
        ("ckpt_steps_at_risk",): 1,
        ("ckpt_step",): 21,
        ("ckpt_save_in_flight",): 0,
        ("ckpt_last_save_bytes",): 400,
        ("ckpt_saved_bytes_total",): 400,
        ("ckpt_slowest_rank",): 3,
        ("ckpt_slowest_rank_seconds",): 5.5,
        ("ckpt_saves_total", "committed"): 1,
        **{("ckpt_last_save_phase_seconds", phase): seconds for phase, seconds in PHASES.items()},
        **{("ckpt_phase_seconds_total", phase): seconds for phase, seconds in PHASES.items()},
    }


PHASES = {"stage": 0.5, "write": 2.0, "wait": 3.0, "commit": 0.25}


def test_what_goes_wrong_by_kind() -> None:
    told = metrics.Metrics("file:///run")
    for event in (
        Event("staged", 0, GENERATION),
        Event("failed", 0, GENERATION, "no room"),
        Event("aborted", 0, GENERATION, "rank 0 could not write its part: no room"),
        Event("aborted", 0, GENERATION, "no receipt from rank 1 of 2 within 30 s"),
        Event("undecided", 0, GENERATION, "no answer"),
        Event("damaged", 0, GENERATION, "a chunk", {"captured": CAPTURED}),
        Event("retired", 0, GENERATION),
    ):
        told(event)
    assert of(told) == {
        ("ckpt_save_in_flight",): 0,
        ("ckpt_saves_total", "aborted"): 2,
        ("ckpt_saves_total", "undecided"): 1,
        ("ckpt_failures_total", "store full"): 1,
        ("ckpt_failures_total", "missing receipt"): 1,
        ("ckpt_failures_total", "undecided"): 1,
        ("ckpt_failures_total", "damaged"): 1,
        ("ckpt_retired_total",): 1,
    }


def test_the_newest_verified_is_what_was_found_whole() -> None:
    told = metrics.Metrics("file:///run")
    told(Event("verified", 0, GENERATION, detail={"captured": CAPTURED, "bytes": 5}))
    told(Event("verified", 0, GENERATION, detail={"captured": "2026-02-31T12:00:00Z"}))  # a date that no calendar has
    assert str(of(told)["ckpt_newest_verified_captured_timestamp_seconds",]) == "nan"


def scrape(port: int) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return scraped(answer.read().decode())


def port_of(caplog: pytest.LogCaptureFixture) -> int:
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("metrics are served")]
    return int(line.rpartition(" ")[2])


def test_rank_0_serves_metrics_while_the_job_runs(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckptcore")
    found: list[dict[tuple[str, ...], float]] = []

    def work(link: Any) -> None:
        with checkpointer(place, link, metrics_port=0, verify_rate=1e15) as ckpt:
            for step in range(1, 13):
                if ckpt.should_save(step):
                    ckpt.save(step, state(step, link.rank, 2)).result()
            if link.rank == 0:
                found.append(scrape(port_of(caplog)))

    on_ranks(2, work)
    (told,) = found
    assert told["ckpt_newest_commit_step",] == 10
    assert (told["ckpt_step",], told["ckpt_steps_at_risk",]) == (12, 2)
    assert told["ckpt_last_save_bytes",] > 3000
    assert {key[1] for key in told if key[0] == "ckpt_last_save_phase_seconds"} == {"stage", "write", "wait", "commit"}
    with pytest.raises(OSError, match="refused"):
        scrape(port_of(caplog))
    assert not [thread for thread in threading.enumerate() if thread.name == "ckpt-verify"]


def test_a_port_that_is_taken_stops_no_training(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 - as the server does
        taken.listen()
        with checkpointer(place, metrics_port=taken.getsockname()[1]) as ckpt:
            ckpt.save(10, state(10)).result()
    assert "no metrics are served: port" in caplog.text


@pytest.mark.parametrize("wrong", [-1, 65536, "9090", True, 1.5])
def test_a_port_is_one(place: Path, wrong: Any) -> None:
    with pytest.raises(CallError, match="metrics_port"):
        checkpointer(place, metrics_port=wrong)


def test_the_records_of_a_run_as_a_textfile(place: Path) -> None:
    train(place / "run", [10, 20])
    open_run(place / "run").verify(step=10, note=True)
    job = Job(file_store(place / "run"))
    job.open()
    job.write(job.next_generation(30), 0)
    found = status(file_store(place / "run"))
    (place / "ckpt.prom").write_text("old")
    metrics.write_textfile(place / "ckpt.prom", found)
    told = scraped((place / "ckpt.prom").read_text())
    assert found.committed is not None
    assert found.committed.captured is not None
    assert told["ckpt_newest_commit_captured_timestamp_seconds",] == pytest.approx(found.committed.captured.timestamp())
    assert told["ckpt_newest_verified_captured_timestamp_seconds",] < told["ckpt_newest_commit_captured_timestamp_seconds",]
    assert (told["ckpt_newest_commit_step",], told["ckpt_steps_at_risk",]) == (20, 10)
    assert (told["ckpt_generations", "committed"], told["ckpt_generations", "verified"]) == (1, 1)
    assert (told["ckpt_generations", "undecided"], told["ckpt_backlog_generations",]) == (1, 0)
    assert {key[1] for key in told if key[0] == "ckpt_last_save_phase_seconds"} == {"stage", "write", "wait", "commit"}
    assert [path.name for path in place.iterdir() if path.is_file()] == ["ckpt.prom"]
    assert (place / "ckpt.prom").stat().st_mode & 0o777 == 0o644


def test_a_textfile_that_cannot_be_written_leaves_nothing(place: Path) -> None:
    Job(file_store(place / "run"), 1).open()
    found = status(file_store(place / "run"))
    (place / "taken.prom").mkdir()
    for wrong in (place / "no" / "x.prom", place / "taken.prom", place / "x.txt"):
        with pytest.raises(CallError, match=r"cannot be written|does not end in \.prom"):
            metrics.write_textfile(wrong, found)
    assert sorted(path.name for path in place.iterdir()) == ["run", "taken.prom"]


def test_a_textfile_is_replaced_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Job(file_store(place / "run"), 1).open()
    (place / "ckpt.prom").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(metrics.os, "replace", fail)
    with pytest.raises(CallError, match="cannot be written: Input/output error"):
        metrics.write_textfile(place / "ckpt.prom", status(file_store(place / "run")))
    assert (place / "ckpt.prom").read_text() == "old"
    assert sorted(path.name for path in place.iterdir()) == ["ckpt.prom", "run"]


def test_a_supervised_run_by_its_records(place: Path) -> None:
    told = status(supervised(place).store)
    found = scraped(metrics.exposition(told).decode())
    assert found["ckpt_attempt",] == 5
    assert found["ckpt_attempt_processes",] == 4
    assert found["ckpt_attempt_open",] == 1
    assert [found["ckpt_incidents", kind] for kind in ("signal", "hang", "exit")] == [1, 1, 1]
    assert found["ckpt_newest_incident_timestamp_seconds",] == moment(3640).timestamp()
    assert found["ckpt_lost_steps",] == 90
    assert found["ckpt_mtbf_seconds",] == 2400
    parts = {key[1]: value for key, value in found.items() if key[0] == "ckpt_supervised_seconds"}
    assert sum(parts.values()) == 7200
    assert found["ckpt_goodput_ratio",] == pytest.approx(parts["productive"] / 7200)
    assert ("ckpt_goodput_predicted_ratio",) not in found


def test_a_run_that_nobody_supervises_has_none_of_these(place: Path) -> None:
    train(place, [10], size=1)
    text = metrics.exposition(status(file_store(place))).decode()
    assert [name for name in metrics.SUPERVISED if name in text] == []


def test_every_metric_of_the_alert_rules_exists() -> None:
    rules = (ROOT / "docs" / "alerts.yml").read_text()
    named = set(re.findall(r"\bckpt_[a-z_]+", rules))
    known = metrics.SHARED | metrics.LIVE | metrics.STORED | metrics.SUPERVISED
    assert len(named) >= 5
    assert named <= known.keys()
    assert all(metric.help.endswith(".") for metric in known.values())
    assert all(name.endswith("_total") == (metric.kind == "Counter") for name, metric in known.items())


def test_without_the_library_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import ckptcore.monitor.observers, ckptcore.monitor.metrics\nckptcore.monitor.metrics.check_port(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: metrics need prometheus-client: pip install 'jaxckpt[metrics]'" in done.stderr


def test_log_records_have_fields(caplog: pytest.LogCaptureFixture) -> None:
    tell(None, Event("aborted", 3, GENERATION, "why"))
    tell(None, Event("preempted", 1))
    fields = [(record.kind, record.rank, record.generation) for record in caplog.records]  # pyright: ignore[reportAttributeAccessIssue]
    assert fields == [("aborted", 3, str(GENERATION)), ("preempted", 1, None)]
