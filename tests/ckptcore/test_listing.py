"""What was noted on generations, and how it is read back: metrics, tags, pins, the best one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ckptcore import ledger, names, records
from ckptcore.clock import Clock
from ckptcore.errors import CallError, NotFound, SaveError
from ckptcore.history import History
from ckptcore.listing import Generation
from ckptcore.names import GenerationId
from ckptcore.run import Run, open_run
from tests.ckptcore.support import HostBackend, Job, checkpointer, contents, file_store, state

FIRST, SECOND = GenerationId(1, 10, 1), GenerationId(1, 20, 1)


@pytest.fixture
def job(place: Path) -> Job:
    """Checkpoints of steps 10 and 20, an aborted save of 30, and one of 40 under way."""
    started = Job(file_store(place))
    started.open()
    started.save(10)
    started.save(20)
    for step in (30, 40):
        started.write(started.next_generation(step), 0)
    started.coordinator().conclude(GenerationId(1, 30, 1))
    return started


@pytest.fixture
def run(job: Job, place: Path) -> Run:
    assert job.number == 1
    return open_run(place, backend=HostBackend())


def listed(run: Run, generation: GenerationId) -> Generation:
    return next(found for found in run.generations() if found.id == generation)


def test_notes_are_read_back(run: Run) -> None:
    run.annotate(FIRST, metrics={"loss": 2.0}, tags=["b", "a"])
    run.annotate(listed(run, FIRST), metrics={"loss": 1.0, "accuracy": 1}, pin="mine")
    assert run.verify(step=20, note=True).ok
    first, second = listed(run, FIRST), listed(run, SECOND)
    assert (first.metrics, first.tags, first.pinned, first.verified) == ({"loss": 1.0, "accuracy": 1.0}, ("a", "b"), True, False)
    assert (second.metrics, second.tags, second.pinned, second.verified) == ({}, (), False, True)
    assert (first.step, first.generation) == (10, FIRST)


@pytest.mark.parametrize("how", ["listed", "manifest", "checkpoint", "text"])
def test_everything_that_has_a_generation_names_it(run: Run, how: str) -> None:
    found = listed(run, FIRST)
    ways = {"listed": found, "manifest": found.manifest, "checkpoint": run.checkpoint(step=10), "text": str(FIRST)}
    run.annotate(ways[how], tags=["x"])  # pyright: ignore[reportArgumentType]
    run.quarantine(ways[how], "spike")  # pyright: ignore[reportArgumentType]
    assert listed(run, FIRST).tags == ("x",)
    assert "spike" in (listed(run, FIRST).obstacle or "")
    assert run.restore(generation=ways[how], components="data") == state(10)["data"]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("step", [30, 40, 50])
def test_only_checkpoints_are_noted_on(run: Run, place: Path, step: int) -> None:
    before = contents(place)
    with pytest.raises(NotFound, match="aborted" if step == 30 else f"no checkpoint 000001-0000000000{step}-1"):
        run.annotate(GenerationId(1, step, 1), pin="x")
    with pytest.raises(NotFound):
        run.quarantine(GenerationId(1, step, 1), "x")
    assert contents(place) == before


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({}, "nothing to note"),
        ({"metrics": {}, "tags": ()}, "nothing to note"),
        ({"tags": "best"}, r"expected a list of tags, such as \['best'\]"),
        ({"tags": ["good", "not good"]}, "tag 'not good'"),
        ({"tags": ["good"], "metrics": {"loss": "0.5"}}, "metric 'loss' is '0.5', expected a number"),
        ({"tags": ["good"], "metrics": {3: 0.5}}, "metric name '3'"),
        ({"tags": ["good"], "metrics": {"": 0.5}}, "metric name ''"),
        ({"metrics": 0.5}, "metrics is float"),
        ({"tags": ["good"], "pin": True}, "pin is bool"),
    ],
)
def test_what_is_no_note_is_refused_whole(run: Run, place: Path, what: dict[str, Any], message: str) -> None:
    before = contents(place)
    with pytest.raises(CallError, match=message):
        run.annotate(FIRST, **what)
    assert contents(place) == before


def test_a_quarantine_needs_a_reason(run: Run) -> None:
    with pytest.raises(CallError, match="reason is NoneType"):
        run.quarantine(FIRST, None)  # pyright: ignore[reportArgumentType]


def test_the_best_is_found(run: Run, job: Job) -> None:
    with pytest.raises(NotFound, match=r"no checkpoint with a metric 'loss' to compare; noted are \[\]"):
        run.best("loss")
    job.save(50)
    for generation, loss in [(FIRST, math.inf), (SECOND, 0.5), (GenerationId(1, 50, 1), math.nan)]:
        run.annotate(generation, metrics={"loss": loss})
    assert (run.best("loss").id, run.best("loss", mode="max").id) == (SECOND, FIRST)
    run.annotate(FIRST, metrics={"loss": 0.5})
    assert run.best("loss").id == run.best("loss", "max").id == SECOND  # of equal ones the newer
    assert run.restore(generation=run.best("loss"), components="data") == state(20)["data"]
    run.quarantine(SECOND, "spike")
    assert run.best("loss").id == FIRST
    ledger.retire(job.store, History.load(job.store).decided(FIRST), "old", clock=Clock())  # pyright: ignore[reportArgumentType]
    assert (listed(run, FIRST).state, listed(run, FIRST).metrics) == ("retired", {})
    with pytest.raises(NotFound, match="noted are"):
        run.best("loss")
    with pytest.raises(CallError, match="mode='least'"):
        run.best("loss", mode="least")  # pyright: ignore[reportArgumentType]


def test_a_hostile_metric_does_not_hide_the_list(run: Run, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    run_id = run.identity.run_id
    note = records.Note(run_id=run_id, generation=str(FIRST), kind="metrics", created=Clock().utc(), metrics={"loss": [1]})
    job.store.put_if_absent(names.note_key(FIRST, "metrics-0"), records.encode(note))
    assert listed(run, FIRST).metrics == {}
    assert "metrics are passed over" in caplog.text


def test_reprs_are_short(run: Run, place: Path) -> None:
    run.annotate(FIRST, metrics={"loss": 0.5}, tags=["a"])
    shown = [repr(found) for found in run.generations()]
    assert shown[0] == "Generation('000001-000000000010-1', 'committed', guarantee='exact', metrics={'loss': 0.5}, tags=('a',))"
    assert shown[1] == "Generation('000001-000000000020-1', 'committed', guarantee='exact')"
    assert shown[2].startswith("Generation('000001-000000000030-1', 'aborted', obstacle='it was aborted: ")
    components = "components=['data', 'optimizer', 'params', 'rng']"
    assert repr(run.checkpoint(step=20)) == f"Checkpoint('000001-000000000020-1', guarantee='exact', {components})"
    assert repr(run.checkpoint(generation=GenerationId(1, 30, 1))) == "Checkpoint('000001-000000000030-1', aborted)"
    with checkpointer(place / "other") as saver:
        fresh = saver.restore_or_init(lambda: state(0), like=state(0))
        assert repr(fresh) == f"Restored(step=0, generation=None, guarantee=None, components={list(state(0))})"
        handle = saver.save(10, state(10))
        assert handle.result().step == 10
        assert repr(handle) == "SaveHandle('000001-000000000010-1', committed)"
    with checkpointer(place / "other") as saver:
        again = saver.restore_or_init(lambda: state(0), like=state(0))
        told = "generation='000001-000000000010-1', guarantee='exact'"
        assert repr(again) == f"Restored(step=10, {told}, components={list(again.components)})"


def test_a_checkpointer_notes_on_its_saves_and_claims_nothing(place: Path) -> None:
    with checkpointer(place) as saver:
        with pytest.raises(NotFound, match="check the URL"):
            saver.annotate(FIRST, pin="x")
        assert saver.incarnation is None
        handle = saver.save(10, state(10))
        handle.result()
        saver.annotate(handle, metrics={"loss": 0.5})
    with checkpointer(place) as other:
        other.annotate(handle, tags=["a"])
        assert other.incarnation is None
    assert (open_run(place).best("loss").id, open_run(place).best("loss").tags) == (FIRST, ("a",))


def test_a_failed_save_shows_why(place: Path) -> None:
    with checkpointer(place) as saver:
        saver.restore_or_init(lambda: state(0), like=state(0))
        (place / "generations").write_text("in the way")
        handle = saver.save(10, state(10))
        with pytest.raises(SaveError):
            handle.result()
        assert repr(handle) == "SaveHandle('000001-000000000010-1', SaveFailed)"
