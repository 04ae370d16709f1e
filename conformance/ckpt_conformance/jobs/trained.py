"""Whether two trainings computed the same (TRAINING.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ckpt_conformance.cases.steps import Like

CLOSE = 1e-9
Answers = Sequence[Mapping[str, Any]]
"""The answers to `train`, one a rank."""


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
    problems = []
    for rank, (before, after) in enumerate(zip(kept, found, strict=True)):
        if name == "leaves":
            problems += [f"rank {rank}: {problem}" for problem in _leaves(like, before, after)]
            continue
        for step in sorted(common, key=int):
            if not _alike(name, like, before[name][step], after[name][step]):
                problems.append(f"rank {rank}, step {step}: {name} are {after[name][step]}, expected {before[name][step]}")
    return problems


def _alike(name: str, like: Like, before: Any, after: Any) -> bool:
    if like.exactly or name != "losses":
        return bool(before == after)
    return math.isclose(float.fromhex(before), float.fromhex(after), rel_tol=CLOSE, abs_tol=CLOSE)


def _leaves(like: Like, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The final states, where both trained as far. Digests say nothing about closeness."""
    if not like.exactly or max(map(int, before["losses"])) != max(map(int, after["losses"])):
        return []
    names = sorted(before["leaves"].keys() | after["leaves"].keys())
    return [f"leaf {name} differs" for name in names if before["leaves"].get(name) != after["leaves"].get(name)]
