"""Places where a job is supervised that has not begun its run: there are attempts, and no `run.json` (spec: U-8). Reads only."""

from __future__ import annotations

from ckptcore.attempts import Attempt, Attempts
from ckptcore.errors import NotFound
from ckptcore.history import History
from ckptcore.store import Store


def look(store: Store) -> tuple[History | None, list[Attempt]]:
    """The history of the run, None while it has not begun; and the attempts, oldest first.

    Raises `NotFound` where there is neither.
    """
    try:
        history = History.load(store)
    except NotFound:
        attempts = Attempts(store).load()
        if not attempts:
            raise
        return None, attempts
    return history, Attempts(store, history.run.run_id).load()


def advice(newest: Attempt) -> str:
    """What to do about a run that has not begun, by its newest attempt."""
    end = newest.end
    trained = newest.resumed is not None or (end is not None and end.last_step is not None)
    if trained or (end is not None and end.outcome == "finished"):
        done = "its ranks have trained" if trained else "all of its ranks have ended with status 0"
        return f"{done}, and opened no run here: does their Checkpointer have the URL that was given as --run?"
    if end is None:
        return "if its supervisor is still there, wait: the job has to open the run; else start that again"
    if end.incident is None:
        return "start the supervisor again: the job begins at step 0"
    why = "its ranks end before they open the run, or their Checkpointer has another URL than the one that was given as --run"
    return f"{why}: mend that, and start the supervisor again; the job begins at step 0"
