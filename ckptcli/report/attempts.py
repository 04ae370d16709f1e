"""A supervised run in the report: a band of attempts for the timeline, where the time went, incidents, and every attempt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime

from ckptcli import text
from ckptcli.durations import shown
from ckptcli.incidents import goodput_line, of_whom, supervisor_at, where
from ckptcli.report.markup import element, escape, facts, table
from ckptcli.report.scale import Times
from ckptcore.attempts import Attempt
from ckptcore.inspect.chronicle import Chronicle
from ckptcore.inspect.costs import kept, measured
from ckptcore.inspect.incidents import LOST, PARTS, Account, Goodput, Incident, Span, account, spans
from ckptcore.inspect.inventory import time_of
from ckptcore.inspect.starts import Start
from ckptcore.interval import Costs

SHOWN = 200
"""The most incidents and attempts that are listed: the newest."""

BAND = 12
"""How high the band is."""


def accounted(told: Chronicle, now: datetime) -> Account | None:
    """What a supervised run's attempts come to; None if nobody supervised. What trains counts until the newest capture."""
    found = measured(told.deliveries)
    costs = None if found is None else Costs(blocking=found.blocking, persist=found.persist)
    return account(told.attempts, now, seen=newest(told), costs=costs, period=kept(told.entries))


def newest(told: Chronicle) -> datetime:
    """When the newest checkpoint was captured; before all times if there is none."""
    dated = [entry.at for entry in told.entries if entry.at is not None and entry.bytes is not None]
    return max(dated, default=datetime.min.replace(tzinfo=UTC))


def drawn(told: Chronicle, most: int) -> list[list[Span]]:
    """The spans of the newest attempts, as far as anything is known of each."""
    return spans(told.attempts, None, newest(told))[-most:] if told.attempts else []


def band(found: Sequence[Sequence[Span]], numbers: Sequence[int], times: Times, y: float) -> list[str]:
    """Attempts as rectangles from left to right, each part of the time in its own color, and a stroke where each begins."""
    shapes = []
    for number, parts in zip(numbers, found, strict=True):
        for span in parts:
            x, end = times(span.start), times(span.stop)
            title = element("title", escape(f"attempt {number}: {span.part}, {shown(span.seconds)}"))
            width = round(max(end - x, 0.8), 2)
            shapes.append(element("rect", title, class_=f"part {span.part}", x=x, y=y - BAND / 2, width=width, height=BAND))
        if parts:
            x = times(parts[0].start)
            title = element("title", escape(f"attempt {number}"))
            shapes.append(element("path", title, class_="launch", d=f"M{x},{y - BAND / 2 - 3}v{BAND + 6}"))
    return shapes


def legend() -> str:
    """What the colors mean."""
    return element("ul", "".join(element("li", element("i", class_=f"part {part}") + part) for part in PARTS), class_="legend")


def overview(told: Account) -> str:
    """The sums, and all of the time as one bar."""
    found = told.goodput
    lost = [each.lost_steps for each in told.incidents if each.lost_steps is not None]
    shares = {
        "goodput": goodput_line(found, told.predicted),
        "incidents": str(found.incidents),
        "mean time between incidents": "" if found.mtbf is None else shown(found.mtbf),
        "steps made again": f"{sum(lost):,}" if lost else "",
    }
    return facts(shares) + _shares(found)


def _shares(found: Goodput) -> str:
    """The parts side by side, as wide as they are long, and what each comes to."""
    if not found.wall:
        return ""
    parts = [(part, getattr(found, part)) for part in PARTS if getattr(found, part)]
    bar = "".join(
        element("i", class_=f"part {part}", style=f"width:{100 * seconds / found.wall:.3f}%", title=f"{part} {shown(seconds)}")
        for part, seconds in parts
    )
    told = "".join(
        element("li", element("i", class_=f"part {part}") + escape(f"{part} {shown(seconds)}, {seconds / found.wall:.1%}"))
        for part, seconds in parts
    )
    return element("div", bar, class_="shares") + element("ul", told, class_="legend")


