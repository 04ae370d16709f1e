"""Ranks that read each chunk once between them: which bytes they read, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptcore import sharewire, sharing
from ckptcore.channel import Channel
from ckptcore.errors import CallError, DeadlineExceeded
from ckptcore.geometry import Box
from ckptcore.limits import limits
from ckptcore.shareplan import Plan
from ckptcore.sharing import Sharing
from ckptcore.store import Storage, open_store
from tests.ckptcore.counting_channel import CountingChannel
from tests.ckptcore.sharing_jobs import DECLARED, WIDTH, not_passed_on, nothing_stays, restored, restored_right, save, state
from tests.ckptcore.support import checkpointer, commits, on_ranks, run_ranks, same
from tests.reading import bytes_read, stored_bytes


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_stays():
        yield


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return not_passed_on(caplog)


# Bytes


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_job_reads_what_is_stored_once(place: Path, size: int) -> None:
    save(place / "run", size, 1)
    stored = stored_bytes(place / "run")
    with bytes_read() as read:
        restored_right(place / "run", size)
    assert 0.9 * stored < read.bytes < 1.25 * stored  # each rank reads the records for itself
    with bytes_read() as read:
        restored_right(place / "run", size, fetch_once=False)
    assert read.bytes > 0.9 * size * 4 * (1 << 20)


def test_as_host_arrays_too(place: Path) -> None:
    save(place / "run", 3, 1)

    def body(link: Channel) -> dict[str, Any]:
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            return dict(ckpt.restore(components=["params", "optimizer"], accept_guarantee="coverage").components)

    with bytes_read() as read:
        found = on_ranks(3, body)
    assert all(same(components["optimizer"], state(1, 0, 3)["optimizer"]) for components in found)
    assert read.bytes < 1.25 * stored_bytes(place / "run")


def test_other_ranks_than_have_saved(place: Path) -> None:
    """Each wants a part of what is cut, some parts lie in one chunk, and the rest is wanted whole."""
    save(place / "run", 2, 1)

    def body(link: Channel) -> None:
        like = {name: component for name, component in state(0, link.rank, link.size).items() if name != "extra"}
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            found = ckpt.restore(like=like, components=["params", "optimizer"], accept_guarantee="coverage").components
        assert same(dict(found), {name: component for name, component in state(1, link.rank, 5).items() if name in found})

    on_ranks(5, body)


def test_through_memory_of_an_object_store() -> None:
    """Its reads take another way, and TensorStore's memory is shared through the context."""
    import tensorstore as ts

    storage = Storage(context=ts.Context())

    def body(link: Channel) -> None:
        with checkpointer("memory://run", link, derived=DECLARED, storage=storage, fetch_once=True) as ckpt:
            first = ckpt.restore_or_init(lambda: state(1, link.rank, 2), like=state(0, link.rank, 2))
            ckpt.save(1, first.components).result(60)
        assert same(restored("memory://run", link, storage=storage), state(1, link.rank, 2))  # pyright: ignore[reportArgumentType]

    on_ranks(2, body)


