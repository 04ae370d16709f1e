"""The simulation finds every deliberate defect of the protocol code, and of the store, within a stated number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count, product

import pytest

from simulation.prepared import history
from simulation.run import Outcome, run_seed
from simulation.shrink import fewest, shrink
from simulation.world import World
from tests.simulation import defects

pytestmark = pytest.mark.slow
Defect = Callable[[], AbstractContextManager[None]]

DEFECTS: list[tuple[Defect, int, set[str]]] = [
    (defects.no_fence, 5, {"P-38"}),
    (defects.fence_before_data, 5, {"P-38"}),
    (defects.finishes_without_a_fence, 200, {"P-38"}),
    (defects.finishes_by_aborting, 60, {"P-58"}),
    (
        defects.overwrite,
        200,
        {"P-51", "S-9", "P-12"},
    ),  # who replaces its own lost receipt never sees it, nor does a listing have to
    (defects.abort_on_a_transient_error, 400, {"P-12"}),
    (defects.abort_though_fenced, 200, {"P-38"}),
    (defects.unknown_resolved_by_one_read, 400, {"P-42", "errors"}),
    (defects.delete_before_abort, 60, {"K-10, K-11"}),
    (defects.receipts_before_sync, 20, {"P-32"}),
    (defects.receipt_before_values, 5, {"P-31"}),
    (defects.base_not_read_again, 400, {"P-16"}),
    (defects.opens_though_superseded, 200, {"P-16"}),
    (defects.head_by_greatest_step, 100, {"P-20"}),
    (defects.no_second_look, 400, {"K-7", "O-14", "errors"}),
    (defects.deletes_what_is_undecided, 100, {"K-10, K-11"}),
    (defects.collector_aborts_the_newest, 100, {"P-38", "K-11"}),
    (defects.no_settling, 60, {"P-10", "P-20"}),
    (defects.failed_though_delivered, 20, {"P-42"}),
    (defects.deletes_while_a_job_opens, 400, {"K-7", "O-14", "P-16", "P-55", "errors"}),
]


@pytest.fixture(scope="module", autouse=True)
def whole_histories() -> None:
    """What the seeds begin with is made before anything is broken."""
    for incarnations, arrays, frozen in product((1, 2), (False, True), (False, True)):
        history(incarnations, arrays=arrays, frozen=frozen)


def find(most: int, setup: Callable[[World], None] = lambda _: None) -> Outcome:
    """The first seed that fails."""
    for seed in range(most):
        outcome = run_seed(seed, setup=setup)
        if outcome.violation is not None:
            return outcome
    pytest.fail(f"not found within {most} seeds")


@pytest.mark.parametrize(("defect", "most", "clauses"), DEFECTS, ids=[defect.__name__ for defect, _, _ in DEFECTS])
def test_a_defect_is_found(defect: Defect, most: int, clauses: set[str]) -> None:
    with defect():
        outcome = find(most)
    assert outcome.clause in clauses, outcome.violation
    assert run_seed(outcome.seed).violation is None, "without the defect the seed is fine"


@pytest.mark.parametrize(("broken", "clauses"), [("stale", {"P-10", "P-12", "P-20", "P-55"}), ("overwrites", {"P-51", "S-9"})])
def test_a_store_that_breaks_the_rules_is_found(broken: str, clauses: set[str]) -> None:
    """Listings that lack what was acknowledged (S-7), and puts that replace (S-1)."""

    def setup(world: World) -> None:
        world.service.broken = broken  # pyright: ignore[reportAttributeAccessIssue]

    assert find(60, setup).clause in clauses


def test_a_failing_run_is_made_smaller() -> None:
    with defects.unknown_resolved_by_one_read():
        found = next(outcome for outcome in map(run_seed, count(48)) if outcome.violation is not None)
        reduced, smallest = shrink(found, most_runs=30)
        again = run_seed(found.seed, reduced)
    assert smallest.clause == found.clause == again.clause
    assert [str(line) for line in again.trace] == [str(line) for line in smallest.trace]
    assert len(smallest.faults) <= len(found.faults)
    assert reduced.without or reduced.only is not None


@pytest.mark.parametrize("needed", [[], [3], [0, 7], [2, 3, 5], list(range(8))])
def test_only_what_is_needed_is_left(needed: list[int]) -> None:
    assert fewest(range(8), lambda some: set(needed) <= set(some)) == needed
