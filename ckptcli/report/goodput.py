"""The goodput curve: how much of the time becomes work that no failure takes back, by the time between saves."""

from __future__ import annotations

import math

from ckptcli.durations import shown
from ckptcli.report.markup import element, escape, facts, picture
from ckptcli.report.scale import Linear
from ckptcore import interval
from ckptcore.inspect.chronicle import Chronicle
from ckptcore.inspect.costs import Measured, kept, measured
from ckptcore.interval import Costs

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1000, 240, 64, 14, 40


def goodput(told: Chronicle, mtbf: float | None) -> str:
    """The curve for the run's measured costs, with the best time and the one that the run keeps; empty without an MTBF."""
    found = None if mtbf is None else measured(told.deliveries)
    if mtbf is None or found is None:
        return ""
    costs = Costs(blocking=found.blocking, persist=found.persist)
    best, current = interval.best_period(costs, mtbf), kept(told.entries)
    return _curve(costs, mtbf, best, current) + facts(_told(found, costs, mtbf, best, current))


def _told(found: Measured, costs: Costs, mtbf: float, best: float, period: float | None) -> dict[str, object]:
    current = "" if period is None or period < costs.shortest else f"{shown(period)}: {interval.goodput(period, costs, mtbf):.2%}"
    return {
        "best time between saves": f"{shown(best)}: {interval.goodput(best, costs, mtbf):.2%}",
        "this run's": current,
        "mean time between failures": shown(mtbf),
        "training waits": shown(found.blocking),
        "until committed": shown(found.persist),
        "measured over": f"{found.saves} saves",
    }


def _curve(costs: Costs, mtbf: float, best: float, current: float | None) -> str:
    points = interval.curve(costs, mtbf)
    across = Linear(math.log(points[0][0]), math.log(points[-1][0]), LEFT, WIDTH - 20)
    up = Linear(min(value for _, value in points), 1.0, HEIGHT - BOTTOM, TOP)
    line = "L".join(f"{across(math.log(period))},{up(value)}" for period, value in points)
    shapes = [*_grid(up), *_times(across, points[0][0], points[-1][0]), element("path", class_="curve", d=f"M{line}")]
    marks = {"best": best} | ({} if current is None or not points[0][0] <= current <= points[-1][0] else {"this run": current})
    for number, (name, period) in enumerate(marks.items()):
        x = across(math.log(period))
        shapes.append(element("line", class_=f"at at-{number}", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM))
        left = {"x": x + 6} if x < 0.85 * WIDTH else {"x": x - 6, "text_anchor": "end"}
        shapes.append(element("text", escape(name), class_="tick", y=TOP + 14 + 18 * number, **left))
    return picture(WIDTH, HEIGHT, "Goodput by the time between saves", *shapes)


def _grid(up: Linear) -> list[str]:
    shapes = []
    for value in up.ticks(4):
        y = up(value)
        shapes.append(element("line", class_="grid", x1=LEFT, x2=WIDTH - 20, y1=y, y2=y))
        shapes.append(
            element(
                "text",
                f"{value:.0%}" if up.high - up.low > 0.05 else f"{value:.1%}",
                class_="tick",
                x=LEFT - 10,
                y=y + 4,
                text_anchor="end",
            )
        )
    return shapes


def _times(across: Linear, low: float, high: float) -> list[str]:
    """Times along the axis, each about three times the one before."""
    rounds = [1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000]
    return [
        element(
            "text", escape(shown(period)), class_="tick", x=across(math.log(period)), y=HEIGHT - BOTTOM + 18, text_anchor="middle"
        )
        for period in rounds
        if low <= period <= high
    ]