def incident_table(found: Sequence[Incident], attempts: Sequence[Attempt]) -> str:
    """What went wrong, newest first, and what each incident has cost; with the stack of what hung."""
    stacks = {each.number: each.end.stack for each in attempts if each.end is not None}
    head = ["attempt", "noticed", "kind", "who and where", *LOST, "all", "lost steps", "message"]
    rows = [
        [
            f"{each.attempt}",
            _moment(each.at),
            element("span", escape(each.kind), class_="state aborted"),
            "<br>".join(filter(None, (escape(of_whom(each)), escape(where(each))))),
            *(escape(shown(getattr(each, part))) for part in LOST),
            escape(shown(each.seconds)),
            "" if each.lost_steps is None else f"{each.lost_steps:,}",
            escape(text.first_line(each.message, 200) + ("" if each.recovered else " (not caught up yet)"))
            + _stack(stacks.get(each.attempt, "")),
        ]
        for each in reversed(found[-SHOWN:])
    ]
    return table(head, rows, right=["attempt", *LOST, "all", "lost steps"], caption=_omitted(found)) if rows else ""


def _stack(stack: str) -> str:
    return element("details", element("summary", "stack") + element("pre", escape(stack))) if stack else ""


def attempt_table(attempts: Sequence[Attempt], starts: Sequence[Start]) -> str:
    """Every launch, newest first; with what going on from a checkpoint could keep then."""
    found = launched(attempts, starts)
    head = [
        "attempt",
        "planned",
        "cause",
        "ranks",
        "guarantee",
        "slots",
        "from step",
        "to step",
        "trained",
        "blocked",
        "outcome",
        "supervisor",
    ]
    rows = [_attempt(each, found.get(each.number)) for each in reversed(attempts[-SHOWN:])]
    right = ["attempt", "ranks", "from step", "to step", "trained", "blocked"]
    return table(head, rows, right=right, caption=_omitted(attempts)) if rows else ""


def launched(attempts: Sequence[Attempt], starts: Sequence[Start]) -> dict[int, Start]:
    """Attempt → the incarnation that its job became: the last that was claimed before the next attempt was planned.

    No record names the other, so this goes by their times, and is for people only.
    """
    plans = [(time_of(attempt.plan.created), attempt.number) for attempt in attempts]
    dated = sorted((at, number) for at, number in plans if at is not None)
    found = dict[int, Start]()
    for start in starts:
        place = 0 if start.claimed is None else bisect_right(dated, start.claimed, key=lambda each: each[0])
        if place:
            found[dated[place - 1][1]] = start
    return found


def _attempt(attempt: Attempt, start: Start | None) -> list[str]:
    plan, end = attempt.plan, attempt.end
    began = attempt.resumed or end
    outcome = "" if end is None else end.outcome
    return [
        f"{attempt.number}",
        escape(plan.created[:19].replace("T", " ")),
        escape(plan.cause),
        f"{start.before:,} → {plan.processes:,}" if start is not None and start.resized else f"{plan.processes:,}",
        escape(start.guarantee or "") if start is not None else "",
        escape(_slots(attempt)),
        _step(began and began.restored_step),
        _step(end and end.last_step),
        escape(shown(end.trained / 1e6)) if end is not None else "",
        escape(shown(end.blocked / 1e6)) if end is not None else "",
        element("span", escape(outcome), class_="state aborted" if outcome in ("failed", "lost") else "state"),
        escape(f"{supervisor_at(plan)}, {plan.supervisor.pid}"),
    ]


def _slots(attempt: Attempt) -> str:
    """`0-3` on one node; of a job of several `a: 0-3; b: 0, 1`, also while it has only one."""
    plan = attempt.plan
    nodes = dict.fromkeys(plan.nodes)
    ranges = {
        node: text.ranks([slot for place, slot in zip(plan.nodes, plan.slots, strict=True) if place == node]).partition(" ")[2]
        for node in nodes
    }
    is_alone = len(ranges) == 1 and not plan.members
    return next(iter(ranges.values())) if is_alone else "; ".join(f"{node}: {slots}" for node, slots in ranges.items())


def _step(step: int | None) -> str:
    return "" if step is None else f"{step:,}"


def _omitted(found: Sequence[object]) -> str:
    return f"The newest {SHOWN} of {len(found):,}." if len(found) > SHOWN else ""


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")
