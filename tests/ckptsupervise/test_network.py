"""Two nodes with a link between them: a node is killed, also the one that leads, the link is cut, and training goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcore.attempts import Attempt, AttemptIncident
from tests.ckptsupervise.network import Machines, Unavailable, machines
from tests.processes import ROOT

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]
ELASTIC = ("--min-nnodes", "1", "--join", "1s", "--silence", "4s")
HERE = ROOT / "tests" / "ckptsupervise"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Machines]:
    try:
        with machines(tmp_path) as made:
            yield made
    except Unavailable as error:
        pytest.skip(str(error))


def toy(net: Machines) -> list[str]:
    return [str(HERE / "toy_nodes.py"), str(net.run), "0.05"]


def incident(attempt: Attempt) -> AttemptIncident:
    assert attempt.end is not None
    assert attempt.end.incident is not None
    return attempt.end.incident


def test_the_node_that_leads_is_killed_and_comes_back(net: Machines) -> None:
    a, b = (net.start(name, toy(net), *ELASTIC) for name in "ab")
    net.wait_until_both_train()
    a.send(signal.SIGKILL)
    b.wait_for("2 ranks on b")
    assert net.ranks_of("a") == []
    again = net.start("a", toy(net), *ELASTIC)
    net.wait_until_both_train()
    for each in (again, b):
        each.send(signal.SIGTERM)
    assert [each.wait() for each in (again, b)] == [143, 143], f"{again.output}\n{b.output}"
    first, second, third = net.attempts[-3:]  # of two that do not start at the same moment one may have begun alone
    assert net.members()[-3:] == [["a", "b"], ["b"], ["a", "b"]]
    assert [each.end and each.end.outcome for each in (first, second, third)] == ["failed", "resized", "preempted"]
    assert (incident(first).kind, incident(first).node) == ("node", "a")
    net.wait_until_none_runs()
    net.check()


def test_the_link_is_cut_and_mended(net: Machines) -> None:
    options = ("--silence", "3s")
    a, b = (net.start(name, toy(net), *options) for name in "ab")
    a.wait_for("training is at step")
    net.link(up=False)
    a.wait_for("cannot be reached: b (10.93.7.2")
    b.wait_for("node a, which led the attempt, is lost: no sign of life for 3 s")
    net.wait_until_none_runs()
    net.link(up=True)
    a.wait_for("attempt 2: 4 ranks on a, b")
    b.wait_for("attempt 2: ranks 2 to 3 of 4, led by a")
    b.send(signal.SIGTERM)
    assert [each.wait() for each in (a, b)] == [143, 143], f"{a.output}\n{b.output}"
    assert net.members() == [["a", "b"], ["a", "b"]]
    told = incident(net.attempts[0])
    assert (told.kind, told.node, told.message) == ("node", "b", "no sign of life for 3 s")
    net.wait_until_none_runs()


def test_of_two_that_are_cut_apart_one_goes_on_until_they_meet_again(net: Machines) -> None:
    """Each would be enough. The one that has lost the number does not take the run from the other."""
    a, b = (net.start(name, toy(net), *ELASTIC) for name in "ab")
    net.wait_until_both_train()
    before = len(net.attempts)
    net.link(up=False)
    net.wait_until_one_trains(before + 1)
    waiting = b if net.members()[-1] == ["a"] else a
    waiting.wait_for("cannot be reached from here")
    net.link(up=True)
    net.wait_until_both_train()
    for each in (a, b):
        each.send(signal.SIGTERM)
    assert [each.wait() for each in (a, b)] == [143, 143], f"{a.output}\n{b.output}"
    assert [len(each) for each in net.members()[before - 1 :]] == [2, 1, 2]
    net.wait_until_none_runs()
    net.check()


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_job_goes_on_without_a_node(net: Machines, framework: str) -> None:
    job = [str(HERE / f"train_{framework}.py"), str(net.run), "1000000", "{}"]
    a, b = (net.start(name, job, *ELASTIC) for name in "ab")
    net.wait_until_both_train()
    b.send(signal.SIGKILL)
    a.wait_for("node b is lost")
    again = net.start("b", job, *ELASTIC)
    again.wait_for("ranks 2 to 3 of 4, led by a", timeout=120)
    a.send(signal.SIGTERM)
    again.send(signal.SIGTERM)
    assert [each.wait() for each in (a, again)] == [143, 143], f"{a.output}\n{again.output}"
    failed = [incident(each) for each in net.attempts if each.end is not None and each.end.outcome == "failed"]
    assert [(each.kind, each.node) for each in failed] == [("node", "b")]
    assert net.members()[-1] == ["a", "b"]
    net.wait_until_none_runs()
    net.check()
