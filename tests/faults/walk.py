"""One save after the other, each with another system call of it failing: run in a process with the interposer.

`python -m tests.faults.walk FOLDER CONTROL FAULT` prints a JSON line for each save: which call failed, and how the save ended.
What must hold after each is asserted here; the process ends with status 0 once a save ran through without meeting the fault.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptcore import ledger, retry
from ckptcore.errors import CommitUnknown, SaveAborted, SaveError, SaveFailed
from ckptcore.history import read_run
from ckptcore.incarnations import undecided
from ckptcore.keep import Keep
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import open_store
from ckptcore.verify import verify
from tests.ckptcore.support import CHUNK_BYTES, FakeClock, check_commits, checkpointer, same, state
from tests.faults.interposer import CHANGES, Control
from tests.spec.checker import check_run

MOST = 1000
"""More calls than a save makes: a walk that gets there has lost its end."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What fails: call number 1 on `files` that are not `unlike`; in the next save the one `stride` later, and so on."""

    error: int = errno.EIO
    kinds: tuple[str, ...] = CHANGES
    files: str = "*"
    unlike: str = ""
    sticky: bool = False
    after: bool = False
    stride: int = 1


class Job:
    """A job that goes on from what is there, and for which deadlines pass at once."""

    def __init__(self, run: Path) -> None:
        self.store = open_store(run)
        self._saver = checkpointer(run, chunk_bytes=CHUNK_BYTES, keep=Keep(last=2))
        restored = self._saver.restore_or_init(lambda: state(0), like=state(0))
        self.base = restored.step
        assert same(restored.components, state(self.base))
        self._saver._clock = FakeClock()

    def save(self, step: int) -> SaveError | None:
        """The error of a save, or None once it was acknowledged."""
        try:
            self._saver.save(step, state(step)).result()
        except (SaveFailed, SaveAborted, CommitUnknown) as error:
            return error
        return None

    def generation(self, step: int) -> GenerationId:
        """What this job calls the save of a step."""
        return GenerationId(self._saver.incarnation or 0, step, 1)

    def close(self) -> None:
        """End the job; all its errors have been seen."""
        self._saver.close()


class Walk:
    """A run, its job, and the newest commit that is known."""

    def __init__(self, folder: Path, control: Control, fault: Fault) -> None:
        self.run, self.control, self.fault = folder / "run", control, fault
        self.job = Job(self.run)
        self.step = self.newest = self.errors = 0
        while self.step < 3:  # from now on each save retires a commit
            assert self.clean_save()

    def lines(self) -> Iterator[dict[str, object]]:
        """Fail each call of a save in turn. Yields what came of each."""
        for at in range(1, MOST, self.fault.stride):
            line = self._faulty_save(at)
            yield line
            if not line["hits"]:
                self.job.close()
                assert check_run(self.run) == []
                assert check_commits(self.job.store)
                return
        raise AssertionError("the save never ran through")

    def clean_save(self) -> bool:
        """The job lives on: a save without a fault commits."""
        self.step += 1
        self.newest = self.step
        return self.job.save(self.step) is None

    def decided(self, generation: GenerationId) -> Decided | None:
        """What the ledger says, asked for anew."""
        return ledger.read(self.job.store, read_run(self.job.store).run_id, generation)

    def _faulty_save(self, at: int) -> dict[str, object]:
        fault, control = self.fault, self.control
        self.step += 1
        how = {"kinds": fault.kinds, "unlike": fault.unlike, "sticky": fault.sticky, "after": fault.after}
        with control.failing(f"{self.run}/{fault.files}", at, fault.error, **how):
            error = self.job.save(self.step)
        line: dict[str, object] = {
            "call": control.first.replace(f"{self.run}/", ""),
            "hits": control.hits,
            "seen": control.seen,
            "outcome": "committed" if error is None else error.kind,
            "told": "" if error is None else told(error),
        }
        generation = self.job.generation(self.step)
        decided = self.decided(generation)
        check_outcome(error, decided, fault)
        if decided is not None and decided.committed:
            self.newest = self.step
            assert verify(Checkpoint(self.job.store, decided), deep=True).ok
        if error is not None:
            self._go_on(generation, decided)
        return {**line, "decided": None if decided is None else "commit" if decided.committed else "abort"}

    def _go_on(self, generation: GenerationId, decided: Decided | None) -> None:
        """The next save and the next start take turns in settling what is undecided. What was decided stays so."""
        self.errors += 1
        if self.errors % 2:
            self.job.close()
            self.job = Job(self.run)
        else:
            assert self.clean_save()
        assert generation not in undecided(self.job.store)
        settled = self.decided(generation)
        assert decided is None or settled == decided
        if self.errors % 2:
            committed = settled is not None and settled.committed
            assert self.job.base == (generation.step if committed else self.newest)
            # The base stays, whatever the policy: after two more saves the next one has a commit to retire again.
            assert self.clean_save()
            assert self.clean_save()


def check_outcome(error: SaveError | None, decided: Decided | None, fault: Fault) -> None:
    """What the caller was told is what the ledger says, and why."""
    if error is None:
        assert decided is not None
        assert decided.committed
        return
    if isinstance(error, SaveAborted):
        assert decided is not None
    if not isinstance(error, CommitUnknown):
        assert decided is None or not decided.committed, f"committed, though its caller was told {error!r}"
    if fault.error in FULL and not fault.after:
        reason = "No space left" if isinstance(error, CommitUnknown) else "Make room"
        assert reason in told(error) or "Make room" in told(error), told(error)


def told(error: BaseException) -> str:
    """All that an error and its causes say."""
    text = f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}"
    return text if error.__cause__ is None else f"{text}\n{told(error.__cause__)}"


def main() -> None:
    """Walk, as the arguments say."""
    retry.FIRST_DELAY = 1e-5
    walk = Walk(Path(sys.argv[1]), Control(Path(sys.argv[2])), Fault(**json.loads(sys.argv[3])))
    for line in walk.lines():
        print(json.dumps(line), flush=True)  # noqa: T201 -- read by the test


if __name__ == "__main__":
    main()
