"""The tables at the end: every attempt, and every incident with what it cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcli.incidents import lost_line, percent
from ckptcore.attempts import Attempt
from ckptcore.inspect.incidents import Account, Incident

LEFT = ("kind", "cause", "outcome", "who")


def attempt_table(attempts: Sequence[Attempt]) -> list[str]:
    """An attempt a line: why it was launched, on how many ranks, from where to where it came, and how it ended."""
    rows: list[tuple[str, ...]] = [("attempt", "cause", "ranks", "from step", "to step", "outcome")]
    for each in attempts:
        ended = each.end
        steps = (ended.restored_step, ended.last_step) if ended else (None, None)
        outcome = ended.outcome if ended else ""
        rows.append((f"{each.number}", each.plan.cause, f"{each.plan.processes}", *map(_number, steps), outcome))
    return aligned(rows)


def incident_table(incidents: Sequence[Incident]) -> list[str]:
    """An incident a line, with the seconds until it was known, of stopping and starting, restoring, and of work done again."""
    rows: list[tuple[str, ...]] = [("attempt", "kind", "who", "step", "detect", "relaunch", "restore", "recompute", "lost steps")]
    for each in incidents:
        who = "" if each.rank is None else f"rank {each.rank}, slot {each.slot}"
        seconds = (each.detect, each.relaunch, each.restore, each.recompute)
        parts = [f"{part:.1f} s" for part in seconds]
        rows.append((f"{each.attempt}", each.kind, who, _number(each.step), *parts, _number(each.lost_steps)))
    return aligned(rows)


def goodput_line(found: Account) -> str:
    """Which part of the time became work, and where the rest went."""
    goodput = found.goodput
    share = "none" if goodput.fraction is None else percent(goodput.fraction)
    return f"{share} of {goodput.wall:.0f} s under supervision became work; lost: {lost_line(goodput)}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first of them a head; numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lefts = [name in LEFT for name in rows[0]]
    lines = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(row, widths, lefts, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
