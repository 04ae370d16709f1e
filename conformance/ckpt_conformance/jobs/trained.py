"""Whether two trainings computed the same (TRAINING.md)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckpt_conformance.cases.steps import Like
from ckpt_conformance.jobs.expect import same

CLOSE = 1e-12
"""How far apart, absolutely or relatively, losses and elements may be that are compared closely."""
Answers = Sequence[Mapping[str, Any]]
"""The answers to `train`, one a rank."""
Elements = Mapping[tuple[int, ...], list[str]]
"""Place in an array → what the processes that hold it say of the element."""


def compare(like: Like, kept: Answers, found: Answers) -> list[str]:
    """Where the trainings differ in the steps that both have, in the fields that `like` names. Empty: they are alike."""
    try:
        common = _steps(kept) & _steps(found)
        if not common:
            return ["the two trainings have no step in common"]
        problems = []
        if "samples" in like.of:
            problems += _samples(kept, found, common)
        for name in {"losses", "draws", "leaves"} & set(like.of):
            problems += _by_rank(name, like, kept, found, common)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return [f"the answer is not of the form that ADAPTER.md gives: {type(error).__name__} {error}"]
    return sorted(problems)


def incomplete(found: Answers, last: int, batch: int) -> list[str]:
    """What is missing of the steps after the first, up to `last`. `batch`: samples a step, of all ranks together."""
    try:
        first = found[0]["first"]
        wanted = {str(step) for step in range(first + 1, last + 1)}
        problems = [
            f"rank {rank}: {name} are of the steps {sorted(map(int, answer[name]))}, expected those after {first} up to {last}"
            for rank, answer in enumerate(found)
            for name in ("losses", "samples", "draws")
            if set(answer[name]) != wanted or answer["first"] != first
        ]
        short = [step for step in sorted(wanted, key=int) if not problems and len(_batch(found, step)) != batch]
        return problems + [f"step {step} used {len(_batch(found, step))} samples, expected {batch}" for step in short]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return [f"the answer is not of the form that ADAPTER.md gives: {type(error).__name__} {error}"]


def _steps(answers: Answers) -> set[str]:
    return set(answers[0]["losses"])


def _samples(kept: Answers, found: Answers, common: set[str]) -> list[str]:
    """A batch is the samples of all processes in rank order (C-3), so that it does not depend on their number."""
    return [
        f"step {step} used other samples: {after}, expected {before}"
        for step in sorted(common, key=int)
        if (before := _batch(kept, step)) != (after := _batch(found, step))
    ]


def _batch(answers: Answers, step: str) -> list[int]:
    return [sample for answer in answers for sample in answer["samples"][step]]


def _by_rank(name: str, like: Like, kept: Answers, found: Answers, common: set[str]) -> list[str]:
    if len(kept) != len(found):
        return [f"{name}: {len(found)} processes cannot be compared with {len(kept)}"]
    if name == "leaves":
        return _leaves(like, kept, found) if max(map(int, _steps(kept))) == max(map(int, _steps(found))) else []
    return [
        f"rank {rank}, step {step}: {name} are {after[name][step]}, expected {before[name][step]}"
        for rank, (before, after) in enumerate(zip(kept, found, strict=True))
        for step in sorted(common, key=int)
        if not _alike(name, like, before[name][step], after[name][step])
    ]


def _alike(name: str, like: Like, before: Any, after: Any) -> bool:
    if like.exactly or name != "losses":
        return same(before, after)
    return _is_close(before, after)


def _is_close(before: str, after: str) -> bool:
    """Two numbers in hexadecimal binary64, within `CLOSE`."""
    return math.isclose(float.fromhex(before), float.fromhex(after), rel_tol=CLOSE, abs_tol=CLOSE)


def _leaves(like: Like, kept: Answers, found: Answers) -> list[str]:
    """The final states, where both trained as far: leaf by leaf, and what is closely compared element by element."""
    names = sorted({name for answer in [*kept, *found] for name in answer["leaves"]})
    if not names:
        return ["leaves: there is none"]
    problems = []
    for name in names:
        pairs = [(before["leaves"].get(name), after["leaves"].get(name)) for before, after in zip(kept, found, strict=True)]
        if not like.exactly and all(one and other and _is_told(one) and _is_told(other) for one, other in pairs):
            problems += [f"leaf {name}{text}" for text in _apart(_elements(kept, name), _elements(found, name))]
        else:
            problems += [f"rank {rank}: leaf {name} differs" for rank, pair in enumerate(pairs) if not same(*pair)]
    return problems


def _is_told(leaf: Mapping[str, Any]) -> bool:
    """Whether the answer has the elements of a leaf: it is an array of float64 (TRAINING.md)."""
    return leaf.get("dtype") == "float64"


def _elements(answers: Answers, name: str) -> Elements:
    """Every element of an array by its place, from the boxes of all processes, however it is cut; each copy of it."""
    found: dict[tuple[int, ...], list[str]] = {}
    for box in [box for answer in answers for box in answer["leaves"][name]["boxes"]]:
        for place, element in _placed(box):
            found.setdefault(place, []).append(element)
    return found


def _apart(expected: Elements, found: Elements) -> Iterator[str]:
    if expected.keys() != found.keys():
        yield " has not the same places in both"
        return
    for place, (first, *_) in expected.items():
        for element in found[place]:
            if not _is_close(first, element):
                yield f"{list(place)} is {element}, expected {first} within {CLOSE}"


def _placed(box: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], str]]:
    """The elements of a box, in C order, and where they are."""
    places = itertools.product(*map(range, box["start"], box["stop"]))
    yield from zip(places, box["elements"], strict=True)
