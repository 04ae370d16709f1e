"""The five acts: the reference, a rank killed in its write, the coordinator killed, other hardware, another framework."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ckptcore
from demo import compare, handover, store_view
from demo.compare import Check, percent
from demo.job import SAVE_EVERY, STEPS_PER_EPOCH, TRAIN_SAMPLES, Kill
from demo.outcome import Outcome, batches, bit_identical
from demo.run_log import RankLog
from demo.stage import Stage
from demo.store_view import GenerationView

WRITE_KILL = Kill(rank=1, event="shard-write", step=50)
COMMIT_KILL = Kill(rank=0, event="receipts-complete", step=70)

Scene = tuple[list[Check], dict[str, Any]]
"""What an act has shown: its checks and its figures."""


@dataclass(frozen=True, kw_only=True)
class Act:
    """What came out of one act."""

    title: str
    seconds: float
    checks: list[Check]
    figures: dict[str, Any]


class Play:
    """The acts on one stage. Later acts use what earlier ones left: their outcomes and their wrecks' logs."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._outcomes: dict[str, Outcome] = {}
        self._wrecks: dict[str, list[RankLog]] = {}

    def acts(self) -> list[Act]:
        """Play all acts, in order."""
        scenes = [
            ("the reference: 2 processes × 2 devices, mesh 2 × 2, never interrupted", self._reference),
            (f"rank 1 is killed while it writes its shards of step {WRITE_KILL.step}", self._killed_in_write),
            (f"rank 0 is killed after all receipts of step {COMMIT_KILL.step}, before it commits", self._killed_before_commit),
            ("act 1's wreck on 1 process × 4 devices, mesh 4 × 1, accepting `coverage`", self._other_hardware),
            ("act 1's wreck in PyTorch, on 4 processes (FSDP2), accepting `coverage`", self._other_framework),
        ]
        acts: list[Act] = []
        for number, (title, scene) in enumerate(scenes):
            self._stage.say(f"\nAct {number}: {title}")
            started = time.monotonic()
            checks, figures = scene()
            acts.append(Act(title=title, seconds=time.monotonic() - started, checks=checks, figures=figures))
        return acts

    def _reference(self) -> Scene:
        """Act 0: train without interruption. Its outcome is what all others are compared with."""
        outcome = self._outcomes["act-0"] = self._stage.train("act-0")
        log = outcome.logs[0]
        first, last, accuracy = log.loss(1), log.loss(log.last), log.accuracy or 0.0
        self._stage.say(f"  {log.last} steps, loss {first:.4f} → {last:.4f}, test accuracy {percent(accuracy)}")
        committed = [view.step for view in store_view.generations(self._stage.store("act-0")) if view.decision == "commit"]
        due = list(range(SAVE_EVERY, log.last + 1, SAVE_EVERY))
        checks = [
            Check("the model learned", f"test accuracy {percent(accuracy)}", held=accuracy > 0.9 and last < first / 4),
            Check("every save was committed", f"steps {' '.join(map(str, committed))}", held=committed == due),
        ]
        return checks, {"steps": log.last, "first_loss": first, "last_loss": last, "accuracy": accuracy}

    def _killed_in_write(self) -> Scene:
        """Act 1: one rank dies in the middle of its shards. Its save is refused, the one before is resumed."""
        wreck, torn = self._stage.kill("act-1", WRITE_KILL)
        for act in ("act-3", "act-4"):
            shutil.copytree(self._stage.store("act-1"), self._stage.store(act))
        held = WRITE_KILL.rank not in torn.receipts and torn.decision != "commit"
        before = [_killed(WRITE_KILL, wreck, torn), Check("the torn save was no checkpoint", torn.state, held=held)]
        outcome, base = self._stage.restart("act-1")
        after = [
            _resumed(base, outcome, WRITE_KILL.step - SAVE_EVERY, "newest"),
            self._decision("the torn save is refused", "act-1", torn, "abort"),
            *bit_identical(self._outcomes["act-0"], outcome, wreck),
        ]
        self._wrecks["act-1"] = wreck
        return before + after, _figures(base, wreck)

    def _killed_before_commit(self) -> Scene:
        """Act 2: the coordinator dies when all receipts are there. The next start proves and commits the save."""
        wreck, whole = self._stage.kill("act-2", COMMIT_KILL)
        held = whole.is_complete and whole.decision is None
        before = [_killed(COMMIT_KILL, wreck, whole), Check("all receipts and no decision", whole.state, held=held)]
        outcome, base = self._stage.restart("act-2")
        after = [
            _resumed(base, outcome, COMMIT_KILL.step, "rolled-forward"),
            self._decision("the save is rolled forward", "act-2", whole, "commit"),
            *bit_identical(self._outcomes["act-0"], outcome, wreck),
        ]
        return before + after, _figures(base, wreck)

    def _other_hardware(self) -> Scene:
        """Act 3: what act 1 left behind is resumed on other hardware. Each sample is still used exactly once an epoch."""
        reference, wreck = self._outcomes["act-0"].logs, self._wrecks["act-1"]
        outcome, base = self._stage.restart("act-3", ranks=1, devices=4, mesh=(4, 1), accept="coverage")
        log = outcome.logs[0]
        start = log.start or 0
        used = {step: samples for step, samples in batches(wreck).items() if step <= start} | batches(outcome.logs)
        drift = max(abs(log.loss(step) - reference[0].loss(step)) for step in log.steps)
        epoch = start / STEPS_PER_EPOCH
        self._stage.say(f"  step {start} is in epoch {epoch:.2f}; losses are within {drift:.1e} of the reference")
        guarantee = base.get("guarantee")
        checks = [
            _resumed(base, outcome, WRITE_KILL.step - SAVE_EVERY, "newest"),
            Check("the weaker promise is recorded", f"{guarantee}", held=guarantee == "coverage"),
            *_coverage(batches(reference), used),
        ]
        figures = {"epochs": len(used) / STEPS_PER_EPOCH, "largest_loss_difference": drift}
        return checks, {**_figures(base, wreck), **figures}

    def _other_framework(self) -> Scene:
        """Act 4: what act 1 left behind is taken over by a torch program. Its own checkpoints go into the same run."""
        reference, wreck = self._outcomes["act-0"].logs, self._wrecks["act-1"]
        store = self._stage.store("act-4")
        outcome, base = self._stage.restart("act-4", framework="torch", ranks=4, accept="coverage")
        log = outcome.logs[0]
        start, accuracy = log.start or 0, log.accuracy or 0.0
        used = {step: samples for step, samples in batches(wreck).items() if step <= start} | batches(outcome.logs)
        expected = handover.expected(store, str(base.get("generation")))
        arrived = [
            difference
            for rank in range(len(outcome.logs))
            for difference in compare.array_differences(expected, outcome.arrays_of(rank))
        ]
        newest = ckptcore.open_run(store)
        manifest, whole = newest.checkpoint().manifest, newest.verify(deep=True).ok
        self._stage.say(f"  {log.last - start} steps in torch, loss {log.loss(log.last):.4f}, test accuracy {percent(accuracy)}")
        checks = [
            _resumed(base, outcome, WRITE_KILL.step - SAVE_EVERY, "newest"),
            compare.identical("parameters and moments arrive", arrived, f"{len(expected)} arrays on 4 ranks, bit-identical"),
            *_coverage(batches(reference), used),
            Check("it went on learning", f"test accuracy {percent(accuracy)}", held=accuracy > 0.9),
            Check(
                "the run goes on in torch",
                f"{manifest.generation}, written by {manifest.topology.framework}, every byte verified",
                held=whole and manifest.topology.framework == "torch" and manifest.step == log.last,
            ),
        ]
        return checks, {**_figures(base, wreck), "accuracy": accuracy}

    def _decision(self, name: str, act: str, view: GenerationView, decision: str) -> Check:
        """Whether a save that was undecided before the restart is now decided, and how."""
        found = {view.name: view for view in store_view.generations(self._stage.store(act))}[view.name]
        outcome = ": ".join(filter(None, [view.name, found.decision, found.reason]))
        return Check(name, outcome, held=found.decision == decision)


