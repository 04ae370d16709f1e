"""Numbers, times and sizes as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
FUTURE = "in the future: a clock is wrong"
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def size(count: int | None) -> str:
    """Bytes, to three digits: `1.39 GiB`."""
    if count is None:
        return ""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def span(seconds: float) -> str:
    """A span of time, to two units: `3 h 12 min`."""
    left = max(int(seconds), 0)
    parts = []
    for length, unit in _SPANS:
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def age(at: datetime | None, now: datetime) -> str:
    """How long ago something was; empty if nobody knows."""
    return "" if at is None else since((now - at) / timedelta(seconds=1))


def ago(at: datetime | None, now: datetime) -> str:
    """The same in a sentence: `3 h 12 min ago`."""
    return "at an unknown time" if at is None else since((now - at) / timedelta(seconds=1), " ago")


def since(seconds: float, ending: str = "") -> str:
    """An age, and what follows it. A negative one is told as what it is, from a second on."""
    return FUTURE if seconds < -1 else span(seconds) + ending


def ranks(numbers: Sequence[int], most: int = 6) -> str:
    """Ranks as ranges: `rank 7`, `ranks 0-3, 7`; after `most` of them, how many more."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges]
    return (
        ("rank " if len(numbers) == 1 else "ranks ")
        + ", ".join(shown[:most])
        + (f" and {len(shown) - most} more" if len(shown) > most else "")
    )


def missing(numbers: Sequence[int], participants: int | None, reason: str = "") -> str:
    """Who has delivered no receipt for a save, of how many; empty if all have, or if the `reason` of its abort says it."""
    if reason.startswith("no receipt from "):
        return ""
    if participants is None:
        return f"no receipt from {ranks(numbers)}" if numbers else "nobody can tell who is missing"
    return f"no receipt from {ranks(numbers)} of {participants}" if numbers else ""


def plain(stored: str) -> str:
    """Text that somebody stored, without what would steer a terminal."""
    return "".join(character if character.isprintable() or character == "\n" else ascii(character)[1:-1] for character in stored)


def cell(stored: str) -> str:
    """The same in one line, as a cell of a table has it: what is stored must not look like another row."""
    return plain(stored).replace("\n", "\\n")


def plural(count: int, noun: str) -> str:
    """`1 leaf`, `3 leaves`."""
    irregular = {"leaf": "leaves", "process": "processes"}
    return f"{count:,} {noun if count == 1 else irregular.get(noun, noun + 's')}"


def first_line(stored: str, most: int = 100) -> str:
    """The first line of a stored text, cut where it is long."""
    line = stored.split("\n", 1)[0]
    return line if len(line) <= most else line[: most - 1] + "…"
