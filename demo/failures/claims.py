"""What the demo claims, each claim worked out of what happened: of the supervisors' records, the ranks' logs, and the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

import ckptcore
from ckptcore.attempts import Attempt, AttemptEnd, AttemptIncident, Attempts
from ckptcore.inspect.incidents import Account, account
from ckptcore.sampler import Sampler
from ckptcore.store import open_store
from demo import store_view
from demo.compare import Check, array_differences, epoch_problems, identical
from demo.failures import history
from demo.failures.course import PREEMPTED, Course
from demo.failures.history import Made
from demo.failures.plan import BATCH, RANKS, SAMPLES, STEPS_PER_EPOCH, TOTAL, Mark
from demo.failures.supervision import TRAIN_DEADLINE

SOON = 2.0
"""Seconds within which a death is noticed, and a hang once its deadline has passed."""
DRIFT = 1e-4
"""The most by which a loss may differ from the undisturbed run's, once other ranks have added it up in another order."""


class Claims:
    """The claims about the two runs of one framework."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._attempts = Attempts(open_store(course.plan.url)).load()
        self._history = history.history(course.logs)
        self._reference = history.history(course.reference_logs)

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts of the troubled run, as they are recorded."""
        return self._attempts

    def account(self) -> Account | None:
        """What they cost, up to the end of the last."""
        ends = [attempt.end.stopped for attempt in self._attempts if attempt.end]
        return account(self._attempts, datetime.fromisoformat(ends[-1])) if ends else None

    def all(self) -> list[Check]:
        """Every claim; one about a fault that never came does not hold."""
        faults = {
            "straggler": self._straggler,
            "kill": self._killed,
            "hang": self._hung,
            "preemption": self._preempted,
            "coordinator": self._rolled_forward,
            "failure-again": self._elastic,
        }
        found = [check for name, claim in faults.items() for check in self._about(name, claim)]
        return [*found, self._end(), *self._coverage(), *self._same(), self._learned()]

    def _about(self, name: str, claim: Any) -> list[Check]:
        mark = self._course.marks.get(name)
        return claim(mark) if mark else [Check(name, "it never came", held=False)]

    def _straggler(self, mark: Mark) -> list[Check]:
        told = [event for event in self._course.events if event["event"] == "slow" and "for a step" in event["message"]]
        held = [event.get("slot") for event in told] == [2]
        detail = "; ".join(event["message"] for event in told) or "nobody was told to be slow"
        return [Check("the straggler is told, and no other", f"{detail}, at step {mark.step}", held=held)]

    def _killed(self, mark: Mark) -> list[Check]:
        return [self._incident("a killed rank", mark, kind="signal", slot=1, status=-9), self._noticed("its death", mark, SOON)]

    def _hung(self, mark: Mark) -> list[Check]:
        end = self._end_of(mark)
        frames = [line.strip() for line in end.stack.splitlines() if "rank.py" in line] if end else []
        return [
            self._incident("a stopped rank", mark, kind="hang", slot=2),
            self._noticed("its silence", mark, TRAIN_DEADLINE + SOON),
            Check("its stack is recorded", frames[0] if frames else "it does not show where the rank hangs", held=bool(frames)),
        ]

    def _preempted(self, mark: Mark) -> list[Check]:
        end, next_end = self._end_of(mark), self._end_of(mark, later=1)
        outcome, last = (end.outcome, end.last_step) if end else (None, None)
        resumed = next_end.restored_step if next_end else None
        statuses = self._course.statuses
        return [
            Check(
                "SIGTERM saves and ends",
                f"{outcome} at step {last}, exit statuses of the supervisors: {', '.join(map(str, statuses))}",
                held=outcome == "preempted" and end is not None and end.incident is None and statuses == [PREEMPTED, 0],
            ),
            Check(
                "nothing is lost by it",
                f"the next start goes on from step {resumed}",
                held=resumed is not None and resumed == last,
            ),
        ]

    def _rolled_forward(self, mark: Mark) -> list[Check]:
        end, later = self._end_of(mark), self._attempt(mark.attempt + 1)
        views = {view.name: view for view in store_view.generations(Path(self._course.plan.url))}
        view = views.get(mark.generation)
        whole = view is not None and view.is_complete and view.decision == "commit"
        resumed = later.plan.committed if later else None
        detail = f"{mark.generation}: {view.state if view else 'not found'}; the next attempt goes on from {resumed}"
        return [
            self._incident("a dead coordinator", mark, kind="signal", slot=0, status=-9),
            self._noticed("the coordinator's death", mark, SOON),
            Check(
                "its save is committed without it",
                detail,
                held=whole and end is not None and end.committed == resumed == mark.generation,
            ),
        ]

    def _elastic(self, mark: Mark) -> list[Check]:
        twice = [self._incident(f"a failing slot{how}", each, kind="exit", slot=3) for how, each in self._failures(mark)]
        fewer, more = self._attempt(mark.attempt + 1), self._attempt(mark.attempt + 2)
        bases = [self._guarantee(attempt) for attempt in (fewer, more)]
        grown, left = (more.end, fewer.end) if more and fewer else (None, None)
        return [
            *twice,
            _planned("the job goes on without it", fewer, "shrunk", [0, 1, 2], bases[0]),
            _planned("and grows again", more, "grown", [0, 1, 2, 3], bases[1]),
            Check(
                "nothing is lost by that",
                f"it stopped after step {left and left.last_step} and went on from step {grown and grown.restored_step}",
                held=left is not None
                and grown is not None
                and left.outcome == "resized"
                and left.last_step == grown.restored_step is not None,
            ),
        ]

    def _failures(self, again: Mark) -> Iterator[tuple[str, Mark]]:
        first = self._course.marks.get("failure")
        yield from [("", first)] if first else []
        yield ", once more,", again

    def _end(self) -> Check:
        newest = ckptcore.open_run(self._course.plan.url)
        head, whole = newest.head(), newest.verify(deep=True).ok
        outcome = self._attempts[-1].end.outcome if self._attempts and self._attempts[-1].end else None
        left = len(self._course.left)
        detail = f"{outcome}, step {head.step if head else None} verified to the last byte, {left} processes left"
        return Check(
            "the run is complete", detail, held=bool(head and head.step == TOTAL and whole and outcome == "finished" and not left)
        )

    def _coverage(self) -> list[Check]:
        return coverage(self._history, self._course.logs)

    def _same(self) -> list[Check]:
        """Bit-identical, as long as there were as many ranks as in the undisturbed run."""
        logs, until = history.undivided(self._course.logs, RANKS)
        count, others = history.differences(logs, self._reference)
        again = count - RANKS * until
        made = f"{count} updates of single ranks, {again} of them lost and made again: samples, loss, parameters, momenta"
        expected, given = (_arrays(url, until) for url in (self._course.reference.url, self._course.plan.url))
        values = sum(array.size for array in expected.values())
        return [
            identical(f"bit-identical up to step {until}", others if until else ["nothing to compare"], made),
            identical(
                f"the checkpoint of step {until}",
                array_differences(expected, given) if expected else ["there is none to compare"],
                f"{len(expected)} arrays, {values:,} values, bit-identical to the undisturbed run's",
            ),
        ]

    def _learned(self) -> Check:
        common = sorted(self._history.keys() & self._reference.keys())
        losses = [(_loss(self._history[step]), _loss(self._reference[step])) for step in common]
        if not losses:
            return Check("it learned the same", "nothing to compare", held=False)
        drift = max(abs(ours - theirs) for ours, theirs in losses)
        first, last = losses[0][0], losses[-1][0]
        detail = f"loss {first:.3f} → {last:.3f}; with 3 ranks, and after, at most {drift:.1e} from the undisturbed run's"
        return Check("it learned the same", detail, held=drift < DRIFT and last < first / 4)

    def _incident(self, name: str, mark: Mark, *, kind: str, slot: int, status: int | None = None) -> Check:
        end = self._end_of(mark)
        found = end.incident if end else None
        held = found is not None and (found.kind, found.slot) == (kind, slot) and (status is None or found.status == status)
        return Check(f"{name} is found", _shown(found), held=held)

    def _noticed(self, what: str, mark: Mark, limit: float) -> Check:
        end = self._end_of(mark)
        seconds = datetime.fromisoformat(end.detected).timestamp() - mark.at if end else float("inf")
        return Check(f"{what} is noticed in {limit:g} s", f"after {seconds:.2f} s", held=seconds <= limit)

    def _guarantee(self, attempt: Attempt | None) -> str | None:
        """What the incarnation of an attempt guarantees, by its base record."""
        root = Path(self._course.plan.url)
        if attempt is None:
            return None
        claims = range(1, store_view.newest_incarnation(root) + 1)
        bases = [base for number in claims if (base := store_view.base(root, number))]
        return next((base.get("guarantee") for base in reversed(bases) if base.get("generation") == attempt.plan.committed), None)

    def _attempt(self, number: int) -> Attempt | None:
        return next((attempt for attempt in self._attempts if attempt.number == number), None)

    def _end_of(self, mark: Mark, later: int = 0) -> AttemptEnd | None:
        found = self._attempt(mark.attempt + later)
        return found.end if found else None


