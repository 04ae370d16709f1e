"""The tables of a comparison, in Markdown. Pure: every figure comes from the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from statistics import median
from typing import Any

Spread = Mapping[str, float]
Cell = Callable[[Mapping[str, Spread]], str]
Column = tuple[str, Cell]

NOTHING = "–"
READ = "Read ÷ needed counts what system calls have read, not what was read through a memory map, as safetensors does."
WARM = 0.01
"""The share of pages in the page cache from which on a restore is not called cold."""


def _cell(name: str, text: Callable[[Spread], str]) -> Cell:
    """The text of a figure; a dash where there is none."""
    return lambda figures: text(figures[name]) if name in figures else NOTHING


def ratio(name: str) -> Cell:
    """Median, then least and most where they differ: `1.13 (1.08–1.21)`."""
    return _cell(name, lambda s: f"{s['median']:.2f}" + (f" ({s['min']:.2f}–{s['max']:.2f})" if s["min"] < s["max"] else ""))


def seconds(name: str) -> Cell:
    """The median."""
    return _cell(name, lambda s: _time(s["median"]))


def _time(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def mebibytes(name: str) -> Cell:
    """The median."""
    return _cell(name, lambda s: f"{s['median'] / 2**20:.0f} MiB")


def number(name: str, digits: int = 0) -> Cell:
    """The median."""
    return _cell(name, lambda s: f"{s['median']:.{digits}f}")


SAVES: tuple[Column, ...] = (
    ("save ÷ floor", ratio("save_ratio")),
    ("save", seconds("save_seconds")),
    ("first save", seconds("first_save_seconds")),
    ("blocked ÷ memcpy", ratio("blocked_ratio")),
    ("blocked", seconds("blocked_seconds")),
    ("sharded save ÷ floor", ratio("sharded_save_ratio")),
    ("memory over the state", mebibytes("save_over")),
    ("files", number("files")),
    ("stored ÷ state", number("stored_ratio", 3)),
)
RESTORES: tuple[Column, ...] = (
    ("cold ÷ floor", ratio("restore_cold_ratio")),
    ("cached ÷ floor", ratio("restore_cached_ratio")),
    ("2d, cold", ratio("2d_cold_ratio")),
    ("2d, cached", ratio("2d_cached_ratio")),
    ("transposed, cold", ratio("transposed_cold_ratio")),
    ("transposed, cached", ratio("transposed_cached_ratio")),
    ("memory over the state", mebibytes("restore_over")),
    ("read ÷ needed", number("restore_read", 2)),
    ("… for 2d", number("2d_read", 2)),
    ("… for transposed", number("transposed_read", 2)),
)
SHORT: tuple[Column, ...] = (
    ("save ÷ floor", ratio("save_ratio")),
    ("blocked", seconds("blocked_seconds")),
    ("restore, cold ÷ floor", ratio("restore_cold_ratio")),
    ("restore, cached ÷ floor", ratio("restore_cached_ratio")),
    ("on another mesh, cold ÷ floor", ratio("2d_cold_ratio")),
    ("files", number("files")),
)
FLOORS = (
    ("save", "floor_save", "save"),
    ("restore, cold", "floor_cold", "restore", "cold"),
    ("restore, cached", "floor_cached", "restore", "cached"),
    ("the same into new memory with digests, cold", "floor_proven_cold", "proven", "cold"),
    ("cached", "floor_proven_cached", "proven", "cached"),
    ("memcpy", "floor_copy", "copy"),
)
"""What a floor is called, its figure, and where a round has its measurements."""


def full(result: Mapping[str, Any]) -> str:
    """State and floors, saves, restores, what failed, and what was set."""
    if not result["rounds"]:
        return short(result)
    saves = f"Saves:\n\n{_table(result, SAVES, 'save')}"
    restores = f"Restores:\n\n{_table(result, RESTORES, 'restore')}\n\n{READ}"
    return "\n\n".join(
        part for part in (heading(result), saves, restores, _warm(result), _failures(result), _settings(result)) if part
    )


def short(result: Mapping[str, Any]) -> str:
    """The few figures that matter most."""
    table = _table(result, SHORT, None) if result["rounds"] else ""
    return "\n\n".join(part for part in (heading(result), table, _failures(result)) if part)


def heading(result: Mapping[str, Any]) -> str:
    """The state, how often, and the floors, each with all of its measurements: a disk is not as steady as their medians."""
    if not result["rounds"]:
        return "Nothing was measured."
    known = "; ".join(
        f"{name} {seconds(figure)(result['derived']['floors'])} ({_time(min(found))}–{_time(max(found))})"
        for name, figure, *path in FLOORS
        if (found := _measured(result, path))
    )
    return f"{state_of(result)}. Floors, each with the least and the most of its measurements: {known}."


def _measured(result: Mapping[str, Any], path: Sequence[str]) -> list[float]:
    """Every measurement of one floor, in the way that was the best of its round; none where a record lacks it."""
    found: list[float] = []
    for one in result["rounds"]:
        measured = [reduce(lambda part, name: part.get(name, {}), path, floors) for floors in one["floors"]]
        best = min(measured[0], key=lambda way: median(ways[way] for ways in measured), default=None)
        found += [ways[best] for ways in measured if best is not None]
    return found


def state_of(result: Mapping[str, Any]) -> str:
    """The state and the rounds, for people."""
    rounds = len(result["rounds"])
    often = f"{rounds} rounds, median (least–most)" if rounds > 1 else "1 round"
    return f"{result['arrays']} arrays, {result['bytes'] / 1e6:,.0f} MB; {often}"


def _table(result: Mapping[str, Any], columns: Sequence[Column], budgets_of: str | None) -> str:
    """One row a subject. Columns in which nobody has a figure are left out; at the size of a smoke no budget says anything."""
    derived, judged = result["derived"], budgets_of is not None and result["size"] != "smoke"
    rows = {name: [cell(derived["subjects"].get(name, {})) for _, cell in columns] for name in result["subjects"]}
    used = [index for index in range(len(columns)) if any(row[index] != NOTHING for row in rows.values())]
    titles = [columns[index][0] for index in used] + (["within budget"] if judged else [])
    lines = [_line(["", *titles]), _line(["---"] * (len(titles) + 1))]
    for name, row in rows.items():
        last = [_budgets(derived["budgets"].get(name, {}), budgets_of or "")] if judged else []
        lines.append(_line([result["subjects"][name].get("title", name), *(row[index] for index in used), *last]))
    return "\n".join(lines)


def _budgets(used: Mapping[str, Spread], operation: str) -> str:
    """What is within its budget, and what is not, with how much of the budget it takes."""
    shares = {name.partition(": ")[2]: spread["median"] for name, spread in used.items() if name.startswith(operation)}
    within = ", ".join(name for name, share in shares.items() if share <= 1)
    beyond = ", ".join(f"{name} {share:.2f}×" for name, share in shares.items() if share > 1)
    return "; ".join(part for part in (within and f"✓ {within}", beyond and f"✗ {beyond}") if part) or NOTHING


def _warm(result: Mapping[str, Any]) -> str:
    """What to know where the page cache could not be emptied."""
    records = [record for one in result["rounds"] for record in one["records"] if record.get("cache") == "cold"]
    held = max((record.get("held", 0.0) for record in records), default=0.0)
    return (
        f"The page cache still held up to {held:.0%} of the files of a cold restore: they were not all cold."
        if held > WARM
        else ""
    )


def failures(result: Mapping[str, Any]) -> list[str]:
    """Each failure once, whatever the round; none where all went well."""
    whole = [f"- {name}: {description['error']}" for name, description in result["subjects"].items() if "error" in description]
    records = [record for one in result["rounds"] for record in one["records"] if "error" in record]
    parts = [f"- {result['subjects'][record['subject']]['title']}, {_operation(record)}: {record['error']}" for record in records]
    return list(dict.fromkeys([*whole, *parts]))


def _failures(result: Mapping[str, Any]) -> str:
    found = failures(result)
    return "\n".join(["Failed:\n", *found]) if found else ""


def _operation(record: Mapping[str, Any]) -> str:
    return f"{record['operation']} on {record['mesh']}"


def _settings(result: Mapping[str, Any]) -> str:
    """What was set, and the versions."""
    known = [description for description in result["subjects"].values() if "error" not in description]
    lines = [f"- {one['title']}: {one['settings']} ({_versions(one['versions'])})" for one in known]
    return "\n".join(["Settings:\n", *lines])


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
