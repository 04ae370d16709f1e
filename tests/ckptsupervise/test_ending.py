"""What is in `words/` was written by real jobs of three ranks, whose rank 0 or 1 was killed, stopped, or raised an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptsupervise import lastwords
from ckptsupervise.deadlines import Hang
from ckptsupervise.ending import Ending, Exit, ending
from tests.ckptsupervise.beats import beat

WORDS = {path.stem: path.read_text() for path in (Path(__file__).parent / "words").glob("*.txt")}
OWN = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    {0}\n{0}\n'


def gone(rank: int, status: int, at: float = 100.0, words: str = "", *, asked: bool = False) -> Exit:
    return Exit(rank=rank, status=status, at=at, words=WORDS.get(words, words), asked=asked)


def culprit(*exits: Exit, beats: tuple = ()) -> tuple:
    found = ending(exits, beats)
    assert found.outcome == "failed"
    return found.kind, found.rank, found.status


def test_all_finished() -> None:
    assert ending([gone(0, 0), gone(1, 0)], []) == Ending(outcome="finished")
    assert ending([gone(0, 0, asked=True), gone(1, 0)], [], stopping="preempted") == Ending(outcome="finished")


def test_it_tells_where_the_rank_was() -> None:
    found = ending([gone(0, 3), gone(1, -15, asked=True)], [beat(0, "save", step=7), beat(1, step=7)])
    assert found == Ending(outcome="failed", kind="exit", rank=0, status=3, phase="save", step=7, message="exit status 3")


# --- torch


def test_torch_a_killed_rank_and_the_survivors_broken_collectives() -> None:
    """All within one look, and the survivors' processes may even be reaped first."""
    exits = gone(0, 1, 99.9, "torch-gloo-reset"), gone(1, -9, 100.2), gone(2, 1, 100.0, "torch-gloo-closed")
    assert culprit(*exits) == ("signal", 1, -9)


def test_torch_an_exception_and_the_survivors_that_the_launcher_ended() -> None:
    exits = gone(0, -15, 100.2), gone(1, 1, 100.0, "torch-own"), gone(2, -9, 101.1), gone(3, 143, 100.1)
    assert culprit(*exits) == ("exit", 1, 1)
    assert ending(exits, []).message == "RuntimeError: bad batch"


def test_torch_an_exception_and_broken_collectives_in_the_same_look() -> None:
    exits = gone(0, 1, 100.0, "torch-gloo-closed"), gone(1, 1, 100.0, "torch-own"), gone(2, 1, 100.0, "torch-gloo-reset")
    assert culprit(*exits) == ("exit", 1, 1)


def test_torch_an_abort_without_a_word() -> None:
    exits = gone(0, 1, 100.1, "torch-gloo-closed"), gone(1, 1, 100.1, "torch-gloo-reset"), gone(2, -6, 100.0)
    assert culprit(*exits) == ("signal", 2, -6)


def test_torch_nobodys_words_were_kept() -> None:
    assert culprit(gone(0, 1, 100.0), gone(1, -9, 100.3), gone(2, 1, 100.0)) == ("signal", 1, -9)
    assert culprit(gone(0, 1, 100.3), gone(1, 1, 100.0), gone(2, -15, 100.4)) == ("exit", 1, 1)


def test_torch_a_silent_rank_had_to_be_killed_after_the_others_gave_up() -> None:
    exits = gone(0, 1, 100.0, "torch-gloo-closed"), gone(1, -9, 101.2), gone(2, 1, 100.1, "torch-gloo-reset")
    found = ending(exits, [beat(0, at=40), beat(1, at=39, step=5), beat(2, at=40)])
    assert (found.kind, found.rank, found.status, found.step) == ("hang", 1, None, 5)
    assert found.message.startswith("no sign of life for 61 s, and rank 0 failed: RuntimeError: ")


def test_torch_a_broken_network_and_ranks_that_were_all_there() -> None:
    exits = gone(0, 1, 100.0, "torch-gloo-closed"), gone(1, -15, 100.1), gone(2, -15, 100.1)
    beats = beat(0, at=99, step=5), beat(1, at=99, step=5), beat(2, at=99, step=5)
    assert culprit(*exits, beats=beats) == ("exit", 0, 1)


def test_a_rank_that_was_a_step_behind_is_missed_by_the_others() -> None:
    exits = gone(0, 1, 100.0, "torch-gloo-closed"), gone(1, -15, 100.1), gone(2, -15, 100.1)
    beats = beat(0, at=40, step=5), beat(1, at=39, step=5), beat(2, at=38, step=4)
    assert culprit(*exits, beats=beats)[:2] == ("hang", 2)


