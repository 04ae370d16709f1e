"""Two trainings are compared in what both have, exactly or closely."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ckpt_conformance.cases.steps import Like
from ckpt_conformance.jobs.trained import compare, incomplete

EXACTLY = Like(name="k", exactly=True)
CLOSELY = Like(name="k", exactly=False)


def training(first: int, last: int, ranks: int = 2) -> list[dict[str, Any]]:
    steps = [str(step) for step in range(first, last + 1)]
    return [
        {
            "losses": {step: (1 / int(step)).hex() for step in steps},
            "samples": {
                step: [10 * int(step) + row for row in range(rank * 4 // ranks, (rank + 1) * 4 // ranks)] for step in steps
            },
            "draws": {step: [(int(step) + rank / 4).hex()] for step in steps},
            "leaves": {
                "params.w1": array([rank, 0], [[last + rank, 0.25]]),
                "optimizer.count": {"dtype": "int64", "boxes": [{"start": [], "stop": [], "digest": f"blake3:{last}"}]},
                "schedule.updates": {"value": last},
            },
        }
        for rank in range(ranks)
    ]


def array(start: list[int], rows: list[list[float]]) -> dict[str, Any]:
    """A box of an array of two dimensions, as an answer tells it."""
    elements = [element.hex() for row in rows for element in map(float, row)]
    stop = [start[0] + len(rows), start[1] + len(rows[0])]
    return {"dtype": "float64", "boxes": [{"start": start, "stop": stop, "digest": repr(elements), "elements": elements}]}


@pytest.mark.parametrize("like", [EXACTLY, CLOSELY])
def test_a_resumed_training_is_like_the_other(like: Like) -> None:
    assert compare(like, training(1, 8), training(5, 8)) == []


@pytest.mark.parametrize(
    ("path", "value", "problem", "closely_too"),
    [
        (("losses", "6"), (1 / 6 + 1e-15).hex(), "rank 1, step 6: losses are", False),
        (("losses", "6"), (1 / 6 + 1e-6).hex(), "rank 1, step 6: losses are", True),
        (("draws", "6"), [(0.0).hex()], "rank 1, step 6: draws are", True),
        (("samples", "6"), [62, 64], "step 6 used other samples: [60, 61, 62, 64], expected [60, 61, 62, 63]", True),
        (("leaves", "params.w1"), {}, "rank 1: leaf params.w1 differs", True),
        (("leaves", "params.w1"), array([1, 0], [[9 + 1e-13, 0.25]]), "rank 1: leaf params.w1 differs", False),
        (("leaves", "params.w1"), array([1, 0], [[9, 0.25 + 1e-8]]), "rank 1: leaf params.w1 differs", True),
        (("leaves", "params.w1"), array([1, 0], [[9]]), "rank 1: leaf params.w1 differs", True),
        (("leaves", "optimizer.count", "dtype"), "int32", "rank 1: leaf optimizer.count differs", True),
        (("leaves", "optimizer.count", "boxes"), [], "rank 1: leaf optimizer.count differs", True),
        (("leaves", "schedule.updates", "value"), 8.0, "rank 1: leaf schedule.updates differs", True),
        (("leaves", "schedule.updates", "value"), 9, "rank 1: leaf schedule.updates differs", True),
        (("leaves",), {}, "rank 1: leaf optimizer.count differs", True),
        (("losses",), None, "not of the form", True),
    ],
)
def test_what_differs_is_named(path: tuple[str, ...], value: Any, problem: str, closely_too: bool) -> None:  # noqa: FBT001
    found = training(5, 8)
    target: Any = found[1]
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    assert problem in compare(EXACTLY, training(1, 8), found)[0]
    assert bool(compare(CLOSELY, training(1, 8), found)) is closely_too


def test_leaves_are_compared_where_both_trained_as_far() -> None:
    shorter = training(5, 7)
    assert compare(EXACTLY, training(1, 8), shorter) == []
    shorter[0]["losses"]["8"] = (1 / 8).hex()
    assert compare(Like(name="k", exactly=True, of=("leaves",)), training(1, 8), shorter) != []


def test_elements_are_compared_however_they_are_cut() -> None:
    kept, found = training(1, 8), training(5, 8)
    found[0]["leaves"]["params.w1"] = array([0, 0], [[8], [9]])
    found[1]["leaves"]["params.w1"] = array([0, 1], [[0.25], [0.25]])
    assert compare(CLOSELY, kept, found) == []
    assert "leaf params.w1 differs" in compare(EXACTLY, kept, found)[0]
    found[1]["leaves"]["params.w1"] = array([0, 1], [[0.25], [0.5]])
    (problem,) = compare(CLOSELY, kept, found)
    assert problem == "leaf params.w1[1, 1] is 0x1.0000000000000p-1, expected 0x1.0000000000000p-2 within 1e-12"


def test_a_training_without_leaves_is_like_no_other() -> None:
    kept, found = training(1, 8), training(5, 8)
    for answer in [*kept, *found]:
        answer["leaves"] = {}
    assert compare(CLOSELY, kept, found) == ["leaves: there is none"]


def test_elements_that_are_fewer_than_their_box_are_of_no_form() -> None:
    found = training(5, 8)
    found[1]["leaves"]["params.w1"]["boxes"][0]["elements"].pop()
    assert "not of the form" in compare(CLOSELY, training(1, 8), found)[0]


def test_samples_do_not_depend_on_the_number_of_processes_and_draws_do() -> None:
    samples = Like(name="k", exactly=True, of=("samples",))
    assert compare(samples, training(1, 8, ranks=4), training(5, 8, ranks=2)) == []
    (problem,) = compare(Like(name="k", exactly=True, of=("draws",)), training(1, 8, ranks=4), training(5, 8, ranks=2))
    assert problem == "draws: 2 processes cannot be compared with 4"


def test_nothing_in_common_is_a_problem() -> None:
    assert compare(EXACTLY, training(1, 4), training(5, 8)) == ["the two trainings have no step in common"]


def test_what_is_not_asked_for_is_not_compared() -> None:
    found = copy.deepcopy(training(5, 8))
    found[0]["draws"]["5"] = []
    assert compare(Like(name="k", exactly=True, of=("losses", "samples", "leaves")), training(1, 8), found) == []


def told(first: int, last: int) -> list[dict[str, Any]]:
    return [answer | {"first": first - 1} for answer in training(first, last)]


def test_a_training_that_tells_of_every_step_is_whole() -> None:
    assert incomplete(told(5, 8), 8, 4) == []


@pytest.mark.parametrize("last", [4, 7])
def test_a_training_that_ends_early_is_not(last: int) -> None:
    """It would be like the other in the steps that both have."""
    assert "expected those after 0 up to 8" in incomplete(told(1, last), 8, 4)[0]


def test_every_rank_tells_and_every_batch_is_full() -> None:
    found = told(5, 8)
    del found[1]["draws"]["7"]
    assert incomplete(found, 8, 4) == ["rank 1: draws are of the steps [5, 6, 8], expected those after 4 up to 8"]
    found = told(5, 8)
    found[1]["samples"]["7"] = []
    assert incomplete(found, 8, 4) == ["step 7 used 2 samples, expected 4"]
    assert "not of the form" in incomplete([{}], 8, 4)[0]