def test_components_that_lie_in_an_earlier_generation(
    place: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    """Two databases, which the ranks ask for in another order: nobody waits for what the other reads after it has waited."""
    monkeypatch.setattr(sharewire, "STALL_TIMEOUT", 5.0)

    def first(link: Channel) -> None:
        with checkpointer(place / "run", link, derived=DECLARED, chunk_bytes=256 << 10) as ckpt:
            ckpt.save(1, state(1, link.rank, 2)).result(60)
            later = {name: component for name, component in state(2, link.rank, 2).items() if name != "params"}
            ckpt.save(2, later, unchanged=["params"]).result(60)

    def second(link: Channel) -> dict[str, Any]:
        like = state(0, link.rank, 2)
        order = list(like) if link.rank == 0 else list(reversed(like))
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            return dict(ckpt.restore(like={name: like[name] for name in order}).components)

    on_ranks(2, first)
    for rank, components in enumerate(on_ranks(2, second)):
        assert same(components["params"], state(1, rank, 2)["params"])
        assert same(components["optimizer"], state(2, rank, 2)["optimizer"])
    assert told() == []


def test_what_is_each_ranks_own_is_not_shared(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 2, 1)
    plans: list[Plan] = []
    real = sharing.plan
    monkeypatch.setattr(sharing, "plan", lambda *given: (plans.append(real(*given)), plans[-1])[1])
    restored_right(place / "run", 2)
    assert plans[0] == plans[1]
    shared = {name for _, name, _ in plans[0].chunks}
    assert shared == {"params.w", "params.scale", "optimizer.mu"}
    assert {len(plans[0].of(rank)) for rank in range(2)} <= {len(plans[0].chunks) // 2, len(plans[0].chunks) // 2 + 1}


def test_nor_if_two_ranks_take_it_from_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 2, 1)
    plans: list[Plan] = []
    real = sharing.plan
    monkeypatch.setattr(sharing, "plan", lambda *given: (plans.append(real(*given)), plans[-1])[1])

    def body(link: Channel) -> dict[str, Any]:
        with checkpointer(place / "run", link, derived=DECLARED, fetch_once=True) as ckpt:
            like = state(0, link.rank, 2)
            return dict(ckpt.restore(like=like, remap={0: 0, 1: 0}, accept_guarantee="coverage").components)

    assert all(same(components["extra"], state(1, 0, 2)["extra"]) for components in on_ranks(2, body))
    assert {name for _, name, _ in plans[0].chunks} == {"params.w", "params.scale", "optimizer.mu"}


def test_a_run_that_starts_from_another(place: Path) -> None:
    save(place / "run", 3, 1)

    def body(link: Channel) -> dict[str, Any]:
        options = {"derived": DECLARED, "start_from": str(place / "run"), "fetch_once": True}
        with checkpointer(place / "new", link, **options) as ckpt:
            return dict(ckpt.restore_or_init(lambda: state(0, link.rank, 3), like=state(0, link.rank, 3)).components)

    with bytes_read() as read:
        found = on_ranks(3, body)
    assert all(same(components["params"], state(1, rank, 3)["params"]) for rank, components in enumerate(found))
    assert read.bytes < 1.25 * stored_bytes(place / "run")


def test_one_process_makes_no_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place / "run", 1, 1)
    monkeypatch.setattr(sharing, "Server", lambda *_, **__: pytest.fail("for whom?"))
    restored_right(place / "run", 1)


def test_ranks_that_disagree_whether_to_are_told(place: Path) -> None:
    save(place / "run", 2, 1)
    outcomes = run_ranks(2, lambda link: restored(place / "run", link, fetch_once=link.rank == 0))
    assert all(isinstance(outcome, CallError) and "fetch_once" in str(outcome) for outcome in outcomes)


# The exchange


def sent_by(place: Path, size: int, wishes: Callable[[int], Any]) -> list[list[int]]:
    (checkpoint,) = commits(open_store(place / "run"))
    array = checkpoint.array(checkpoint.leaves("params")["params.w"])[0]

    def body(link: Channel) -> list[int]:
        counting = CountingChannel(link)
        with Sharing(counting, limits(), timeout=30) as shared:
            shared.agree([("state/", array, boxes) for boxes in wishes(link.rank)])
            shared.end()
            counting.gather(b"", timeout=30, what="the end")
        return counting.sent[:-1]

    return on_ranks(size, body)


def test_equal_ranks_tell_a_digest_and_different_ones_each_list_once(place: Path) -> None:
    save(place / "run", 1, 1)
    whole, half = Box.whole((WIDTH, WIDTH)), Box((0, 0), (WIDTH // 2, WIDTH))
    assert [len(sent) for sent in sent_by(place, 4, lambda _: [[whole]])] == [1] * 4
    sent = sent_by(place, 4, lambda rank: [[whole]] if rank < 2 else [[half]])
    assert [messages[1] > 0 for messages in sent] == [True, False, True, False]


def test_ranks_wait_for_each_other_to_say_what_they_want_but_not_for_ever(place: Path) -> None:
    save(place / "run", 2, 1)

    counting: list[CountingChannel] = []

    def body(link: Channel) -> None:
        if link.rank == 0:
            counting.append(CountingChannel(link))
            with Sharing(counting[0], limits(), timeout=0.1) as shared:
                shared.during(lambda shared: shared.agree([]))

    outcomes = run_ranks(2, body)
    assert isinstance(outcomes[0], DeadlineExceeded)
    assert len(counting[0].sent) == 1  # who comes later finds one exchange, as every rank takes part in one
