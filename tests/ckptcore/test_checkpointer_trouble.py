"""What a training loop sees when things go wrong: errors in the background, two jobs, damage, a full disk."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from ckptcore import names
from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer, Restored
from ckptcore.errors import (
    CallError,
    CheckpointError,
    Damaged,
    GuaranteeError,
    NotFound,
    SaveAborted,
    SaveFailed,
    StagingLimit,
    Superseded,
    UnsupportedLeaf,
)
from ckptcore.events import Event
from ckptcore.history import History
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from ckptcore.schedule import Every
from tests.ckptcore.support import (
    check_commits,
    checkpointer,
    file_store,
    on_ranks,
    run_ranks,
    same,
    state,
    weights,
)
from tests.ckptcore.training import must_not_init, train
from tests.processes import wait_for_file


def corrupt(url: Path, generation: GenerationId, where: str = "/ranks/00001") -> None:
    """Invert every byte of a rank's data files: what lies where in them differs from run to run."""
    for key in file_store(url).list(names.state_prefix(generation)):
        if where in key and "/d/" in key:
            data = (url / key).read_bytes()
            (url / key).write_bytes(bytes(255 - byte for byte in data))


# Errors in the background


def fail_next(ckpt: Checkpointer, url: Path, step: int) -> None:
    """Make the save of `step` fail: a file lies where a directory has to be made."""
    generation = GenerationId(ckpt.incarnation or 1, step, 1)
    blocked = url / names.generation_prefix(generation).rstrip("/")
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_bytes(b"in the way")


@pytest.fixture
def started(place: Path) -> Checkpointer:
    ckpt = checkpointer(place, storage=None)
    ckpt.save(10, state(10)).result()
    return ckpt


def test_result_raises_what_went_wrong_and_then_it_is_told(started: Checkpointer, place: Path) -> None:
    fail_next(started, place, 20)
    with pytest.raises(SaveFailed, match="rank 0 could not write its part of 000001-000000000020-1"):
        started.save(20, state(20)).result()
    assert started.save(30, state(30)).result().step == 30
    started.close()


def test_the_next_save_raises_what_nobody_asked_for_once(started: Checkpointer, place: Path) -> None:
    fail_next(started, place, 20)
    started.save(20, state(20))
    with pytest.raises(SaveFailed):
        started.save(30, state(30))
    # The save that raised the older error went on all the same: other ranks had no error to raise.
    manifest = started.save(30, state(30)).result()
    assert (manifest.generation, manifest.parent) == ("000001-000000000030-2", "000001-000000000030-1")
    started.close()


def test_close_raises_what_nobody_asked_for_once(started: Checkpointer, place: Path) -> None:
    fail_next(started, place, 20)
    started.save(20, state(20))
    with pytest.raises(SaveFailed):
        started.close()
    started.close()
    with pytest.raises(CallError, match="closed"):
        started.save(30, state(30))


