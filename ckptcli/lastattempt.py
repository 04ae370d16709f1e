"""What `ckpt explain` says of a supervised run: how the last attempt ended, and whether somebody supervises it still.

Of both the records alone are asked, which nothing of the run depends on (spec: U-2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from ckptcli import text
from ckptcli.incidents import on_nodes, supervisor_at, what
from ckptcore.attempts import Attempt, AttemptEnd, Outcome
from ckptcore.inspect.explaining import Outlook
from ckptcore.inspect.findings import Finding
from ckptcore.inspect.incidents import Incident, incidents
from ckptcore.inspect.inventory import time_of

SOON = timedelta(minutes=5)
"""What is older says little: after an attempt the next one is planned before that, unless the store does not answer."""


_OUTCOMES: Mapping[Outcome, str] = {
    "finished": "finished",
    "failed": "failed",
    "preempted": "was told to stop",
    "resized": "was ended to go on with more or fewer ranks",
    "superseded": "was superseded by another job",
    "lost": "was found without its supervisor",
}
_OVER = ("finished", "preempted", "superseded")
"""After these a supervisor ends."""


def supervised(found: Outlook, now: datetime) -> Iterator[Finding]:
    """A line on each; nothing of a run that nobody supervises."""
    ends = [attempt.end for attempt in found.attempts if attempt.end is not None]
    if ends:
        yield Finding(kind="attempt", text=_ended(ends[-1], found.attempts, now), clause="R-77")
    if found.attempts:
        yield Finding(kind="supervisor", text=_supervisor(found, now), clause="U-3, U-4")


def _ended(end: AttemptEnd, attempts: Sequence[Attempt], now: datetime) -> str:
    """`attempt 3 failed, 4 min ago: exit of rank 2 (trainer-7, slot 2) in init: no device`."""
    told = next((each for each in incidents(attempts) if each.attempt == end.attempt), None)
    ended = f"attempt {end.attempt} {_OUTCOMES[end.outcome]}, {text.ago(time_of(end.stopped), now)}"
    return ended if told is None else f"{ended}: {_why(told)}"


def _why(incident: Incident) -> str:
    message = text.first_line(incident.message)
    return what(incident) + (f": {message}" if message else "")


def _supervisor(found: Outlook, now: datetime) -> str:
    newest = found.attempts[-1]
    owner = f"{supervisor_at(newest.plan)}, process {newest.plan.supervisor.pid}"
    if newest.end is None:
        sign = _last_sign(found)
        is_new = sign is not None and now - sign < SOON
        ranks = f"{text.plural(newest.plan.processes, 'rank')}{on_nodes(newest.plan)}"
        runs = f"attempt {newest.number} of {ranks} has no end: its supervisor ({owner})"
        guess = "seems to be at work" if is_new else "is at work, or has died without a word"
        return f"{runs} {guess}; the newest sign of that is {text.ago(sign, now)}"
    if newest.end.outcome in _OVER:
        return "nobody supervises the job, as far as is recorded: who did has ended, and launches no more attempts"
    stopped, failed = time_of(newest.end.stopped), _failed_in_a_row(found.attempts)
    again = f"the last {failed} attempts have failed: mend what ended them, then start it again" if failed > 1 else ""
    if stopped is not None and now - stopped < SOON:
        due = f"the next attempt is due: its supervisor ({owner}) is at work, or has just ended"
        return f"{due}; if none follows, {again}" if again else due
    return f"no attempt has followed: its supervisor ({owner}) has given up, or has died; {again or 'start it again'}"


def _failed_in_a_row(attempts: Sequence[Attempt]) -> int:
    """How many of the newest attempts have failed, and led to no new checkpoint."""
    ends = [(attempt.plan.committed, attempt.end) for attempt in attempts]
    failed = takewhile(lambda each: each[1] and each[1].outcome == "failed" and each[1].committed == each[0], reversed(ends))
    return len(list(failed))


def _last_sign(found: Outlook) -> datetime | None:
    """The newest of: the plan of the newest attempt, that it has caught up, a commit."""
    newest = found.attempts[-1]
    told = [newest.plan.created, *([] if newest.resumed is None else [newest.resumed.recovered])]
    return max(filter(None, [found.captured, *map(time_of, told)]), default=None)
