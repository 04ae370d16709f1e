"""What the acts have in common: launching the job, killing it, restarting it, and saying what was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demo import store_view
from demo.job import Job, Kill
from demo.outcome import Outcome
from demo.processes import Launch, LaunchFailed
from demo.run_log import RankLog
from demo.store_view import GenerationView

RECEIPT_SECONDS = 15.0
SHOWN_GENERATIONS = 3


@dataclass(frozen=True)
class Stage:
    """A folder in which each act has a store and the logs of its launches.

    `say` prints one line; `watch` is called again and again while a launch runs.
    """

    folder: Path
    say: Callable[[str], None]
    watch: Callable[[Launch], None]

    def store(self, act: str) -> Path:
        """The root of an act's run."""
        return self.folder / act / "store"

    def train(self, act: str) -> Outcome:
        """Run the job from the start to its end."""
        with Launch(self._job(act, "launch-1"), self.watch) as launch:
            return Outcome.of(launch)

    def kill(self, act: str, kill: Kill) -> tuple[list[RankLog], GenerationView]:
        """Run until the kill, let the others deliver what they can, end them, and look at what the store holds."""
        with Launch(replace(self._job(act, "launch-1"), kill=kill), self.watch) as launch:
            launch.wait_for_kill(kill)
            self._wait_for_others(act, launch, kill)
        self._say_ends(launch, kill)
        views = store_view.generations(self.store(act))
        self._say_store(views)
        torn = [view for view in views if view.step == kill.step]
        if not torn:
            raise LaunchFailed(f"the save of step {kill.step} left no trace in {self.store(act)}")
        return launch.logs(), torn[-1]

    def restart(self, act: str, **changes: Any) -> tuple[Outcome, dict[str, Any]]:
        """Start the job again, let it finish, and say which checkpoint it chose and why: that is in its base record."""
        with Launch(replace(self._job(act, "launch-2"), **changes), self.watch) as launch:
            outcome = Outcome.of(launch)
        store = self.store(act)
        base = store_view.base(store, store_view.newest_incarnation(store)) or {}
        for line in store_view.describe_base(base) if base else ["no base record was written"]:
            self.say(f"  {line}")
        self.say(f"  ran steps {(outcome.logs[0].start or 0) + 1} to {outcome.logs[0].last}")
        return outcome, base

    def _wait_for_others(self, act: str, launch: Launch, kill: Kill) -> None:
        """Give the other ranks the time to sign their part of the save: whether they do is part of the scene."""
        others = [rank for rank in range(launch.job.ranks) if rank != kill.rank]

        def settled() -> bool:
            delivered = store_view.delivered(self.store(act), kill.step)
            return all(rank in delivered or launch.code(rank) is not None for rank in others)

        launch.wait(settled, f"the receipts of ranks {others}", seconds=RECEIPT_SECONDS, tolerate=range(launch.job.ranks))

    def _say_ends(self, launch: Launch, kill: Kill) -> None:
        self.say(f"  rank {kill.rank} killed itself with SIGKILL in the save of step {kill.step}, at `{kill.event}`")
        for rank, log in enumerate(launch.logs()):
            if rank == kill.rank:
                how = " (saves run in the background)"
            elif rank in launch.ended:
                how = "; the demo ended it, as a scheduler would"
            else:
                how = f"; it ended by itself with status {launch.code(rank)}"
            self.say(f"  rank {rank} had come to step {log.last}{how}")

    def _say_store(self, views: list[GenerationView]) -> None:
        newest = f", the {SHOWN_GENERATIONS} newest" if len(views) > SHOWN_GENERATIONS else ""
        self.say(f"  the store holds {len(views)} generations{newest}, with each rank's data and receipt:")
        for view in views[-SHOWN_GENERATIONS:]:
            self.say(f"    {view.describe()}")

    def _job(self, act: str, launch: str) -> Job:
        folder = self.folder / act / launch
        return Job(url=str(self.store(act)), folder=str(folder), cache=str(self.folder / "compilation-cache"))
