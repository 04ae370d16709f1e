"""The timeline: one lane an incarnation, one mark a generation, a line from each base to the start that it was for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ckptcli.report.attempts import band, drawn, legend
from ckptcli.report.markup import element, escape, picture
from ckptcli.report.scale import Times
from ckptcli.starts import ranks_line
from ckptcore.inspect.chronicle import Chronicle
from ckptcore.inspect.incidents import Span
from ckptcore.inspect.inventory import Entry
from ckptcore.inspect.starts import Start
from ckptcore.names import GenerationId

WIDTH, LEFT, RIGHT, TOP, LANE = 1000, 64, 24, 14, 26
NOTE = 150
"""How wide the note is that tells of another number of ranks, at most."""
LANES = 60
"""The most incarnations that are drawn: the newest."""

MARKS = {
    "committed": "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z",
    "verified": "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z M-7.5,0a7.5,7.5 0 1,0 15,0a7.5,7.5 0 1,0 -15,0z",
    "stray": "M0,-6L6,0L0,6L-6,0z",
    "retired": "M-2,0a2,2 0 1,0 4,0a2,2 0 1,0 -4,0z",
    "aborted": "M-4,-4L4,4M4,-4L-4,4",
    "undecided": "M0,-5L5.5,4.5L-5.5,4.5z",
    "quarantined": "M-5,-5h10v10h-10z",
    "damaged": "M-5,-5h10v10h-10z M-5,-5L5,5",
    "unreadable": "M-5,-5h10v10h-10z M-5,-5L5,5",
}
"""State → an SVG path around the mark's middle: shapes differ, so that nothing is said by color alone."""


def timeline(told: Chronicle) -> str:
    """The picture, and what its marks mean; empty while nothing has happened."""
    starts = {start.number: start for start in told.starts[-LANES:]}
    dated, attempts = _dated(told, starts), drawn(told, LANES)
    moments = [*dated.values(), *(start.claimed for start in starts.values() if start.claimed)]
    moments += [at for parts in attempts for span in parts for at in (span.start, span.stop)]
    if not moments:
        return ""
    times = Times(min(moments), max(moments), LEFT + 8, WIDTH - RIGHT)
    top = TOP + (LANE if attempts else 0)
    lanes = {number: top + LANE * row + LANE / 2 for row, number in enumerate(starts)}
    height = top + LANE * len(lanes) + 30
    entries = [entry for entry in told.entries if entry.generation in dated]
    shapes = [
        *_axis(times, height),
        *(_lane(str(number), y) for number, y in lanes.items()),
        *(_attempts(told, attempts, times) if attempts else ()),
        *_launches(starts, lanes, dated, times),
        *(
            _note(start, times(start.claimed), lanes[start.number])
            for start in starts.values()
            if start.claimed and start.resized
        ),
        *(
            _mark(entry, _place(entry, times(dated[entry.generation])), lanes[entry.generation.incarnation], starts)
            for entry in entries
        ),
    ]
    label = f"Timeline of {len(entries)} generations in {len(lanes)} incarnations"
    omitted = len(told.starts) - len(starts)
    remark = element("p", f"{omitted} older incarnations are not drawn.", class_="quiet") if omitted else ""
    meaning = (_legend({entry.state for entry in entries}) if starts else "") + (legend() if attempts else "")
    return picture(WIDTH, height, label, *shapes) + meaning + remark


def _attempts(told: Chronicle, found: list[list[Span]], times: Times) -> list[str]:
    """The supervisor's attempts in a lane of their own, above the incarnations."""
    numbers = [attempt.number for attempt in told.attempts[-len(found) :]]
    y = TOP + LANE / 2
    return [_lane("attempts", y), *band(found, numbers, times, y)]


def _place(entry: Entry, x: float) -> float:
    """Where a mark stands: beside the one before it if nobody has dated it."""
    return x if entry.at is not None else x + 15


