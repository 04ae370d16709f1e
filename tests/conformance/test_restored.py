"""Restores are judged leaf by leaf and box by box: right answers pass, and each thing that can be wrong is named."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_conformance import fixture
from ckpt_conformance.cases.boxes import process_boxes
from ckpt_conformance.cases.states import state_of
from ckpt_conformance.cases.steps import Job, step_of
from ckpt_conformance.jobs import restored
from ckpt_conformance.oracle.digests import digest

COMPONENTS = {"params": {"scope": "global"}, "rng": {"scope": "rank"}, "step": {"scope": "global"}}
LEAVES = [
    {"component": "params", "name": "params.w", "dtype": "float32", "shape": [4, 6], "sharding": ["x", []]},
    {"component": "params", "name": "params.tied", "dtype": "float32", "shape": [4, 6], "alias": "params.w"},
    {"component": "params", "name": "params.last", "dtype": "int4", "shape": [3], "ranks": [1]},
    {"component": "params", "name": "params.none", "dtype": "int8", "shape": [0, 2], "sharding": [[], "x"]},
    {"component": "rng", "name": "rng.key", "dtype": "uint32", "shape": [2], "shapes": {"1": [3]}},
    {"component": "step", "name": "step", "value": "float"},
]
STATE = state_of("s", {"components": COMPONENTS, "leaves": LEAVES})


def job(**rest: Any) -> Job:
    expect = {"exit": "done", "step": 5, **rest.pop("expect", {})}
    made = step_of({"do": "restore", "state": "s", "processes": 2, "expect": expect, **rest})
    assert isinstance(made, Job)
    return made


def box(name: str, dtype: str, shape: list[int], start: list[int], stop: list[int]) -> dict[str, Any]:
    return {"start": start, "stop": stop, "digest": fixture.box_digest(name, dtype, shape, 5, start, stop)}


def array(dtype: str, *boxes: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": dtype, "boxes": list(boxes)}


def right() -> list[dict[str, Any]]:
    """What two processes with a device each must answer, written out by hand."""
    answers = []
    for rank in (0, 1):
        half = box("params.w", "float32", [4, 6], [2 * rank, 0], [2 * rank + 2, 6])
        extent = 2 + rank
        leaves = {
            "params.w": array("float32", half),
            "params.tied": array("float32", half),
            "params.none": array("int8", box("params.none", "int8", [0, 2], [0, rank], [0, rank + 1])),
            "rng.key": array("uint32", box(f"rank_state.{rank}.rng.key", "uint32", [extent], [0], [extent])),
            "step": {"value": fixture.encode(fixture.value("float", "step", 5))},
        }
        answers.append({"step": 5, "leaves": leaves})
    answers[1]["leaves"]["params.last"] = array("int4", box("params.last", "int4", [3], [0], [3]))
    return answers


def test_the_right_answer_passes() -> None:
    assert restored.check(job(), STATE, right()) == []


def test_who_is_not_done_is_not_asked_and_the_others_are() -> None:
    first, second = right()
    assert restored.check(job(), STATE, [None, second]) == []
    first["step"] = 4
    assert restored.check(job(), STATE, [first, None]) == ["rank 0: step is 4, expected 5"]


def set_(*path: Any, to: Any) -> Any:
    def change(answers: list[dict[str, Any]]) -> None:
        target: Any = answers
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = to

    return change


OTHER = "blake3:" + "0" * 64
FIRST = (0, "leaves", "params.w", "boxes")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_(0, "step", to=4), "rank 0: step is 4, expected 5"),
        (set_(0, "leaves", to=None), "rank 0: the answer has no leaves"),
        (lambda answers: answers[1]["leaves"].pop("step"), "rank 1: leaf step is missing"),
        (set_(0, "leaves", "params.last", to={}), "rank 0: leaf params.last is not of the state"),
        (set_(0, "leaves", "params.w", "dtype", to="float16"), "rank 0: leaf params.w: dtype is 'float16', expected 'float32'"),
        (set_(*FIRST, 0, "digest", to=OTHER), f"rank 0: leaf params.w: box [0:2, 0:6] is {OTHER}, expected blake3:"),
        (set_(*FIRST, to=[]), "rank 0: leaf params.w: box [0:2, 0:6] is missing"),
        (
            lambda answers: answers[0]["leaves"]["params.w"]["boxes"].append(right()[0]["leaves"]["params.w"]["boxes"][0]),
            "is there twice",
        ),
        (set_(*FIRST, 0, "stop", to=[1, 6]), "box [0:1, 0:6] is none that this process holds: [0:2, 0:6]"),
        (set_(*FIRST, 0, "start", to=0), "boxes is [{'start': 0"),
        (set_(*FIRST, 0, to={}), "expected an array of objects with start, stop and digest"),
        (set_(0, "leaves", "params.none", "boxes", to=[]), "leaf params.none: box [0:0, 0:1] is missing"),
        (set_(0, "leaves", "step", "value", to=1.5), "rank 0: leaf step: value is 1.5, expected {'$float'"),
        (set_(0, "leaves", "step", to={}), "rank 0: leaf step: value is None"),
        (set_(0, "leaves", "step", to=5), "rank 0: leaf step: is 5"),
        (
            lambda answers: answers[0]["leaves"].update({"rng.key": answers[1]["leaves"]["rng.key"]}),
            "rank 0: leaf rng.key: box [0:2] is missing",
        ),
    ],
)
def test_what_is_wrong_is_named(change: Any, problem: str) -> None:
    answers = right()
    change(answers)
    found = restored.check(job(), STATE, answers)
    assert any(problem in text for text in found), found


def test_a_process_that_is_alone_may_answer_the_whole() -> None:
    leaf = state_of("s", {"components": COMPONENTS, "leaves": LEAVES[:1]})
    whole = [{"step": 5, "leaves": {"params.w": array("float32", box("params.w", "float32", [4, 6], [0, 0], [4, 6]))}}]
    alone = job(processes=1, mesh={"x": 2})
    assert restored.check(alone, leaf, whole) == []
    assert restored.check(job(), leaf, [*whole, *whole]) != []
    halves = [box("params.w", "float32", [4, 6], [first, 0], [first + 2, 6]) for first in (0, 2)]
    assert restored.check(alone, leaf, [{"step": 5, "leaves": {"params.w": array("float32", *halves)}}]) == []
    assert restored.check(alone, leaf, [{"step": 5, "leaves": {"params.w": array("float32", halves[0])}}]) != []


def test_components_choose_leaves() -> None:
    only = [{"step": 5, "leaves": {"step": answer["leaves"]["step"]}} for answer in right()]
    assert restored.check(job(components=["step"]), STATE, only) == []


def test_remapped_ranks_have_the_state_of_others() -> None:
    answers = right()
    for name in ("rng.key",):
        first, second = (answer["leaves"][name] for answer in answers)
        answers[0]["leaves"][name], answers[1]["leaves"][name] = second, first
    assert restored.check(job(), STATE, answers) != []
    assert restored.check(job(remap={"0": 1, "1": 0}), STATE, answers) == []


def test_a_component_by_reference_has_the_content_of_another_step() -> None:
    answers = right()
    for answer in answers:
        answer["leaves"]["step"]["value"] = fixture.encode(fixture.value("float", "step", 3))
    assert restored.check(job(), STATE, answers) != []
    assert restored.check(job(expect={"content": {"step": 3}}), STATE, answers) == []


def test_a_cast_is_of_floating_arrays_and_their_content() -> None:
    state = state_of("s", {"components": COMPONENTS, "leaves": [LEAVES[0], LEAVES[3]]})
    values = fixture.array("params.w", "float32", [4, 6], 5).astype(ml_dtypes.bfloat16)
    assert np.isfinite(values.astype(np.float32)).any()
    answer = {
        "params.w": array("bfloat16", {"start": [0, 0], "stop": [4, 6], "digest": digest(values.tobytes())}),
        "params.none": array("int8", box("params.none", "int8", [0, 2], [0, 0], [0, 2])),
    }
    cast = job(processes=1, cast="bfloat16")
    assert restored.check(cast, state, [{"step": 5, "leaves": answer}]) == []
    assert restored.check(job(processes=1), state, [{"step": 5, "leaves": answer}]) != []


@given(st.integers(1, 9), st.integers(1, 4))
def test_processes_without_elements_may_leave_their_empty_box_out(extent: int, processes: int) -> None:
    leaf = {"component": "params", "name": "params.w", "dtype": "float32", "shape": [extent], "sharding": ["x"]}
    state = state_of("s", {"components": COMPONENTS, "leaves": [leaf]})
    answers: list[dict[str, Any]] = []
    for rank in range(processes):
        ((start, stop),) = process_boxes([extent], ["x"], {"x": processes}, rank, processes)
        boxes = [box("params.w", "float32", [extent], [*start], [*stop])] if start < stop else []
        answers.append({"step": 5, "leaves": {"params.w": array("float32", *boxes)}})
    assert restored.check(job(processes=processes), state, answers) == []
    spoilt = copy.deepcopy(answers)
    spoilt[0]["leaves"]["params.w"]["boxes"] = []
    assert restored.check(job(processes=processes), state, spoilt) != []
