"""Whether a restore gave back the content of a step: every leaf, each box of each process, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckpt_conformance import fixture
from ckpt_conformance.cases.boxes import Box, process_boxes, whole_box
from ckpt_conformance.cases.states import State
from ckpt_conformance.cases.steps import Job
from ckpt_conformance.jobs.expect import same
from ckpt_conformance.oracle.digests import digest
from ckpt_conformance.oracle.elements import ELEMENTS, logical_bytes


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A leaf as one process must answer it: the array or value of `stored`, its name in the store, at `step`."""

    stored: str
    step: int
    value: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    boxes: tuple[Box, ...] = ()
    cast: str | None = None

    @property
    def answered_dtype(self) -> str:
        """The dtype after the cast, which only floating-point arrays take."""
        return self.cast if self.cast and "float" in self.dtype else self.dtype

    def digest(self, box: Box) -> str:
        """The digest over the elements of a box."""
        array = fixture.array(self.stored, self.dtype, self.shape, self.step, start=box[0], stop=box[1])
        if self.answered_dtype != self.dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                array = array.astype(ELEMENTS[self.answered_dtype].dtype)
        return digest(logical_bytes(array, self.answered_dtype))


def check(job: Job, state: State, answers: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """What is wrong with the answers of a restore, one a rank, None of those that are not done.

    Empty: each process that is done has its boxes with the expected content.
    """
    alone = len(answers) == 1
    problems = []
    for rank, answer in enumerate(answers):
        if answer is None:
            continue
        own = _check_rank(wanted(job, state, rank, len(answers)), answer.get("leaves"), alone=alone)
        problems += [f"rank {rank}: {problem}" for problem in _check_step(job, answer) + own]
    return problems


def wanted(job: Job, state: State, rank: int, processes: int) -> dict[str, Wanted]:
    """What a process must answer: layout name → leaf."""
    leaves = {leaf["name"]: leaf for leaf in state["leaves"]}
    components = job.fields.get("components")
    return {
        name: _wanted(job, state, leaf, leaves.get(leaf.get("alias"), leaf), rank=rank, processes=processes)
        for name, leaf in leaves.items()
        if (components is None or leaf["component"] in components) and rank in leaf.get("ranks", [rank])
    }


def _wanted(job: Job, state: State, leaf: Mapping[str, Any], origin: Mapping[str, Any], *, rank: int, processes: int) -> Wanted:
    """`origin` is the leaf itself, or the one that it is an alias of."""
    expect = job.expect
    step = (expect.content.get(leaf["component"], expect.step) if expect else None) or 0
    is_own = state["components"][leaf["component"]]["scope"] == "rank"
    source = (job.fields.get("remap") or {}).get(str(rank), rank)
    stored = f"rank_state.{source}.{origin['name']}" if is_own else origin["name"]
    if "value" in leaf:
        return Wanted(stored=stored, step=step, value=leaf["value"])
    shape = origin.get("shapes", {}).get(str(source), origin["shape"])
    sharding = None if is_own or "ranks" in origin else origin.get("sharding")
    boxes = process_boxes(shape, sharding, job.mesh, rank, processes)
    cast = job.fields.get("cast")
    return Wanted(stored=stored, step=step, dtype=origin["dtype"], shape=tuple(shape), boxes=tuple(boxes), cast=cast)


def _check_step(job: Job, answer: Mapping[str, Any]) -> list[str]:
    step = job.expect.step if job.expect else None
    return [] if same(step, answer.get("step")) else [f"step is {answer.get('step')!r}, expected {step}"]


def _check_rank(expected: Mapping[str, Wanted], found: Any, *, alone: bool) -> list[str]:
    if not isinstance(found, Mapping):
        return ["the answer has no leaves"]
    problems = [f"leaf {name} is missing" for name in expected if name not in found]
    problems += [f"leaf {name} is not of the state" for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        problems += [f"leaf {name}: {problem}" for problem in _check_leaf(expected[name], found[name], alone=alone)]
    return sorted(problems)


def _check_leaf(leaf: Wanted, found: Any, *, alone: bool) -> list[str]:
    if not isinstance(found, Mapping):
        return [f"is {found!r}, expected an object"]
    if leaf.value is not None:
        encoded = fixture.encode(fixture.value(leaf.value, leaf.stored, leaf.step))
        is_there = "value" in found and same(encoded, found["value"])
        return [] if is_there else [f"value is {found.get('value')!r}, expected {encoded!r} (step {leaf.step})"]
    if found.get("dtype") != leaf.answered_dtype:
        return [f"dtype is {found.get('dtype')!r}, expected {leaf.answered_dtype!r}"]
    try:
        boxes = [((*box["start"],), (*box["stop"],), box["digest"]) for box in found["boxes"]]
    except (KeyError, TypeError):
        return [f"boxes is {found.get('boxes')!r}, expected an array of objects with start, stop and digest"]
    return _check_boxes(leaf, boxes, alone=alone)


def _check_boxes(leaf: Wanted, found: Sequence[tuple[tuple[int, ...], tuple[int, ...], str]], *, alone: bool) -> list[str]:
    """Empty boxes of an array that has elements may be left out; one process may answer the whole."""
    boxes = [(start, stop) for start, stop, _ in found]
    everything = whole_box(leaf.shape)
    expected = (everything,) if alone and boxes == [everything] else leaf.boxes
    may_be_absent = {box for box in expected if _is_empty(box) and not _is_empty(everything)}
    problems = [f"box {_text(box)} is missing" for box in expected if box not in boxes and box not in may_be_absent]
    problems += [f"box {_text(box)} is there twice" for box in set(boxes) if boxes.count(box) > 1]
    for start, stop, found_digest in found:
        box = (start, stop)
        if box not in expected:
            problems.append(f"box {_text(box)} is none that this process holds: {', '.join(map(_text, expected))}")
        elif found_digest != (right := leaf.digest(box)):
            problems.append(f"box {_text(box)} is {found_digest}, expected {right} (step {leaf.step})")
    return problems


def _is_empty(box: Box) -> bool:
    return any(start >= stop for start, stop in zip(*box, strict=True))


def _text(box: Box) -> str:
    """As one writes it: `[0:6, 0:96]`. Boxes of an answer may be anything."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in zip(*box, strict=False)) + "]"
