"""Several nodes agree on attempts, and lose each other: supervisors in threads, over one store and real connections."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptcore.attempts import Attempt, Attempts, Supervisor
from ckptcore.errors import StoreError
from ckptsupervise import following, links, rendezvous, several
from ckptsupervise.accounts import Accounts
from ckptsupervise.supervisor import Result
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import file_store
from tests.ckptsupervise.nodes import Died, Node, Nodes, Played, done, failing, nodes, train

pytestmark = pytest.mark.whole


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of the processes that guard
    with nodes(tmp_path) as made:
        yield made


def test_nodes_meet_and_finish(job: Nodes) -> None:
    found = [job.start(name, done(1), min_nnodes=2) for name in ("b", "a")]
    assert [node.result.reason for node in found if node.join() and node.result] == ["finished"] * 2
    (attempt,) = job.attempts
    assert [member.node for member in attempt.plan.members] == ["a", "b"]
    assert (attempt.plan.nodes, attempt.plan.slots, attempt.plan.cause) == (["a", "a", "b", "b"], [0, 1, 0, 1], "start")
    assert attempt.resumed is not None
    assert attempt.end is not None
    assert (attempt.end.outcome, attempt.end.last_step is not None) == ("finished", True)
    b, a = (node.orders[0] for node in found)
    assert (list(a.ranks), list(b.ranks)) == ([0, 1], [2, 3])
    assert a.group is not None
    assert b.group is not None
    assert (a.group.size, a.group.index, b.group.index, b.group.nodes) == (4, 0, 1, 2)
    assert (a.group.master, a.group.coordinator) == (b.group.master, b.group.coordinator)
    left = [key for key in file_store(job.place / "run").list("supervision/") if "/00000002/" in key]
    assert left == [], "nobody announces itself for what will not be"


def test_a_rank_of_another_node_fails_and_all_start_again(job: Nodes) -> None:
    a, b = job.start("a", train, done(1)), job.start("b", failing(0.5), done(1))
    assert [a.join(), b.join()] == [a.result, b.result]
    assert job.outcomes() == ["failed", "finished"]
    end = job.attempts[0].end
    assert end is not None
    assert end.incident is not None
    assert (end.incident.kind, end.incident.rank, end.incident.node, end.incident.slot) == ("signal", 3, "b", 1)
    assert job.members() == [["a", "b"], ["a", "b"]]


def test_the_node_that_leads_dies_and_comes_back(job: Nodes) -> None:
    a, b = job.start("a"), job.start("b", train, train, done(1))
    a.wait_for("training is at step")
    a.die()
    b.wait_for("attempt 2: 2 ranks on b")
    again = job.start("a", done(1))
    assert b.join() is not None
    assert again.join() is not None
    assert job.members() == [["a", "b"], ["b"], ["a", "b"]]
    assert job.outcomes() == ["failed", "resized", "finished"]
    assert [each.plan.cause for each in job.attempts] == ["start", "shrunk", "grown"]
    end = job.attempts[0].end
    assert end is not None
    assert end.incident is not None
    assert (end.incident.kind, end.incident.node, end.incident.rank) == ("node", "a", None)


def test_a_node_that_follows_dies(job: Nodes) -> None:
    a, b = job.start("a", train, done(1)), job.start("b")
    a.wait_for("training is at step")
    b.die()
    assert a.join() is not None
    assert job.members() == [["a", "b"], ["a"]]
    end = job.attempts[0].end
    assert end is not None
    assert end.incident is not None
    assert (end.incident.kind, end.incident.node) == ("node", "b")


def test_a_late_node_makes_the_job_grow(job: Nodes) -> None:
    b = job.start("b", train, done(1))
    b.wait_for("training is at step")
    a = job.start("a", done(1))
    assert a.join() is not None
    assert b.join() is not None
    assert job.members() == [["b"], ["a", "b"]]
    assert job.outcomes() == ["resized", "finished"]


def test_a_spare_node_leaves_a_job_alone_that_is_led(job: Nodes) -> None:
    job.waits = replace(job.waits, silence=2.5, join=0.5)
    found = [job.start(name, done(6)) for name in "ab"]
    found[0].wait_for("training is at step")
    spare = job.start("c")
    assert [node.result.reason for node in (*found, spare) if node.join() and node.result] == ["finished"] * 3
    assert "attempt 1 runs on a, b" in spare.said
    assert (job.members(), spare.orders) == ([["a", "b"]], [])


def test_of_two_that_plan_one_wins(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reaches the other, and each takes itself for the only one. Who loses does not take the run then."""
    monkeypatch.setattr(rendezvous, "answers", lambda *_, **__: False)
    job.waits = replace(job.waits, silence=0.5, enough=30.0)
    found = [job.start(name, done(3)) for name in "ab"]
    assert {node.result.reason for node in found if node.join() and node.result} == {"finished"}
    assert len(job.attempts) == 1
    assert sorted(len(node.orders) for node in found) == [0, 1]
    assert any("cannot be reached from here" in each for node in found for each in node.said)