# --- JAX


def test_jax_the_coordinators_death_aborts_the_others() -> None:
    others = gone(1, -6, 100.1, "jax-coordinator-died"), gone(2, -6, 100.1, "jax-coordinator-died")
    assert culprit(gone(0, -9, 100.2), *others) == ("signal", 0, -9)
    assert culprit(gone(0, 1, 100.2, "torch-own"), *others) == ("exit", 0, 1)
    assert culprit(gone(0, 1, 100.0), gone(1, -6, 100.1), gone(2, -6, 100.1)) == ("exit", 0, 1)


def test_jax_another_ranks_death_is_noticed_at_once_and_the_aborts_ten_seconds_later() -> None:
    others = gone(0, -6, 110.0, "jax-rank-died"), gone(2, -6, 110.0, "jax-rank-silent")
    assert culprit(others[0], gone(1, -9, 100.0), others[1]) == ("signal", 1, -9)


def test_jax_a_stopped_rank_is_named_by_the_coordination_service() -> None:
    exits = gone(0, -6, 110.0, "jax-rank-silent"), gone(1, -9, 111.2), gone(2, -6, 110.0, "jax-rank-silent"), gone(3, -9, 111.2)
    beats = [*(beat(rank, at=99.5, step=5) for rank in range(3)), beat(3, at=99.4, step=5)]
    found = ending(exits, beats)
    assert (found.kind, found.rank, found.status) == ("hang", 1, None)
    assert "no sign of life for 10 s, and rank 0 failed: Terminating process because the JAX" in found.message


def test_jax_an_exception_shows_in_the_words_of_who_raised_it() -> None:
    """It waits for the others when it ends, until all are aborted."""
    exits = gone(0, -6, 100.0, "jax-other-raised"), gone(1, -6, 100.0, "jax-own"), gone(2, -6, 100.0, "jax-other-raised")
    found = ending(exits, [])
    assert (found.rank, found.message) == (1, "RuntimeError: bad batch")


# --- what the supervisor did


def test_a_rank_that_was_killed_for_its_silence() -> None:
    hangs = [Hang(rank=2, pid=1, phase="save", seconds=61.2, step=8), Hang(rank=0, pid=1, phase="train", seconds=60.9, step=9)]
    exits = gone(2, -9, asked=True), gone(0, -9, asked=True), gone(1, 1, 100.0, "torch-gloo-reset")
    assert ending(exits, [], hangs=hangs) == Ending(
        outcome="failed", kind="hang", rank=2, phase="save", step=8, message="no sign of life for 61 s"
    )


def test_a_rank_that_was_drained_for_being_slow() -> None:
    exits = gone(0, 143, asked=True), gone(1, 143, asked=True)
    found = ending(exits, [beat(rank, "final", step=5) for rank in (0, 1)], straggler=beat(1, step=4))
    assert (found.outcome, found.kind, found.rank, found.phase, found.step) == ("failed", "straggler", 1, "train", 4)


@pytest.mark.parametrize("status", [143, -15, -9])
def test_preempted(status: int) -> None:
    exits = gone(0, 143, asked=True), gone(1, status, asked=True), gone(2, 0, asked=True)
    assert ending(exits, [], stopping="preempted") == Ending(outcome="preempted")
    assert ending(exits, [], stopping="resized") == Ending(outcome="resized")


def test_what_fails_while_it_is_asked_to_stop_is_told() -> None:
    exits = gone(0, 143, asked=True), gone(1, 1, words=OWN.format("ckptcore.errors.StoreFull: no room"), asked=True)
    found = ending(exits, [], stopping="preempted")
    assert (found.outcome, found.kind, found.rank) == ("preempted", "exit", 1)
    assert found.message == "ckptcore.errors.StoreFull: no room"
    assert ending(exits, [], stopping="resized").outcome == "failed"


def test_collectives_that_break_as_all_stop_are_no_incident() -> None:
    exits = gone(0, 143, asked=True), gone(1, 1, words="torch-gloo-closed", asked=True)
    assert ending(exits, [], stopping="preempted") == Ending(outcome="preempted")


# --- others


def test_superseded_whoever_says_it() -> None:
    words = OWN.format("ckptcore.errors.Superseded: incarnation 3 owns the run")
    found = ending([gone(0, -9, 99.0), gone(1, 1, 100.0, words)], [])
    assert (found.outcome, found.rank, found.message) == (
        "superseded",
        1,
        "ckptcore.errors.Superseded: incarnation 3 owns the run",
    )


