"""What processes are told."""

from __future__ import annotations

import json
from typing import Any

from ckpt_conformance.cases.states import state_of
from ckpt_conformance.cases.steps import Job, step_of
from ckpt_conformance.jobs.request import requests

LEAF = {"component": "params", "name": "params"}
STATES = {
    name: state_of(
        name,
        {
            "components": {"params": {"scope": "global"}},
            "leaves": [{**LEAF, "value": name}],
            "derived": {"rng": "step"},
        },
    )
    for name in ("int", "float")
}


def ask(step: dict[str, Any], processes: int = 1) -> list[dict[str, Any]]:
    job = step_of(step if "background" in step else {"expect": {"exit": "done"}, **step})
    assert isinstance(job, Job)
    made = requests(
        job,
        processes=processes,
        rendezvous="127.0.0.1:1",
        storage={"region": "r"},
        url_of=lambda name: f"file:///{name}",
        node_of=lambda name: f"/nodes/{name}",
        states=STATES,
    )
    return json.loads(json.dumps(made))


def test_requests_differ_in_the_rank_only() -> None:
    made = ask({"do": "save", "state": "int", "saves": [1], "processes": 2, "mesh": {"y": 1, "x": 2}}, processes=2)
    assert [request.pop("rank") for request in made] == [0, 1]
    assert made[0] == made[1]
    assert made[0] == {
        "contract": 1, "verb": "save", "store": "file:///main", "storage": {"region": "r"}, "processes": 2,
        "rendezvous": "127.0.0.1:1", "mesh": {"axes": ["y", "x"], "shape": [1, 2]}, "deadline": 60, "failpoint": None,
        "resume": "head", "saves": [{"step": 1}],
        "derived": {"rng": "step"}, "keep": None, "run_id": None, "accept": None, "remap": None, "single_writer": False,
        "local": None, "copies": 0,
        "state": {"components": {"params": {"scope": "global"}}, "leaves": [{**LEAF, "value": "int", "path": []}]},
    }  # fmt: skip


def test_states_of_saves_are_written_out_and_derived_may_be_said() -> None:
    (made,) = ask({"do": "save", "state": "int", "saves": [{"step": 1, "state": "float"}], "derived": {}})
    assert made["saves"][0]["state"]["leaves"][0]["value"] == "float"
    assert made["derived"] == {}


def test_each_rank_has_its_node() -> None:
    made = ask({"do": "recover", "processes": 2, "nodes": ["a", "b"]}, processes=2)
    assert [request["local"] for request in made] == ["/nodes/a", "/nodes/b"]
    assert all("nodes" not in request for request in made)
    (read,) = ask({"do": "latest"})
    assert "local" not in read


def test_whether_there_are_copies_is_said_to_those_who_make_them() -> None:
    step = {"do": "save", "state": "int", "saves": [1], "processes": 2, "nodes": ["a", "b"]}
    assert [request["copies"] for request in ask({**step, "copies": True}, processes=2)] == [1, 1]
    assert [request["copies"] for request in ask(step, processes=2)] == [0, 0]
    assert "copies" not in ask({"do": "recover", "processes": 2, "nodes": ["a", "b"]}, processes=2)[0]


def test_a_fork_names_its_target_by_url() -> None:
    (made,) = ask({"do": "fork", "target": "other", "run": "first"})
    assert (made["store"], made["target"], made["state"]) == ("file:///first", "file:///other", None)


def test_a_failpoint_goes_to_every_process() -> None:
    point = {"name": "before-data", "rank": 1, "action": "kill", "step": 2}
    made = ask({"do": "save", "state": "int", "saves": [2], "processes": 2, "failpoint": point}, processes=2)
    assert [request["failpoint"] for request in made] == [point, point]


def test_several_failpoints_are_an_array() -> None:
    points = [{"name": "during-copy", "rank": 0, "action": "stop"}, {"name": "during-upload", "rank": 1, "action": "hold"}]
    step = {"do": "save", "state": "int", "saves": [2], "processes": 2, "nodes": ["a", "b"], "copies": True, "failpoint": points}
    made = ask({**step, "background": "job"}, processes=2)
    assert [request["failpoint"] for request in made] == [points, points]
