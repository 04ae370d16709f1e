"""The four acts: the reference, a rank killed in its write, the coordinator killed, other hardware."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from demo import compare, store_view
from demo.compare import Check
from demo.job import SAVE_EVERY, STEPS_PER_EPOCH, TRAIN_SAMPLES, Job, Kill
from demo.outcome import Outcome, batches, bit_identical
from demo.processes import Launch, LaunchFailed
from demo.run_log import RankLog
from demo.store_view import GenerationView

WRITE_KILL = Kill(rank=1, event="shard-write", step=50)
COMMIT_KILL = Kill(rank=0, event="receipts-complete", step=70)
RECEIPT_SECONDS = 15.0
SHOWN_GENERATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Act:
    """What came out of one act."""

    title: str
    seconds: float
    checks: list[Check]
    figures: dict[str, Any] = field(default_factory=dict)


class Play:
    """The acts, in order, over one folder. `say` prints one line of progress."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._wreck: list[RankLog] = []

    def reference(self) -> tuple[Act, Outcome]:
        """Act 0: train without interruption. Its outcome is what all others are compared with."""
        title = self._title(0, "the reference: 2 processes × 2 devices, mesh 2 × 2, never interrupted")
        started = time.monotonic()
        with Launch(self._job("act-0", "launch-1")) as launch:
            outcome = Outcome.of(launch)
        first, last = outcome.logs[0].steps[1], outcome.logs[0].steps[launch.job.total]
        losses = float.fromhex(first.loss), float.fromhex(last.loss)
        accuracy = outcome.logs[0].accuracy or 0.0
        self._say(f"{launch.job.total} steps, loss {losses[0]:.4f} → {losses[1]:.4f}, test accuracy {accuracy:.1%}")
        committed = [view.step for view in store_view.generations(self._store("act-0")) if view.decision == "commit"]
        expected = list(range(launch.job.save_every, launch.job.total + 1, launch.job.save_every))
        checks = [
            Check("the model learned", f"test accuracy {accuracy:.1%}", held=accuracy > 0.9 and losses[1] < losses[0] / 4),
            Check("every save was committed", f"steps {committed}", held=committed == expected),
        ]
        figures = {"steps": launch.job.total, "first_loss": losses[0], "last_loss": losses[1], "accuracy": accuracy}
        return Act(title=title, seconds=time.monotonic() - started, checks=checks, figures=figures), outcome

    def killed_in_write(self, reference: Outcome) -> Act:
        """Act 1: one rank dies in the middle of its shards. Its save is refused, the one before is resumed."""
        title = self._title(1, f"rank 1 is killed while it writes its shards of step {WRITE_KILL.step}")
        started = time.monotonic()
        wreck, view = self._kill("act-1", WRITE_KILL)
        self._wreck = wreck
        shutil.copytree(self._store("act-1"), self._store("act-3"))
        outcome, base = self._restart("act-1")
        checks = [
            self._killed(WRITE_KILL, wreck, view),
            Check("the torn save was no checkpoint", view.state, held=1 not in view.receipts and view.decision != "commit"),
            self._resumed(base, outcome, WRITE_KILL.step - SAVE_EVERY, "newest"),
            self._decision("the torn save is refused", "act-1", view.name, "abort"),
            *bit_identical(reference, outcome, wreck),
        ]
        return Act(title=title, seconds=time.monotonic() - started, checks=checks, figures=_resume_figures(base, wreck))

    def killed_before_commit(self, reference: Outcome) -> Act:
        """Act 2: the coordinator dies when all receipts are there. The next start proves and commits the save."""
        title = self._title(2, f"the coordinator is killed after all receipts of step {COMMIT_KILL.step}, before the commit")
        started = time.monotonic()
        wreck, view = self._kill("act-2", COMMIT_KILL)
        outcome, base = self._restart("act-2")
        checks = [
            self._killed(COMMIT_KILL, wreck, view),
            Check("all receipts and no decision", view.state, held=view.is_complete and view.decision is None),
            self._resumed(base, outcome, COMMIT_KILL.step, "rolled-forward"),
            self._decision("the save is rolled forward", "act-2", view.name, "commit"),
            *bit_identical(reference, outcome, wreck),
        ]
        return Act(title=title, seconds=time.monotonic() - started, checks=checks, figures=_resume_figures(base, wreck))

    def other_hardware(self, reference: Outcome) -> Act:
        """Act 3: what act 1 left behind is resumed on other hardware. Each sample is still used exactly once an epoch."""
        title = self._title(3, "act 1's wreck is resumed on 1 process × 4 devices, mesh 4 × 1, accepting `coverage`")
        started = time.monotonic()
        outcome, base = self._restart("act-3", ranks=1, devices=4, mesh=(4, 1), accept="coverage")
        start = outcome.logs[0].start or 0
        used = {step: ids for step, ids in batches(self._wreck).items() if step <= start} | batches(outcome.logs)
        expected = batches(reference.logs)
        problems = compare.epoch_problems([used[step] for step in sorted(used)], samples=TRAIN_SAMPLES)
        reordered = [f"step {step}" for step in sorted(expected.keys() | used.keys()) if expected.get(step) != used.get(step)]
        epochs = len(used) / STEPS_PER_EPOCH
        drift = max(abs(_loss(outcome, step) - _loss(reference, step)) for step in outcome.logs[0].steps)
        self._say(f"step {start} falls in epoch {start / STEPS_PER_EPOCH:.2f}; losses stay within {drift:.1e} of the reference")
        checks = [
            self._resumed(base, outcome, WRITE_KILL.step - SAVE_EVERY, "newest"),
            Check("the weaker promise is recorded", f"{base.get('guarantee')}", held=base.get("guarantee") == "coverage"),
            compare.identical("each sample once an epoch", problems, f"{epochs:g} epochs of {TRAIN_SAMPLES} samples"),
            compare.identical("the global batches", reordered, f"{len(used)} batches hold the reference's samples in its order"),
        ]
        figures = {**_resume_figures(base, self._wreck), "epochs": epochs, "largest_loss_difference": drift}
        return Act(title=title, seconds=time.monotonic() - started, checks=checks, figures=figures)

    def _kill(self, act: str, kill: Kill) -> tuple[list[RankLog], GenerationView]:
        """Run until the kill, let the others deliver what they can, end them, and look at what the store holds."""
        with Launch(replace(self._job(act, "launch-1"), kill=kill)) as launch:
            launch.wait_for_kill()
            others = [rank for rank in range(launch.job.ranks) if rank != kill.rank]

            def settled() -> bool:
                delivered = store_view.delivered(self._store(act), kill.step)
                return all(rank in delivered or launch.code(rank) is not None for rank in others)

            launch.wait(settled, f"the receipts of ranks {others}", seconds=RECEIPT_SECONDS, tolerate=range(launch.job.ranks))
        logs = launch.logs()
        ends = ", ".join(f"rank {rank} ended with {launch.code(rank)} at step {log.last}" for rank, log in enumerate(logs))
        self._say(f"SIGKILL at {kill.event}: {ends}")
        self._show_store(act)
        views = self._generations(act, kill.step)
        if not views:
            raise LaunchFailed(f"the save of step {kill.step} left no trace in {self._store(act)}")
        return logs, views[-1]

    def _restart(self, act: str, **changes: Any) -> tuple[Outcome, dict[str, Any]]:
        """Start the job again, say which checkpoint it chose and why, and let it finish."""
        with Launch(replace(self._job(act, "launch-2"), **changes)) as launch:
            outcome = Outcome.of(launch)
        store = self._store(act)
        base = store_view.base(store, store_view.newest_incarnation(store)) or {}
        for line in store_view.describe_base(base) if base else ["no base record was written"]:
            self._say(line)
        self._say(f"ran steps {(outcome.logs[0].start or 0) + 1} to {outcome.logs[0].last}")
        return outcome, base

    def _show_store(self, act: str) -> None:
        views = store_view.generations(self._store(act))
        hidden = len(views) - SHOWN_GENERATIONS
        self._say(f"the store holds {len(views)} generations{', the newest of which are' if hidden > 0 else ''}:")
        for view in views[-SHOWN_GENERATIONS:]:
            self._say(f"  {view.describe()}")

    def _killed(self, kill: Kill, wreck: Sequence[RankLog], view: GenerationView) -> Check:
        held = [log.killed for log in wreck] == [view.name if rank == kill.rank else None for rank in range(len(wreck))]
        return Check(f"rank {kill.rank} alone killed itself", f"by SIGKILL at {kill.event} of {view.name}", held=held)

    def _resumed(self, base: dict[str, Any], outcome: Outcome, step: int, reason: str) -> Check:
        starts = {log.start for log in outcome.logs}
        held = starts == {step} and base.get("reason") == reason and f"-{step:012d}-" in str(base.get("generation"))
        return Check(f"resumed at step {step}", f"from {base.get('generation')}, {base.get('reason')}", held=held)

    def _decision(self, name: str, act: str, generation: str, decision: str) -> Check:
        found = {view.name: view for view in store_view.generations(self._store(act))}[generation]
        return Check(name, f"{generation}: {found.decision} {found.reason}".strip(), held=found.decision == decision)

    def _generations(self, act: str, step: int) -> list[GenerationView]:
        return [view for view in store_view.generations(self._store(act)) if view.step == step]

    def _title(self, number: int, text: str) -> str:
        self._say(f"\nAct {number}: {text}")
        return text

    def _store(self, act: str) -> Path:
        return self._folder / act / "store"

    def _job(self, act: str, launch: str) -> Job:
        folder = self._folder / act / launch
        return Job(url=str(self._store(act)), folder=str(folder), cache=str(self._folder / "compilation-cache"))


def _loss(outcome: Outcome, step: int) -> float:
    return float.fromhex(outcome.logs[0].steps[step].loss)


def _resume_figures(base: dict[str, Any], wreck: Sequence[RankLog]) -> dict[str, Any]:
    return {
        "killed_at_steps": [log.last for log in wreck],
        "base": {name: base.get(name) for name in ("incarnation", "generation", "reason", "guarantee", "settled", "skipped")},
    }
