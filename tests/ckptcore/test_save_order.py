"""Ranks stay in step, whichever of them has already seen that a save failed, and whatever interrupts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcore import writer
from ckptcore.channel import Channel
from ckptcore.errors import CallError, CheckpointError, SaveAborted, SaveFailed
from ckptcore.handle import SaveHandle
from ckptcore.retention import Collector
from ckptcore.run import open_run
from ckptcore.schedule import Every
from tests.ckptcore.support import checkpointer, on_ranks, state


def test_a_failure_that_one_rank_has_seen_and_another_has_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 asks for the result of the first save, rank 1 does not. Both go on to save the same steps."""
    write = writer.write

    def fail_once(store, shard, **options):
        if shard.identity.rank == 1 and shard.identity.generation.step == 1:
            raise OSError("the disk is on fire")
        return write(store, shard, **options)

    monkeypatch.setattr(writer, "write", fail_once)

    errors: list[CheckpointError] = []

    def train(link: Channel) -> list[int]:
        saved = []
        with checkpointer(place, link, interval=Every(seconds=1e-6)) as ckpt:
            for step in range(1, 6):
                if not ckpt.should_save(step):
                    continue
                saved.append(step)
                try:
                    handle = ckpt.save(step, state(step, link.rank, 2))
                    if link.rank == 0:
                        handle.result()
                except CheckpointError as error:
                    errors.append(error)
        return saved

    assert on_ranks(2, train) == [[1, 2, 3, 4, 5]] * 2
    assert {type(error) for error in errors} == {SaveAborted, SaveFailed}
    assert all("on fire" in str(error) for error in errors)
    assert [(known.id.step, known.state) for known in open_run(place).generations()] == [
        (1, "aborted"),
        *((step, "committed") for step in range(2, 6)),
    ]


def test_the_error_of_the_save_before_is_not_lost_when_this_one_cannot_be_made(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_, **__):
        raise OSError("the disk is on fire")

    with checkpointer(place) as ckpt:
        with monkeypatch.context() as patch:
            patch.setattr(writer, "write", fail)
            ckpt.save(10, state(10))
            with pytest.raises(CallError) as caught:
                ckpt.save(5, state(5))
        assert "on fire" in caught.value.__notes__[0]
        assert ckpt.save(20, state(20)).result().step == 20


def test_an_interrupt_while_waiting_loses_neither_the_save_nor_its_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_, **__):
        raise OSError("the disk is on fire")

    monkeypatch.setattr(writer, "write", fail)
    ckpt = checkpointer(place)
    ckpt.save(10, state(10))
    with monkeypatch.context() as patch:
        patch.setattr(SaveHandle, "wait", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(20, state(20))
    with pytest.raises(SaveFailed, match="on fire"):
        ckpt.close()


def test_a_closed_checkpointer_claims_nothing(place: Path) -> None:
    with checkpointer(place) as ckpt:
        ckpt.save(10, state(10))
    with pytest.raises(CallError, match="closed"):
        ckpt.restore(like=state(0))
    assert len(list((place / "incarnations").iterdir())) == 1


def test_garbage_is_looked_for_only_where_there_may_be_some(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first save of an incarnation, and after a failure: it takes a listing of everything that is stored."""
    collected: list[int] = []
    collect = Collector.collect

    def count(collector: Collector, keep: Any) -> Any:
        collected.append(step)
        return collect(collector, keep)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(Collector, "collect", count)
    with checkpointer(place) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step, state(step)).result()
        with monkeypatch.context() as patch:
            patch.setattr(writer, "write", fail)
            with pytest.raises(SaveFailed):
                ckpt.save(40, state(40)).result()
        left = place / "generations" / "000001-000000000040-1"
        assert left.exists()
        for step in (50, 60):
            ckpt.save(step, state(step)).result()
        assert not left.exists()
    assert collected == [10, 50]