def test_a_node_is_told_to_stop_and_the_others_go_on(job: Nodes) -> None:
    a, b = job.start("a"), job.start("b", train, done(1))
    a.wait_for("training is at step")
    a.asked.take(signal.SIGTERM)
    result = a.join()
    assert result is not None
    assert (result.reason, result.signal) == ("preempted", signal.SIGTERM)
    assert b.join() is not None
    assert job.members() == [["a", "b"], ["b"]]
    assert job.outcomes() == ["resized", "finished"]


def test_a_node_is_told_to_stop_and_the_others_are_too_few(job: Nodes) -> None:
    a, b = job.start("a", min_nnodes=2), job.start("b", min_nnodes=2)
    a.wait_for("training is at step")
    b.asked.take(signal.SIGTERM)
    assert [node.result.reason for node in (a, b) if node.join() and node.result] == ["preempted", "preempted"]
    assert job.outcomes() == ["preempted"]


def test_a_node_that_keeps_failing_is_left_out(job: Nodes) -> None:
    options = {"tries": 2, "max_restarts": 5}
    a, b = job.start("a", failing(0.3), **options), job.start("b", train, train, done(3), **options)
    assert b.join() is not None
    assert a.join() is not None
    assert job.members() == [["a", "b"], ["a", "b"], ["b"]]
    assert [each.plan.cause for each in job.attempts] == ["start", "restart", "shrunk"]


def test_a_leader_that_came_later_leaves_out_whom_the_others_know_to_fail(job: Nodes) -> None:
    options: dict[str, Any] = {"nnodes": 3, "tries": 2, "max_restarts": 5}
    c, b = job.start("c", failing(0.3), **options), job.start("b", train, train, train, done(2), **options)
    b.wait_for("attempt 3: 2 ranks on b,")
    a = job.start("a", done(2), **options)
    assert [node.result.reason for node in (a, b, c) if node.join() and node.result] == ["finished"] * 3
    assert job.members() == [["b", "c"], ["b", "c"], ["b"], ["a", "b"]]
    assert job.outcomes() == ["failed", "failed", "resized", "finished"]


def test_a_node_that_was_left_out_comes_back(job: Nodes) -> None:
    options = {"tries": 2, "max_restarts": 5, "grow_after": 3.0}
    a = job.start("a", failing(0.3), failing(0.3), done(1), **options)
    b = job.start("b", train, train, train, done(1), **options)
    assert [node.result.reason for node in (a, b) if node.join() and node.result] == ["finished"] * 2
    assert job.members() == [["a", "b"], ["a", "b"], ["b"], ["a", "b"]]
    assert job.outcomes() == ["failed", "failed", "resized", "finished"]


def led_by_one_that_stalls(job: Nodes) -> tuple[Node, Result]:
    """The other one of two nodes, and its end."""
    job.waits = replace(job.waits, enough=3.0)
    a, b = job.start("a", min_nnodes=2), job.start("b", min_nnodes=2)
    a.wait_for("training is at step")
    a.stall()
    result = b.join()
    assert result is not None
    return b, result