def test_an_error_of_the_loop_is_not_replaced_by_that_of_a_save(place: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught, checkpointer(place) as ckpt:  # noqa: PT012
        ckpt.save(10, state(10)).result()
        fail_next(ckpt, place, 20)
        ckpt.save(20, state(20))
        raise ZeroDivisionError
    assert "a save had failed too" in "".join(caught.value.__notes__)


def test_a_rejected_save_leaves_nothing_behind(started: Checkpointer, place: Path) -> None:
    before = set(file_store(place).list())
    with pytest.raises(UnsupportedLeaf, match="object"):
        started.save(20, state(20) | {"extra": object()})
    with pytest.raises(GuaranteeError, match="which this save lacks"):
        started.save(20, {key: part for key, part in state(20).items() if key == "params"})
    assert set(file_store(place).list()) == before
    assert str(started.save(20, state(20)).generation) == "000001-000000000020-3"
    started.close()


def test_a_staging_limit_that_is_too_small_is_an_error_and_the_next_save_works(place: Path) -> None:
    def run(link: Channel) -> list[str]:
        with checkpointer(place, link, max_staging_bytes=2000) as ckpt:
            small = state(10, link.rank, 2) | {"extra": np.zeros(2)}
            outcomes = []
            for components in (small | {"extra": np.zeros(1000)}, small):
                try:
                    ckpt.save(10, components).result()
                    outcomes.append("committed")
                except CheckpointError as error:
                    outcomes.append(error.kind)
            return outcomes

    outcomes = on_ranks(2, run)
    assert [kinds[1] for kinds in outcomes] == ["committed"] * 2
    assert {kinds[0] for kinds in outcomes} <= {"staging-limit", "save-aborted"}
    assert StagingLimit.kind in {kinds[0] for kinds in outcomes}


def test_a_save_that_one_rank_rejects_leaves_the_ranks_in_step(place: Path) -> None:
    """With a rule by seconds the ranks talk at every save: none of them waits for the one that raised."""

    def run(link: Channel) -> str:
        with checkpointer(place, link, interval=Every(seconds=60.0)) as ckpt:
            own = {"extra": object()} if link.rank == 0 else {}
            with pytest.raises((UnsupportedLeaf, SaveAborted)) as caught:
                ckpt.save(10, state(10, link.rank, 2) | own).result()
            ckpt.save(20, state(20, link.rank, 2)).result()
            return str(caught.value)

    messages = on_ranks(2, run)
    assert all("object" in message for message in messages)


def test_a_rank_that_never_saves_is_named_and_nobody_hangs(place: Path) -> None:
    def run(link: Channel) -> None:
        with checkpointer(place, link, coordinator_timeout=0.05) as ckpt:
            ckpt.restore_or_init(lambda: state(0, link.rank, 3), like=state(0, link.rank, 3))
            if link.rank == 0:
                wait_for_file(place / names.receipt_key(GenerationId(1, 10, 1), 1))  # the other one is not late
            if link.rank != 2:
                ckpt.save(10, state(10, link.rank, 3)).result()

    outcomes = run_ranks(3, run)
    for rank in (0, 1):
        error = outcomes[rank]
        assert isinstance(error, SaveAborted)
        assert "no receipt from rank 2 of 3" in str(error)
        assert error.missing == (2,)
    assert outcomes[2] is None
    assert [r.step for r in train(place, [10], size=3)] == [0, 0, 0]


def test_unequal_values_are_refused_and_the_next_save_works(place: Path) -> None:
    def run(link: Channel) -> str:
        with checkpointer(place, link) as ckpt:
            with pytest.raises(SaveAborted) as caught:
                ckpt.save(10, state(10, link.rank, 2) | {"data": {"position": link.rank}}).result()
            ckpt.save(20, state(20, link.rank, 2)).result()
            return str(caught.value)

    for message in on_ranks(2, run):
        assert "'data' differs between rank 0 and rank 1" in message
        assert "PerRank" in message


# Two jobs


def test_of_two_jobs_the_older_stops_and_nothing_is_overwritten(place: Path) -> None:
    old = checkpointer(place)
    old.restore_or_init(lambda: state(0), like=state(0))
    old.save(10, state(10)).result()
    with checkpointer(place) as new:
        assert new.restore_or_init(must_not_init, like=state(0)).step == 10
        old.save(20, state(999))
        new.save(20, state(20)).result()
        with pytest.raises(Superseded, match="incarnation 1"):
            old.wait()
        with pytest.raises(Superseded):
            old.save(30, state(999)).result()
        new.save(30, state(30)).result()
    old.close()
    assert [str(g) for g in check_commits(file_store(place))] == [
        "000002-000000000030-1",
        "000002-000000000020-1",
        "000001-000000000010-1",
    ]
    assert same(open_run(place).restore()["params"]["w"], weights(30))


# Damage


@pytest.mark.parametrize("where", ["/ranks/00000", "/ranks/00001"])
def test_one_ranks_damage_makes_all_ranks_fall_back(place: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    train(place, [10, 20])
    corrupt(place, GenerationId(1, 20, 1), where)
    events: list[Event] = []
    restored = train(place, [15], on_event=events.append)
    assert [(r.step, r.reason) for r in restored] == [(10, "fallen-back")] * 2
    for rank, found in enumerate(restored):
        assert same(dict(found.components), state(10, rank, 2))
    assert {event.rank for event in events if event.kind == "fallen-back"} == {0, 1}
    assert "every rank leaves it" in caplog.text
    told = History.load(file_store(place)).notes[GenerationId(1, 20, 1)]
    assert [note.kind for note in told] == ["damaged"]
    assert re.search(r"chunk 0 of array '(params|optimizer)\.", told[0].text)
    assert [r.step for r in train(place, [])] == [15, 15]


def test_nothing_but_damage_is_an_error_on_all_ranks(place: Path) -> None:
    train(place, [10])
    corrupt(place, GenerationId(1, 10, 1))

    def run(link: Channel) -> Restored:
        return checkpointer(place, link).restore_or_init(must_not_init, like=state(0, link.rank, 2))

    outcomes = run_ranks(2, run)
    assert all(isinstance(outcome, Damaged) for outcome in outcomes)
    assert "000001-000000000010-1" in str(outcomes[1])


def test_a_step_that_is_named_is_taken_or_an_error(place: Path) -> None:
    train(place, [10, 20], size=1)
    corrupt(place, GenerationId(1, 20, 1), "/ranks/")
    with checkpointer(place) as ckpt, pytest.raises(Damaged, match="params"):
        ckpt.restore(like=state(0), step=20)
    with checkpointer(place) as ckpt, pytest.raises(NotFound, match=r"no checkpoint of step 15; it has steps \[10, 20\]"):
        ckpt.restore(like=state(0), step=15)


# A full disk

FULL_DISK = """
    import pathlib, resource, signal, sys
    import numpy as np
    from tests.ckptcore.support import check_commits, checkpointer, file_store, state

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    url = pathlib.Path(sys.argv[1])
    with checkpointer(url) as ckpt:
        ckpt.save(10, state(10)).result()
        big = state(20) | {"extra": {"x": np.arange(1 << 18, dtype=np.float64)}}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            ckpt.save(20, big).result()
        except Exception as error:
            print(type(error).__name__, "from", type(error.__cause__).__name__)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        ckpt.save(30, big).result()
    print([generation.step for generation in check_commits(file_store(url))])
"""


def test_a_full_disk_is_a_clear_error_and_the_next_save_works(place: Path) -> None:
    """The file size limit stands for a disk without room: writes beyond it fail with EFBIG."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(place / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["SaveFailed from StoreFull", "[30, 10]"]
