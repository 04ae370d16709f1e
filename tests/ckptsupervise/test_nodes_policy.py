"""How a job of several nodes goes on: who is left out, who is charged, who comes back. No supervisor runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ckptcore.attempts import Attempt, AttemptEnd, AttemptIncident, AttemptNode, AttemptPlan, Member, Outcome, Supervisor
from ckptcore.errors import CallError
from ckptsupervise.nodes_policy import Choice, NodesPolicy
from ckptsupervise.policy import Policy, Stop

AT = "2026-01-31T12:00:00.000000Z"
NOW = 1769860800.0
"""The same moment."""


def policy_for(nnodes: int = 3, min_nnodes: int = 2, **policy: Any) -> NodesPolicy:
    given = {"nproc": 2, "min_nproc": 2, "max_restarts": 9, "grow_after": 100.0, **policy}
    return NodesPolicy(each=Policy(**given), nnodes=nnodes, min_nnodes=min_nnodes)


def there(names: str, slots: int = 2) -> list[AttemptNode]:
    return [
        AttemptNode(
            run_id=None,
            attempt=1,
            created=AT,
            supervisor=Supervisor(nonce=nonce(name), host=name, pid=1),
            node=name,
            address=f"{name}:1",
            token="0a" * 32,
            slots=slots,
            started=AT,
            since=1,
        )
        for name in names
    ]


def nonce(name: str) -> str:
    return f"{ord(name):08x}"


def plan(number: int, nodes: str, slots: Sequence[int]) -> AttemptPlan:
    return AttemptPlan(
        run_id=None,
        attempt=number,
        created=AT,
        supervisor=Supervisor(nonce=nonce("a"), host="a", pid=1),
        processes=len(nodes),
        slots=list(slots),
        nodes=list(nodes),
        cause="start",
        committed=None,
        members=[Member(node=name, nonce=nonce(name), address="", token="0a" * 32) for name in sorted(set(nodes))],
    )


def past(number: int, nodes: str, outcome: Outcome = "failed", *, slots: Sequence[int] = (), **incident: Any) -> Attempt:
    told = AttemptIncident(kind="exit", **incident) if outcome == "failed" else None
    end = AttemptEnd(
        run_id=None,
        attempt=number,
        outcome=outcome,
        incident=told,
        last_sign=None,
        detected=AT,
        stopped=AT,
        restored_step=None,
        last_step=None,
        committed=None,
    )
    return Attempt(plan=plan(number, nodes, slots or [0, 1] * (len(nodes) // 2)), end=end)


def decided(found: Choice | Stop) -> Choice:
    assert isinstance(found, Choice)
    return found


def names(found: Choice | Stop) -> str:
    return "".join(decided(found).nodes)


def test_the_first_attempt_has_all() -> None:
    found = decided(policy_for().decide([], there("cab"), NOW, 0.0))
    assert ("".join(found.nodes), found.slots, found.cause, found.delay) == ("aabbcc", [0, 1] * 3, "start", 0.0)


def test_more_than_are_wanted_wait_and_those_that_ran_go_on() -> None:
    assert names(policy_for(nnodes=2).decide([], there("abc"), NOW, 0.0)) == "aabb"
    before = [past(1, "bbcc", "resized")]
    assert names(policy_for(nnodes=2).decide(before, there("abc"), NOW, 0.0)) == "bbcc"


def test_nodes_may_have_different_numbers_of_slots() -> None:
    found = decided(policy_for(min_nnodes=2).decide([], [*there("a", 4), *there("b", 1)], NOW, 0.0))
    assert (found.nodes, found.slots) == (list("aaaab"), [0, 1, 2, 3, 0])


@pytest.mark.parametrize("slot", [0, None])
def test_a_node_that_keeps_failing_is_left_out_and_comes_back(slot: int | None) -> None:
    """Because of a rank, or since it was lost."""
    history = [past(number, "aabbcc", node="b", slot=slot) for number in (1, 2)]
    policy = policy_for(tries=2)
    assert names(policy.decide(history[:1], there("abc"), NOW, 0.0)) == "aabbcc"
    found = decided(policy.decide(history, there("abc"), NOW, 0.0))
    assert ("".join(found.nodes), found.cause) == ("aacc", "shrunk")
    running = plan(3, "aacc", [0, 1] * 2)
    assert policy.room(history, running, there("b"), NOW + 50) == ""
    assert policy.room(history, running, there("b"), NOW + 101) == "node b is there"


def test_no_node_is_left_out_if_too_few_would_remain() -> None:
    history = [past(number, "aabb", node="b", slot=0) for number in (1, 2)]
    assert names(policy_for().decide(history, there("ab"), NOW, 0.0)) == "aabb"


def test_a_slot_is_left_out_before_its_node_is() -> None:
    policy = policy_for(min_nproc=1)
    history = [past(number, "aabbcc", node="b", slot=0) for number in (1, 2)]
    found = decided(policy.decide(history, there("abc"), NOW, 0.0))
    assert ("".join(found.nodes), found.slots) == ("aabcc", [0, 1, 1, 0, 1])
    assert policy.grows_at(history, plan(3, "aabcc", [0, 1, 1, 0, 1]), dict.fromkeys("abc", 2)) == NOW + 100
    last = [past(number, "aabcc", slots=[0, 1, 1, 0, 1], node="b", slot=1) for number in (3, 4)]
    assert names(policy.decide([*history, *last], there("abc"), NOW, 0.0)) == "aacc"


def test_room_is_for_those_that_have_no_part() -> None:
    running, policy = plan(1, "aabb", [0, 1] * 2), policy_for()
    assert policy.room([], running, there("ab"), NOW) == ""
    assert policy.room([], running, there("c"), NOW) == "node c is there"
    assert policy_for(nnodes=2).room([], running, there("c"), NOW) == ""
    anew = AttemptNode(**{**{name: getattr(there("b")[0], name) for name in AttemptNode.__struct_fields__ if name != "format"},
                          "supervisor": Supervisor(nonce="0" * 8, host="b", pid=2)})  # fmt: skip
    assert policy_for(nnodes=2).room([], running, [anew], NOW) == "node b has a new supervisor"


@pytest.mark.parametrize(("outcome", "reason"), [("finished", "finished"), ("preempted", "preempted"), ("superseded",) * 2])
def test_the_end_is_the_same_for_all_nodes(outcome: Outcome, reason: str) -> None:
    history, policy = [past(1, "aabb", outcome)], policy_for()
    found = [policy.stop(history, NOW), policy.decide(history, there("ab"), NOW, 0.0)]
    assert [each.reason for each in found if isinstance(each, Stop)] == [reason] * 2
    assert policy.stop([past(1, "aabb", "resized")], NOW) is None
    assert policy.stop([], NOW) is None


def test_it_stops_without_progress() -> None:
    history = [past(number, "aabb", node="a", slot=0) for number in range(1, 4)]
    assert policy_for(max_restarts=3).stop(history, NOW) is None
    found = policy_for(max_restarts=2).stop(history, NOW)
    assert found is not None
    assert found.reason == "no-progress"


def test_a_job_that_has_lost_all_its_supervisors() -> None:
    history = [past(1, "aabb", "lost")]
    assert decided(policy_for().decide(history, there("ab"), NOW, 0.0)).cause == "resumed-supervisor"


def test_what_can_be_dropped() -> None:
    assert not policy_for(nnodes=2, min_nnodes=2).can_drop(plan(1, "aabb", [0, 1] * 2))
    assert policy_for(nnodes=2, min_nnodes=1).can_drop(plan(1, "aabb", [0, 1] * 2))
    assert policy_for(nnodes=2, min_nnodes=2, min_nproc=1).can_drop(plan(1, "aabb", [0, 1] * 2))


@pytest.mark.parametrize(("nnodes", "min_nnodes"), [(2, 3), (2, 0)])
def test_what_cannot_be(nnodes: int, min_nnodes: int) -> None:
    with pytest.raises(CallError, match="min_nnodes"):
        policy_for(nnodes, min_nnodes)


def test_a_date_that_no_calendar_has_stops_nobody() -> None:
    first = past(1, "aabb", slots=[0, 1, 0, 1], node="a", rank=0, slot=0)
    assert first.end is not None
    odd = replace(first, end=structs.replace(first.end, stopped="2026-02-31T12:00:00Z"))
    assert isinstance(policy_for(2).decide([odd], there("ab"), NOW, 0.0), Choice)
