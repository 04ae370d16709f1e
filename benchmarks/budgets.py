"""The budgets of this project, as data: each figure of a comparison that has one, and the most that it may be.

Every budget is `factor` of another figure of the same round, `plus` a constant. Peers are measured by the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Framework = Literal["jax", "torch"]
MIB = 1 << 20


@dataclass(frozen=True)
class Budget:
    """`figure` may be `factor` × `of` + `plus`, in the figure's unit."""

    name: str
    """For people, in the table of `operation`."""
    operation: Literal["save", "restore"]
    figure: str
    factor: float = 0.0
    of: str = "floor_save"
    plus: float = 0.0
    framework: Framework | None = None
    """The one that it is for; None: both."""

    def used(self, figures: Mapping[str, float]) -> float | None:
        """How much of it was used, in one round: it holds up to 1. None if nothing was measured."""
        if self.figure not in figures:
            return None
        return figures[self.figure] / (self.factor * figures[self.of] + self.plus)

    @property
    def most(self) -> str:
        """What it may be, in words."""
        part = f"{self.factor:g} × {OF[self.of]}" if self.factor else ""
        return " + ".join(part for part in (part, self._plus()) if part)

    def _plus(self) -> str:
        if self.figure.endswith("_seconds"):
            return f"{self.plus * 1e3:g} ms" if self.plus else ""
        if self.figure.endswith("_over"):
            return f"{self.plus / MIB:g} MiB"
        return f"{self.plus:g}{' × the bytes needed' if self.figure.endswith('_read') else ''}"


OF = {
    "floor_save": "the floor of a save",
    "floor_copy": "memcpy of the state",
    "bytes": "the state",
    "ranks": "the ranks",
    "floor_cold": "the cold floor of a restore",
    "floor_cached": "the cached floor of a restore",
    "2d_cold_floor": "the cold floor for the bytes read",
    "2d_cached_floor": "the cached floor for the bytes read",
    "transposed_cold_floor": "the cold floor for the bytes read",
    "transposed_cached_floor": "the cached floor for the bytes read",
}
"""The figures that a budget is a part of, in words."""


BUDGETS: tuple[Budget, ...] = (
    Budget("save", "save", "save_seconds", 1.15, "floor_save"),
    Budget("blocked", "save", "blocked_seconds", 0.05, "floor_copy", 0.020, framework="jax"),
    Budget("blocked", "save", "blocked_seconds", 1.2, "floor_copy", framework="torch"),
    Budget("memory", "save", "save_over", plus=256 * MIB, framework="jax"),
    Budget("memory", "save", "save_over", 1.0, "bytes", 256 * MIB, framework="torch"),
    Budget("files", "save", "files", 8, "ranks", 20),
    Budget("cold", "restore", "restore_cold_seconds", 1.25, "floor_cold"),
    Budget("cached", "restore", "restore_cached_seconds", 1.25, "floor_cached"),
    Budget("2d cold", "restore", "2d_cold_seconds", 1.5, "2d_cold_floor"),
    Budget("2d cached", "restore", "2d_cached_seconds", 1.5, "2d_cached_floor"),
    Budget("transposed cold", "restore", "transposed_cold_seconds", 1.5, "transposed_cold_floor"),
    Budget("transposed cached", "restore", "transposed_cached_seconds", 1.5, "transposed_cached_floor"),
    Budget("memory", "restore", "restore_over", plus=256 * MIB),
    Budget("read for 2d", "restore", "2d_read", plus=2.0),
    Budget("read for transposed", "restore", "transposed_read", plus=2.0),
)


def table() -> str:
    """All of them in words, in Markdown."""
    lines = ["| of a | budget | at most |", "| --- | --- | --- |"]
    for budget in BUDGETS:
        name = f"{budget.name} ({budget.framework})" if budget.framework else budget.name
        lines.append(f"| {budget.operation} | {name} | {budget.most} |")
    return "\n".join(lines)


def of(framework: Framework | None) -> tuple[Budget, ...]:
    """Those that are for such a subject."""
    return tuple(budget for budget in BUDGETS if budget.framework in (None, framework))