def _killed(kill: Kill, wreck: Sequence[RankLog], view: GenerationView) -> Check:
    held = [log.killed for log in wreck] == [view.name if rank == kill.rank else None for rank in range(len(wreck))]
    return Check(f"rank {kill.rank} alone killed itself", f"SIGKILL at {kill.event} of {view.name}", held=held)


def _resumed(base: dict[str, Any], outcome: Outcome, step: int, reason: str) -> Check:
    starts = {log.start for log in outcome.logs}
    held = starts == {step} and base.get("reason") == reason and f"-{step:012d}-" in str(base.get("generation"))
    return Check(f"resumed at step {step}", f"from {base.get('generation')}, {base.get('reason')}", held=held)


def _coverage(expected: dict[int, list[int]], used: dict[int, list[int]]) -> list[Check]:
    """Whether the global batches in `used`, by step, are whole epochs, and those that were expected."""
    problems = compare.epoch_problems([used[step] for step in sorted(used)], samples=TRAIN_SAMPLES)
    reordered = [f"step {step}" for step in sorted(expected.keys() | used.keys()) if expected.get(step) != used.get(step)]
    epochs = f"{len(used) / STEPS_PER_EPOCH:g} epochs of {TRAIN_SAMPLES} samples"
    return [
        compare.identical("each sample once an epoch", problems, epochs),
        compare.identical("the global batches", reordered, f"{len(used)} batches, the reference's samples in its order"),
    ]


def _figures(base: dict[str, Any], wreck: Sequence[RankLog]) -> dict[str, Any]:
    return {
        "killed_at_steps": [log.last for log in wreck],
        "base": {name: base.get(name) for name in ("incarnation", "generation", "reason", "guarantee", "settled", "skipped")},
    }
