"""Reading beside a live job: nothing is claimed, nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import ledger, names
from ckptcore.clock import Clock
from ckptcore.errors import CallError, Damaged, DeadlineExceeded, InvalidRecord, NotFound
from ckptcore.history import History
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.run import Run, open_run
from ckptcore.store import Storage
from tests.ckptcore.support import (
    SHAPE,
    FakeClock,
    HostBackend,
    Job,
    checkpointer,
    contents,
    file_store,
    flip,
    same,
    state,
    weights,
)


@pytest.fixture
def job(place: Path) -> Job:
    """A job that lives, with checkpoints of steps 10 and 20 and a save under way."""
    started = Job(file_store(place))
    started.open()
    started.save(10)
    started.save(20, metadata={"loss": 0.5})
    started.write(started.next_generation(30), 0)
    return started


def spoil(url: Path, generation: GenerationId) -> None:
    for key in file_store(url).list(f"{names.state_prefix(generation)}ranks/"):
        if "/d/" in key:
            flip(url / key, 20)


def test_there_is_no_run(place: Path) -> None:
    with pytest.raises(NotFound, match="check the URL"):
        open_run(place / "nowhere")
    assert not (place / "nowhere").exists()


def test_a_run_shows_where_it_is(job: Job, place: Path) -> None:
    assert job.latest is not None
    assert repr(open_run(place)) == f"Run('file://{place}')"


def test_reading_changes_nothing(job: Job, place: Path) -> None:
    before = contents(place)
    run = open_run(place, backend=HostBackend())
    assert run.head() is not None
    assert run.latest() == run.head()
    assert run.latest(verified=True) is None
    assert len(run.generations()) == 3
    assert run.explain()
    assert run.verify(deep=True).ok
    assert same(run.restore(components="params")["w"], weights(20))
    assert same(run.restore(like={"params": state(0)["params"]}, components=["params"], rank=1)["params"], state(20)["params"])
    with pytest.raises(DeadlineExceeded):
        next(run.follow(timeout=0.0))
    assert contents(place) == before
    assert job.coordinator().conclude(GenerationId(1, 30, 1)).committed is False


def test_everything_or_one_component_as_host_arrays(job: Job, place: Path) -> None:
    run = open_run(place)
    assert run.url == job.store.url
    found = run.restore(rank=1)
    assert same(found["rng"], {"key": np.array([20, 1], np.uint32)})
    assert same(found["optimizer"], state(20)["optimizer"])
    assert run.restore(components="data") == state(20)["data"]
    assert set(run.restore(components=["data", "params"])) == {"data", "params"}
    assert run.restore(step=10, components="data") == state(10)["data"]
    assert run.restore(generation="000001-000000000010-1", components="data") == state(10)["data"]
    assert run.restore(components="params", cast="float16")["w"].dtype == np.float16
    with pytest.raises(NotFound, match="no component 'ema'"):
        run.restore(components="ema")
    with pytest.raises(CallError, match="needs a framework"):
        run.restore(like=state(0))


def test_one_component_into_a_target(job: Job, place: Path) -> None:
    run = open_run(place, backend=HostBackend())
    assert same(run.restore(like=state(0)["params"], components="params"), state(20)["params"])
    found = run.restore(like={"w": np.zeros(SHAPE, np.float16)}, components="params", cast="float16", extra="ignore")
    assert same(found["w"], weights(20).astype(np.float16))
    assert job.number == 1


def test_a_damaged_head_is_passed_over_loudly(job: Job, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    spoil(place, GenerationId(1, 20, 1))
    before = contents(place)
    assert same(open_run(place).restore(components="params")["w"], weights(10))
    assert "falling back" in caplog.text
    for named in ({"step": 20}, {"generation": "000001-000000000020-1"}):
        with pytest.raises(Damaged, match=r"params\.[bw]"):
            open_run(place).restore(components="params", **named)  # pyright: ignore[reportArgumentType]
    spoil(place, GenerationId(1, 10, 1))
    with pytest.raises(NotFound, match="no checkpoint that can be read"):
        open_run(place).restore(components="params")
    assert job.number == 1
    assert contents(place).keys() == before.keys()


def test_a_checkpoint_that_is_retired_while_it_is_read_is_passed_over(job: Job, place: Path) -> None:
    run = open_run(place)
    assert run.head() is not None
    assert job.latest is not None
    store = file_store(place)

    class Late(Run):
        """Retention takes the head between the choice and the reading."""

        def _restore(self, checkpoint: Any, *rest: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if checkpoint.generation.step == 20:
                ledger.retire(store, checkpoint.decided, "old", clock=Clock())
                store.delete_prefix(names.generation_prefix(checkpoint.generation))
            return super()._restore(checkpoint, *rest)

    late = Late(store, Storage())
    assert same(late.restore(components="params")["w"], weights(10))


def test_the_list_of_generations(job: Job, place: Path) -> None:
    job.coordinator().conclude(GenerationId(1, 30, 1))
    job.write(job.next_generation(40), 0)
    job.save(50)
    ledger.retire(job.store, History.load(job.store).decided(GenerationId(1, 10, 1)), "old", clock=Clock())  # pyright: ignore[reportArgumentType]
    flip(place / names.ledger_key(GenerationId(1, 50, 1)), 0)
    found = {g.id.step: (g.state, g.obstacle) for g in open_run(place).generations()}
    assert {step: state for step, (state, _) in found.items()} == {
        10: "retired",
        20: "committed",
        30: "aborted",
        40: "undecided",
        50: "unreadable",
    }
    assert found[20][1] is None
    assert "no receipt from rank 1" in (found[30][1] or "")


def test_the_next_start_is_explained(job: Job, place: Path) -> None:
    run = open_run(place)
    assert run.explain() == [
        "000001-000000000020-1: the next start resumes from here (step 20), if its files are whole",
        "000001-000000000030-1: undecided; the next start commits it if it is proven whole, else aborts it",
    ]
    run.quarantine("000001-000000000020-1", "a loss spike")
    run.quarantine(GenerationId(1, 10, 1), "too")
    assert run.explain()[:3] == [
        "000001-000000000020-1: passed over, it is marked quarantine: a loss spike",
        "000001-000000000010-1: passed over, it is marked quarantine: too",
        "no checkpoint to resume from: the next start stops with an error, since it would lose what the run has",
    ]
    assert run.head() is None
    with pytest.raises(NotFound):
        run.quarantine("000001-000000000099-1", "?")
    assert job.number == 1


def test_verifications_are_noted_if_asked(job: Job, place: Path) -> None:
    run = open_run(place)
    assert run.verify(step=10, deep=True, note=True).ok
    verified = run.latest(verified=True)
    assert verified is not None
    assert verified.step == 10
    spoil(place, GenerationId(1, 20, 1))
    assert not run.verify(deep=True, note=True).ok
    head = run.head()
    assert head is not None
    assert head.step == 10
    assert job.number == 1


def test_notes_by_hand(job: Job, place: Path) -> None:
    run = open_run(place)
    run.annotate("000001-000000000010-1", tags=["keep"], pin="mine", metrics={"loss": 1.0})
    kinds = {note.kind for note in History.load(job.store).notes[GenerationId(1, 10, 1)]}
    assert kinds == {"tag", "pin", "metrics"}


def test_commits_are_followed_as_they_come(job: Job, place: Path) -> None:
    clock = FakeClock()
    steps = iter([40, 50])
    clock.on_sleep = lambda: None if job.save(next(steps)).committed else pytest.fail("no commit")
    run = Run(file_store(place), Storage(), clock=clock)
    following = run.follow(timeout=60.0)
    assert [next(following).step, next(following).step] == [40, 50]
    assert [manifest.step for _, manifest in zip(range(3), run.follow(after="000001-000000000010-1"), strict=False)] == [
        20,
        40,
        50,
    ]


def test_an_older_save_that_is_rolled_forward_is_followed_too(place: Path) -> None:
    started = Job(file_store(place))
    started.open()
    late = started.next_generation(10)
    for rank in (0, 1):
        started.write(late, rank)
    started.save(20)
    clock = FakeClock()
    clock.on_sleep = lambda: started.coordinator().conclude(late)
    following = Run(file_store(place), Storage(), clock=clock).follow(timeout=1.0)
    assert next(following).step == 10
    with pytest.raises(DeadlineExceeded, match="no new commit after 1 s"):
        next(following)


def test_a_decision_that_cannot_be_read_is_an_error_for_who_asks_for_it(job: Job, place: Path) -> None:
    flip(place / names.ledger_key(GenerationId(1, 10, 1)), 0)
    run = open_run(place)
    for named in ({"step": 10}, {"generation": "000001-000000000010-1"}):
        with pytest.raises(InvalidRecord, match=r"ledger/000001-000000000010-1\.json"):
            run.checkpoint(**named)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFound, match=r"no checkpoint of step 77; it has steps \[20\]"):
        run.checkpoint(step=77)
    head = run.head()
    assert head is not None
    assert head.step == 20
    assert job.number == 1


def test_metadata_comes_with_the_manifest(job: Job, place: Path) -> None:
    head = open_run(place).head()
    assert head is not None
    assert head.metadata == {"loss": {"$float": "0.5"}}
    assert open_run(place).identity.run_id == head.run_id
    assert job.number == 1


def test_a_run_that_only_ever_aborted_is_explained(place: Path) -> None:
    started = Job(file_store(place))
    started.open()
    started.write(started.next_generation(10), 0)
    started.coordinator().conclude(GenerationId(1, 10, 1))
    assert open_run(place).explain()[-1] == "no checkpoint to resume from: the next start is a fresh one"


def test_a_reader_that_retention_overtakes_reads_what_is_there_now(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it reads the head, the job commits newer ones and retention takes all that it knew of."""
    with checkpointer(place, keep=Keep(last=2)) as ckpt:
        ckpt.save(10, state(10)).result()
        run = open_run(place)
        read = Checkpoint.read

        def slow(checkpoint: Checkpoint, wanted: Any) -> Any:
            if checkpoint.generation.step == 10:
                for step in (20, 30, 40):
                    ckpt.save(step, state(step)).result()
            return read(checkpoint, wanted)

        monkeypatch.setattr(Checkpoint, "read", slow)
        found = run.restore(components="params")
    assert same(found["w"], weights(40))


def test_what_is_marked_is_read_only_when_it_is_named(place: Path) -> None:
    with checkpointer(place) as ckpt:
        for step in (10, 20):
            ckpt.save(step, state(step)).result()
    run = open_run(place)
    run.verify(step=20, note=True)
    run.quarantine("000001-000000000020-1", "loss spike")
    assert run.checkpoint().generation.step == 10
    assert run.latest(verified=True) is None
    run.quarantine("000001-000000000010-1", "loss spike")
    with pytest.raises(NotFound):
        run.checkpoint()
    with pytest.raises(NotFound):
        run.restore(components="params")
    assert same(run.restore(components="params", step=20)["w"], weights(20))
