"""The hand-over: one rank opens the run, all ranks get the same, and agree on how it went."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore import errors, names
from ckptcore.channel import Channel, LocalChannel
from ckptcore.errors import (
    CheckpointError,
    Damaged,
    DeadlineExceeded,
    GuaranteeError,
    NotFound,
    Retired,
    StructureMismatch,
    Superseded,
    UnsupportedFormat,
)
from ckptcore.filestore import FileStore
from ckptcore.incarnations import Incarnation
from ckptcore.session import Session, is_damage, open_session, together
from tests.ckptcore.support import Hub, Job, ThreadChannel, file_store, flip, on_ranks, run_ranks


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


def claim(store: FileStore) -> Incarnation:
    return Job(store).open()


def test_every_rank_gets_the_same_incarnation(store: FileStore) -> None:
    first = Job(store)
    first.open()
    first.save(10)

    def open_one(link: Channel) -> Session:
        return open_session(store, link, lambda: claim(store))

    sessions = on_ranks(3, open_one)
    assert [session.rank for session in sessions] == [0, 1, 2]
    assert (
        len({(s.run_id, s.incarnation.number, s.incarnation.claim.nonce, s.incarnation.base.generation) for s in sessions}) == 1
    )
    bases = [session.base() for session in sessions]
    assert bases[0] is not None
    assert bases == [bases[0]] * 3


def test_a_fresh_run_has_no_base(store: FileStore) -> None:
    assert open_session(store, LocalChannel(), lambda: claim(store)).base() is None


@pytest.mark.parametrize("error", [Damaged("lost"), GuaranteeError("weaker"), Superseded("late"), StructureMismatch("s", ["d"])])
def test_what_rank_0_meets_is_raised_by_all(store: FileStore, error: CheckpointError) -> None:
    def refuse() -> Incarnation:
        raise error

    outcomes = run_ranks(3, lambda link: open_session(store, link, refuse))
    assert [type(outcome) for outcome in outcomes] == [type(error)] * 3
    assert outcomes[0] is error
    assert str(outcomes[1]) == f"rank 0: {error}"


def test_every_kind_of_error_survives_the_hand_over(store: FileStore) -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CheckpointError)]
    for kind in kinds:
        error = kind("summary", []) if kind is StructureMismatch else kind("summary \ud800")

        def refuse(error: CheckpointError = error) -> Incarnation:
            raise error

        other = run_ranks(2, lambda link, refuse=refuse: open_session(store, link, refuse))[1]
        assert type(other) is kind
        assert "rank 0: summary" in str(other)
        assert getattr(other, "missing", ()) == getattr(other, "differences", ()) == ()


def test_a_rank_that_never_comes_is_named(store: FileStore) -> None:
    hub = Hub(2)
    with pytest.raises(DeadlineExceeded, match=r"opening the run: nothing from ranks \[0\]"):
        ThreadChannel(hub, 1).broadcast(None, timeout=0.01, what="opening the run")
    with pytest.raises(DeadlineExceeded, match=r"whether all is well: nothing from ranks \[1\]"):
        together(ThreadChannel(Hub(2), 0), lambda: 1, timeout=0.01, what="whether all is well")
    assert not (Path(store.root)).exists()


def test_a_base_that_is_not_the_one_handed_over_is_damage(store: FileStore) -> None:
    first = Job(store)
    first.open()
    decided = first.save(10)
    session = open_session(store, LocalChannel(), lambda: claim(store))
    path = Path(store.root) / names.ledger_key(decided.generation)
    flip(path, 100)
    with pytest.raises(Damaged, match=r"ledger/000001-000000000010-1\.json"):
        session.base()
    path.unlink()
    with pytest.raises(NotFound, match=r"rank 0 does not see .*same storage mounted"):
        session.base()


def outcomes(*errors: Exception | None) -> list[int | BaseException]:
    """What each rank returns or raises when it meets the error given for it, else returns its number."""

    def work(rank: int) -> int:
        error = errors[rank]
        if error is not None:
            raise error
        return rank

    return run_ranks(len(errors), lambda link: together(link, lambda: work(link.rank), timeout=5, what="x"))


def test_all_is_well() -> None:
    assert outcomes(None, None, None) == [0, 1, 2]


def test_one_ranks_failure_is_everybodys() -> None:
    own = Damaged("chunk 7")
    found = outcomes(None, own, None)
    assert found[1] is own
    assert [type(error) for error in found] == [Damaged] * 3
    assert str(found[0]) == str(found[2]) == "rank 1: chunk 7"


def test_damage_anywhere_counts_as_damage_everywhere() -> None:
    """Else one rank would leave the checkpoint, and another stop."""
    found = outcomes(NotFound("a leaf"), None, Retired("gone"), Damaged("chunk 7"))
    assert [type(error) for error in found] == [Retired] * 4


def test_an_error_of_any_kind_lets_nobody_wait() -> None:
    found = outcomes(None, ZeroDivisionError("a bug"))
    assert type(found[0]) is CheckpointError
    assert str(found[0]) == "rank 1: ZeroDivisionError: a bug"
    assert type(found[1]) is ZeroDivisionError


def test_what_counts_as_damage() -> None:
    assert is_damage(Damaged("x"))
    assert is_damage(Retired("x"))
    assert not is_damage(UnsupportedFormat("x"))
    assert not is_damage(NotFound("x"))