def _dated(told: Chronicle, starts: Mapping[int, Start]) -> dict[GenerationId, datetime]:
    """When each generation was; one that nobody has dated stands right after the one before it."""
    found: dict[GenerationId, datetime] = {}
    last: dict[int, datetime] = {}
    for entry in told.entries:
        start = starts.get(entry.generation.incarnation)
        if start is None:
            continue
        at = entry.at or last.get(entry.generation.incarnation) or start.claimed
        if at is not None:
            found[entry.generation] = last[entry.generation.incarnation] = at
    return found


def _axis(times: Times, height: float) -> list[str]:
    shapes = []
    for moment, label in times.ticks():
        x = times(moment)
        shapes.append(element("line", class_="grid", x1=x, x2=x, y1=TOP, y2=height - 24))
        shapes.append(element("text", escape(label), class_="tick", x=x, y=height - 8, text_anchor="middle"))
    return shapes


def _lane(name: str, y: float) -> str:
    line = element("line", class_="lane", x1=LEFT, x2=WIDTH - RIGHT + 10, y1=y, y2=y)
    return line + element(
        "text", escape(name), class_="tick", x=LEFT - 10 if name.isdigit() else LEFT - 4, y=y + 4, text_anchor="end"
    )


def _launches(
    starts: Mapping[int, Start], lanes: Mapping[int, float], dated: Mapping[GenerationId, datetime], times: Times
) -> list[str]:
    """A stroke where an incarnation was claimed, and a line from what it started from."""
    shapes = []
    for number, start in starts.items():
        if start.claimed is None:
            continue
        x, y = times(start.claimed), lanes[number]
        shapes.append(element("path", element("title", escape(_launch(start))), class_="launch", d=f"M{x},{y - 8}v16"))
        if start.base is not None and start.base in dated:
            from_x, from_y = times(dated[start.base]), lanes[start.base.incarnation]
            kind = "base chosen" if start.reason == "chosen" else "base"
            shapes.append(element("path", class_=kind, d=f"M{from_x},{from_y}C{from_x},{y} {from_x},{y} {x},{y}"))
    return shapes


def _launch(start: Start) -> str:
    if start.based is None:
        return f"incarnation {start.number}: claimed, and no base recorded"
    base = "a fresh start" if start.base is None else f"from {start.base}, {start.reason}"
    return f"incarnation {start.number}: {base}, {ranks_line(start)}"


def _note(start: Start, x: float, y: float) -> str:
    """`4 → 3 ranks: coverage`, beside the stroke: to its left where there is room."""
    side = -6 if x > LEFT + NOTE else 6
    anchor = "end" if side < 0 else "start"
    return element("text", escape(ranks_line(start)), class_="note", x=x + side, y=y - 5, text_anchor=anchor)


def _mark(entry: Entry, x: float, y: float, starts: Mapping[int, Start]) -> str:
    rolled = any(entry.generation in start.rolled_forward for start in starts.values())
    told = (
        f"{entry.generation}: {entry.state}"
        + (", rolled forward" if rolled else "")
        + (f": {entry.reason}" if entry.reason else "")
    )
    shape = element("path", class_=f"mark {entry.state}" + (" head" if entry.is_head else ""), d=MARKS[entry.state])
    arrow = element("path", class_="rolled", d="M0,-9v-6M-3,-12L0,-15.5L3,-12") if rolled else ""
    star = element("text", "★", class_="star", y=20, text_anchor="middle") if entry.is_head else ""
    inside = element("g", element("title", escape(told)) + shape + arrow + star, transform=f"translate({x},{y})")
    return element("a", inside, href=f"#g-{entry.generation}")


def _legend(states: set[str]) -> str:
    items = []
    for state, shape in MARKS.items():
        if state in states:
            drawn = element("svg", element("path", class_=f"mark {state}", d=shape), viewBox="-9 -9 18 18", aria_hidden="true")
            items.append(element("li", drawn + state))
    more = ("★ the resume point", "↑ rolled forward by the next start", "│ a start of the job")
    return element("ul", "".join([*items, *(element("li", text) for text in more)]), class_="legend")


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """How many generations are in each state, in the order of `MARKS`."""
    found = {state: sum(entry.state == state for entry in entries) for state in MARKS}
    return {state: count for state, count in found.items() if count}
