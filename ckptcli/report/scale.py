"""From values to places on a chart, and round numbers to label them with. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

_STEPS = [
    *(timedelta(seconds=count) for count in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=count) for count in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=count) for count in (1, 2, 3, 6, 12)),
    *(timedelta(days=count) for count in (1, 2, 7, 14, 30, 90, 365)),
]


@dataclass(frozen=True)
class Linear:
    """Values from `low` to `high` onto places from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        share = 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 2)

    def ticks(self, most: int = 5) -> list[float]:
        """At most about `most` round values."""
        raw = (self.high - self.low) / most
        if raw <= 0:
            return [self.low]
        power = 10 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
        return [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


@dataclass(frozen=True)
class Times:
    """Moments from `first` to `last` onto places from `start` to `stop`."""

    first: datetime
    last: datetime
    start: float
    stop: float

    def __call__(self, at: datetime) -> float:
        """The place of a moment."""
        whole = (self.last - self.first).total_seconds()
        share = (at - self.first).total_seconds() / whole if whole else 0.5
        return round(self.start + share * (self.stop - self.start), 2)

    def ticks(self, most: int = 8) -> list[tuple[datetime, str]]:
        """At most `most` round moments in UTC, and how each is written."""
        whole = self.last - self.first
        step = next((step for step in _STEPS if whole / step <= most), _STEPS[-1] * max(1, math.ceil(whole / _STEPS[-1] / most)))
        origin = self.first.replace(hour=0, minute=0, second=0, microsecond=0)
        first = math.ceil((self.first - origin) / step)
        last = min((self.last - origin) // step, first + most)  # no moment beyond the last: the calendar may end there
        moments = [origin + step * number for number in range(first, last + 1)]
        return [(moment, moment.strftime(_form(whole, step))) for moment in moments]


def _form(whole: timedelta, step: timedelta) -> str:
    """How moments of one axis are written: as much as tells them apart."""
    if step >= timedelta(days=1):
        return "%b %d" if whole < timedelta(days=365) else "%Y-%m-%d"
    if step < timedelta(minutes=1):
        return "%H:%M:%S"
    return "%b %d %H:%M" if whole > timedelta(days=1) else "%H:%M"