def test_a_leader_that_lives_and_records_nothing_is_not_waited_for_for_ever(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives no sign of life on the link, so the attempt ends; but it answers who asks for it."""
    monkeypatch.setattr(links, "TICK", 1e6)
    _, result = led_by_one_that_stalls(job)
    assert result.reason == "no-progress"
    assert "node a, which led it, does not say how" in result.message
    assert job.outcomes() == [None]


@pytest.mark.parametrize("where", ["before it takes the others in", "after"])
def test_a_leader_that_waits_for_its_store_is_not_lost(job: Nodes, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Longer than its silence would be taken for a loss: nothing runs yet, and nobody starts anything that nobody watches."""
    job.waits = replace(job.waits, silence=2.0, assemble=20.0)
    started: list[int] = []
    loaded = threading.Event()
    assemble, load, announced = several.assemble, Accounts.load, Accounts.announced

    def slow_to_assemble(*given: Any, **how: Any) -> Any:
        time.sleep(3.0)
        return assemble(*given, **how)

    def slow_to_load(accounts: Accounts) -> list[Attempt]:
        if not loaded.is_set():
            loaded.set()
            time.sleep(3.0)
        return load(accounts)

    def seen_announced(accounts: Accounts, number: int) -> list[Any]:
        started.append(len(a.orders) + len(b.orders))
        return announced(accounts, number)

    if where == "after":
        monkeypatch.setattr(Accounts, "load", slow_to_load)
        monkeypatch.setattr(Accounts, "announced", seen_announced)
    else:
        monkeypatch.setattr(several, "assemble", slow_to_assemble)
    b, a = job.start("b", done(1), min_nnodes=2), job.start("a", done(1), min_nnodes=2)
    assert [node.result.reason for node in (a, b) if node.join() and node.result] == ["finished"] * 2
    assert job.outcomes() == ["finished"]
    assert set(started) <= {0}, "ranks run, and their supervisor waits for the store"


def test_a_node_is_told_to_stop_while_the_one_that_leads_waits_for_its_store(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LEAVE", 0.5)
    goes_on, load = threading.Event(), Accounts.load

    def slow(accounts: Accounts) -> list[Attempt]:
        assert goes_on.wait(30)
        return load(accounts)

    monkeypatch.setattr(Accounts, "load", slow)
    a, b = job.start("a", done(1), max_restarts=0), job.start("b", done(1))
    b.wait_for("led by a")
    b.asked.take(signal.SIGTERM)
    result = b.join()
    assert result is not None
    assert (result.reason, result.signal) == ("preempted", signal.SIGTERM)
    goes_on.set()
    a.wait_for("attempt 1 failed: node b")
    assert (a.orders, b.orders) == ([], []), "nothing is started for a node that has left"
    a.join()


def test_a_leader_that_is_slow_to_record_the_end_is_not_replaced_for_one_answer(
    job: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare node is there, so enough would be to go on at once, with a job that has finished."""
    end, answers = Accounts.end, rendezvous.answers
    busy = threading.Event()

    def slow(accounts: Accounts, *given: Any) -> None:
        if accounts.node == "a":
            busy.set()
            time.sleep(2.0)
        end(accounts, *given)

    def away(address: str, token: str, *, timeout: float) -> bool:
        leader = job.attempts[0].plan.members[0].address if busy.is_set() else ""
        return address != leader and answers(address, token, timeout=timeout)

    monkeypatch.setattr(Accounts, "end", slow)
    monkeypatch.setattr(rendezvous, "answers", away)
    found = [job.start(name, done(2), min_nnodes=2) for name in "ab"]
    found[0].wait_for("attempt 1: 4 ranks")
    found.append(job.start("c", done(2), min_nnodes=2))
    assert [node.result.reason for node in found if node.join() and node.result] == ["finished"] * 3
    assert job.outcomes() == ["finished"]


def test_a_leader_that_dies_before_it_records_the_end(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had a part in it records what was known there (U-20)."""
    end = Accounts.end

    def dying(accounts: Accounts, *given: Any) -> None:
        if accounts.node == "a":
            raise Died
        end(accounts, *given)

    monkeypatch.setattr(Accounts, "end", dying)
    _, b = job.start("a", failing(1)), job.start("b", train, done(1))
    assert b.join() is not None
    assert job.outcomes() == ["failed", "finished"]
    ended = job.attempts[0].end
    assert ended is not None
    assert ended.incident is not None
    assert (ended.incident.kind, ended.incident.node) == ("node", "a")
    assert "was lost before it recorded how" in ended.incident.message
    assert ended.last_step


def test_processes_that_cannot_be_ended_are_told_of_on_their_node(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = job.start("a", failing(0.5), max_restarts=0), job.start("b", max_restarts=0)
    held = Played.finish
    monkeypatch.setattr(Played, "finish", lambda run, timeout: [7] if run.order.ranks[0] == 2 else held(run, timeout))
    for node in (a, b):
        assert node.join() is not None
    assert "1 process of attempt 1 cannot be ended here" in b.said


def test_what_ends_before_it_begins_is_no_loss_of_the_one_that_leads(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node does not come; the other one takes its time to say that it has nothing to end."""
    job.waits = replace(job.waits, assemble=1.0)
    finished = following.Following._finished

    def slow(self: Any, message: Any) -> Any:
        time.sleep(2.5)
        return finished(self, message)

    monkeypatch.setattr(following.Following, "_finished", slow)
    c = job.start("c", nnodes=3, min_nnodes=3, max_restarts=0)
    c.wait_for("1 of 3 nodes")
    c.stall()
    a, b = (job.start(name, nnodes=3, min_nnodes=3, max_restarts=0) for name in "ab")
    for node in (a, b):
        assert node.join() is not None
    assert any("node c, did not join within 1 s" in each for each in a.said)
    assert not any("is lost" in each for each in b.said), b.said


def test_all_stop_for_want_of_progress(job: Nodes) -> None:
    found = [job.start(name, failing(0.2), min_nnodes=2, max_restarts=1) for name in "ab"]
    assert [node.result.reason for node in found if node.join() and node.result] == ["no-progress"] * 2
    assert job.outcomes() == ["failed", "failed"]


def test_nodes_that_are_gone_are_waited_for_together(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without power refuses nothing: each takes its time to be found gone."""
    together = threading.Barrier(3)

    def answers(address: str, *_: Any, **__: Any) -> bool:
        if address != "gone:0":
            together.wait(10)
        return False

    records = Attempts(file_store(job.place / "run"))
    for n in range(4):
        gone = Supervisor(nonce=f"{n:016x}", host="gone", pid=7)
        facts = {"token": "00" * 32, "slots": 2, "started": "2026-01-01T00:00:00.000000Z", "since": 1}
        records.announce(1, supervisor=gone, node=f"a{n}", address=f"gone:{n}", **facts)
    monkeypatch.setattr(rendezvous, "answers", answers)
    b = job.start("b", done(0.5))
    assert b.join() is not None
    assert (b.error, together.broken) == (None, False)


def test_too_few_nodes_are_named(job: Nodes) -> None:
    job.waits = replace(job.waits, enough=1.0)
    result = job.start("b", min_nnodes=2).join()
    assert result is not None
    assert result.reason == "no-progress"
    assert "1 of 2 nodes (2 at least) are there for attempt 1: b" in result.message
    assert job.attempts == []


def test_a_node_that_has_a_part_and_does_not_come(job: Nodes) -> None:
    """Its supervisor answers, and then takes no part: the attempt ends, and names it."""
    job.waits = replace(job.waits, assemble=1.0)
    b = job.start("b", min_nnodes=2)
    b.wait_for("1 of 2 nodes")
    b.stall()
    a = job.start("a", train, done(1), max_restarts=0)
    result = a.join()
    assert result is not None
    assert result.reason == "no-progress"
    end = job.attempts[0].end
    assert end is not None
    assert end.incident is not None
    assert (end.incident.kind, end.incident.node) == ("node", "b")
    assert "did not join within 1 s" in end.incident.message


def test_a_supervisor_that_hangs_is_lost(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "STUCK", 0.5)
    a, b = job.start("a", min_nnodes=2, max_restarts=0), job.start("b", min_nnodes=2, max_restarts=0)
    a.wait_for("training is at step")
    b.stall()
    result = a.join()
    assert result is not None
    assert result.reason == "no-progress"
    assert "node b is lost: no sign of life for 4 s" in a.said


def test_a_supervisor_that_leads_and_hangs_is_lost(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice that a rank hangs: the others end theirs, and say after a while that nothing comes."""
    monkeypatch.setattr(links, "STUCK", 0.5)
    b, result = led_by_one_that_stalls(job)
    assert "node a, which led the attempt, is lost: no sign of life for 4 s" in b.said
    assert "node a, which led it, does not say how" in result.message


def test_a_newer_supervisor_of_the_same_node_has_it(job: Nodes) -> None:
    first, b = job.start("a"), job.start("b", train, done(1))
    b.wait_for("led by a")
    first.wait_for("training is at step")
    second = job.start("a", done(1))
    result = first.join()
    assert result is not None
    assert result.reason == "superseded"
    assert second.join() is not None
    assert b.join() is not None
    assert job.members() == [["a", "b"], ["a", "b"]]


def test_a_supervisor_of_one_node_takes_the_run(job: Nodes) -> None:
    a, b = job.start("a", failing(1)), job.start("b")
    a.wait_for("training is at step")
    other = Supervisor(nonce="00ff00ff00ff00ff", host="elsewhere", pid=11)
    Attempts(file_store(job.place / "run")).plan(2, supervisor=other, slots=[0], nodes=["elsewhere"], cause="start")
    assert {node.result.reason for node in (a, b) if node.join() and node.result} == {"superseded"}
    assert job.outcomes() == ["superseded", None]


def test_a_store_that_refuses_ends_with_an_event(job: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = FaultyStore(file_store(job.place / "run"), lambda *_: True, lambda: StoreError("no such bucket"))
    monkeypatch.setattr("tests.ckptsupervise.nodes.file_store", lambda _: refusing)
    node = job.start("a")
    assert node.join() is None
    assert isinstance(node.error, StoreError)
    assert [(told.event, told.message) for told in node.told] == [("given-up", "supervision ends: no such bucket")]


def test_a_node_that_comes_when_the_job_has_finished_ends_as_well(job: Nodes) -> None:
    job.waits = replace(job.waits, alone=1.0, enough=30.0)
    for node in [job.start(name, done(0.5), min_nnodes=2) for name in "ab"]:
        node.join()
    late = job.start("b", min_nnodes=2)
    result = late.join()
    assert result is not None
    assert result.reason == "finished"
    assert "attempt 1 finished at 20" in result.message
    assert "no other node has come" in result.message
    assert any("attempt 1 finished at 20" in each and "1 of 2 nodes (2 at least)" in each for each in late.said[:-1])
    assert job.outcomes() == ["finished"]


def test_a_finished_job_that_is_started_again_on_all_nodes_goes_on(job: Nodes) -> None:
    job.waits = replace(job.waits, alone=60.0)
    for _ in range(2):
        found = [job.start(name, done(0.5), min_nnodes=2) for name in "ab"]
        assert [node.result.reason for node in found if node.join() and node.result] == ["finished"] * 2
    assert job.outcomes() == ["finished", "finished"]


def test_nodes_that_are_too_few_to_go_on_with_a_finished_job_say_so(job: Nodes) -> None:
    job.waits = replace(job.waits, alone=10.0, enough=12.0)  # so long that who is slow is not taken for alone
    for node in [job.start(name, done(0.5), nnodes=3, min_nnodes=3) for name in "abc"]:
        node.join()
    found = [job.start(name, nnodes=3, min_nnodes=3) for name in "ab"]
    a = found[0].join()
    assert a is not None
    assert (a.reason, "2 of 3 nodes" in a.message) == ("no-progress", True)