def test_sigterm_from_somebody_else() -> None:
    all_told = ending([gone(0, 143), gone(1, 143), gone(2, -15)], [])
    assert (all_told.outcome, all_told.rank, all_told.message) == ("failed", None, "all ranks were ended from outside")
    one_told = gone(0, 1, 100.3, "torch-gloo-closed"), gone(1, -15, 100.0), gone(2, 1, 100.3, "torch-gloo-reset")
    assert culprit(*one_told) == ("signal", 1, -15)


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.",
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 TiB",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_no_memory_left(words: str) -> None:
    assert culprit(gone(0, 1, words=OWN.format(words)), gone(1, -15, 100.1))[0] == "out-of-memory"


def test_the_kernels_kill_for_memory_is_known_by_its_count() -> None:
    exits = gone(0, -9), gone(1, 1, 100.1, "torch-gloo-reset")
    assert ending(exits, []).kind == "signal"
    found = ending(exits, [], memory_kills=1)
    assert (found.kind, found.rank, found.message) == ("out-of-memory", 0, "killed by the kernel, which had no memory left")


def test_a_wrapped_commands_signal() -> None:
    assert culprit(gone(0, 139)) == ("signal", 0, 139)
    assert ending([gone(0, 139)], []).message == "SIGSEGV"
    assert ending([gone(0, -64)], []).message == "SIGRTMAX"
    assert ending([gone(0, -50)], []).message == "signal 50"


def test_of_equals_the_one_that_was_behind() -> None:
    exits = gone(0, 1), gone(1, 1), gone(2, 1)
    assert culprit(*exits, beats=(beat(0, step=5), beat(1, step=4), beat(2, step=5)))[1] == 1


# --- last words


def test_the_last_exception_counts_and_what_follows_it_is_not_of_it() -> None:
    two = OWN.format("ValueError: first") + "\nDuring handling of the above exception, another exception occurred:\n\n"
    two += OWN.format("KeyError: 'second'\n  - with a list\n  - of two") + "E1130 coordination service has failed\n"
    assert lastwords.exception(two) == "KeyError: 'second'\n  - with a list\n  - of two"
    assert not lastwords.is_consequence(two)


def test_real_words() -> None:
    consequences = {name for name, words in WORDS.items() if lastwords.is_consequence(words)}
    assert set(WORDS) - consequences == {"torch-own", "jax-own"}
    assert consequences >= {"jax-rank-silent", "torch-gloo-reset", "jax-coordinator-died"}
    assert lastwords.silent_ranks(WORDS["jax-rank-silent"]) == {1}
    assert lastwords.silent_ranks(WORDS["jax-coordinator-died"]) == set()


def test_a_reset_connection_to_something_else_is_the_ranks_own_failure() -> None:
    assert not lastwords.is_consequence(OWN.format("ConnectionResetError: [Errno 104] Connection reset by peer"))
    assert not lastwords.is_consequence(OWN.format("BrokenPipeError: [Errno 32] Broken pipe"))


@given(st.text(st.sampled_from("Traceback (most recent call last):\n  x: F1130 12 3 a] [rank0]"), max_size=300) | st.text())
def test_any_words_are_read(words: str) -> None:
    assert lastwords.exception("Traceback (most recent call last):\n" + words) is not None
    assert isinstance(lastwords.is_consequence(words), bool)


EXITS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 3, -6, -9, -11, -15, 137, 143]),
        st.floats(100, 112),
        st.sampled_from(["", *WORDS]),
        st.booleans(),
    ),
    max_size=5,
).map(lambda all_: [gone(rank, status, at, words, asked=asked) for rank, (status, at, words, asked) in enumerate(all_)])


@given(EXITS, st.lists(st.integers(0, 9), max_size=5))
@example([gone(0, 0), gone(1, 0), gone(2, 1, words="jax-rank-died")], [])
@example([gone(0, 1, 100.0, "jax-rank-died"), gone(1, 0, 100.0)], [])  # what rank 0 misses has finished
def test_there_is_always_an_answer(exits: list[Exit], steps: list[int]) -> None:
    found = ending(exits, [beat(rank, step=step) for rank, step in enumerate(steps)])
    assert (found.outcome == "finished") == (bool(exits) and all(each.status == 0 for each in exits))
    if found.rank is not None:
        status = {each.rank: each.status for each in exits}.get(found.rank)
        assert status != 0
        assert found.status in (status, None)
