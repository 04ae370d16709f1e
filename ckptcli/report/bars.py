"""Bars: how long the saves took, how long each rank took, how large the components are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckptcli import text
from ckptcli.report.markup import element, escape, picture
from ckptcli.report.scale import Linear
from ckptcore.inspect.chronicle import Delivery
from ckptcore.names import GenerationId

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1000, 220, 64, 12, 40
PHASES = ("stage", "write")
"""In the order in which they happen; `stage` is what training waits for."""


def phases(saves: Mapping[GenerationId, Sequence[Delivery]]) -> str:
    """A bar a save: of each phase the slowest rank's seconds."""
    if not saves:
        return ""
    slowest = {generation: {phase: longest(told, phase) for phase in PHASES} for generation, told in saves.items()}
    highest = max(sum(found.values()) for found in slowest.values())
    scale = Linear(0, highest or 1, HEIGHT - BOTTOM, TOP)
    step = (WIDTH - LEFT - 10) / len(slowest)
    shapes = [*_grid(scale)]
    for number, (generation, found) in enumerate(slowest.items()):
        x, base = LEFT + step * number, 0.0
        label = f"step {generation.step:,}: " + ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in found.items())
        parts = []
        for phase, seconds in found.items():
            top, bottom = scale(base + seconds), scale(base)
            width, left = round(min(step * 0.8, 60), 2), round(x + step * 0.1, 2)
            parts.append(element("rect", class_=f"phase {phase}", x=left, y=top, width=width, height=bottom - top))
            base += seconds
        shapes.append(element("g", element("title", escape(label)) + "".join(parts)))
        if number % max(1, len(slowest) // 10) == 0:
            shapes.append(
                element("text", f"{generation.step:,}", class_="tick", x=round(x + step * 0.1, 2), y=HEIGHT - BOTTOM + 16)
            )
    shapes.append(element("text", "step", class_="tick", x=LEFT - 10, y=HEIGHT - BOTTOM + 16, text_anchor="end"))
    legend = element(
        "ul", "".join(element("li", element("i", class_=f"phase {phase}") + phase) for phase in PHASES), class_="legend"
    )
    return picture(WIDTH, HEIGHT, f"How long {len(slowest)} saves took", *shapes) + legend


def longest(told: Iterable[Delivery], phase: str) -> float:
    """The slowest rank's seconds of one phase."""
    return max((delivery.phases.get(phase, 0.0) for delivery in told), default=0.0)


def bar(share: float, kind: str = "") -> str:
    """A bar inside of a table's cell, `share` of its width."""
    return element("span", element("i", class_=kind, style=f"width:{round(100 * share, 1)}%"), class_="bar")


def duration(seconds: float) -> str:
    """Seconds, to three digits."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 100 else text.span(seconds)


def _grid(scale: Linear) -> list[str]:
    shapes = []
    for value in scale.ticks():
        y = scale(value)
        shapes.append(element("line", class_="grid", x1=LEFT, x2=WIDTH - 10, y1=y, y2=y))
        shapes.append(element("text", duration(value) if value else "0", class_="tick", x=LEFT - 10, y=y + 4, text_anchor="end"))
    return shapes