def coverage(found: dict[int, Made], logs: history.Logs, total: int = TOTAL) -> list[Check]:
    """Whether the batches that count are the data cursor's list, each sample once an epoch, whoever made them."""
    cursor = Sampler(SAMPLES, BATCH, seed=7)
    missing = [f"step {step} was made by nobody" for step in range(1, total + 1) if step not in found]
    foreign = [f"step {step} is too many" for step in found if not 1 <= step <= total]
    other = [f"step {step}" for step in sorted(found) if found[step].samples != cursor.ids((step - 1) * BATCH, BATCH).tolist()]
    epochs = epoch_problems([found[step].samples for step in sorted(found)], samples=SAMPLES)
    sizes = sorted({len(made.ranks) for made in found.values()})
    who = f"by {len({made.attempt for made in found.values()})} attempts of {' and '.join(map(str, sizes))} ranks"
    last = max(logs, default=0)
    positions = {rank.position for rank in logs.get(last, [])}
    ends = [] if positions == {total * BATCH} else [f"the data cursor ended at {sorted(map(str, positions))}"]
    return [
        identical("every step counts once", missing + foreign + history.disagreeing(logs), f"{len(found)} steps, {who}"),
        identical("each sample once an epoch", epochs, f"{len(found) / STEPS_PER_EPOCH:g} epochs of {SAMPLES} samples"),
        identical("the data cursor's order", other + ends, f"{len(found)} batches, position {total * BATCH} at the end"),
    ]


def _planned(name: str, attempt: Attempt | None, cause: str, slots: Sequence[int], guarantee: str | None) -> Check:
    if attempt is None:
        return Check(name, "there is no such attempt", held=False)
    plan = attempt.plan
    held = (plan.cause, list(plan.slots), guarantee) == (cause, list(slots), "coverage")
    return Check(
        name, f"{plan.cause}, {plan.processes} ranks on slots {list(plan.slots)}; recorded guarantee: {guarantee}", held=held
    )


def _shown(found: AttemptIncident | None) -> str:
    if found is None:
        return "no incident is recorded"
    phase = f" in {found.phase}" if found.phase else ""
    return f"{found.kind}, rank {found.rank} on slot {found.slot}{phase} after step {found.step}: {found.message}"


def _loss(made: Made) -> float:
    return float.fromhex(made.ranks[0].loss)


def _arrays(url: str, step: int) -> dict[str, np.ndarray]:
    """All arrays of the checkpoint of a step, by their paths."""
    return dict(_leaves("", ckptcore.open_run(url).restore(step=step))) if step else {}


def _leaves(path: str, node: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _leaves(f"{path}/{name}", child)
    elif isinstance(node, np.ndarray):
        yield path, node
