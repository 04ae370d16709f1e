"""From what was measured to what it says: ratios to the floor of the same round, then the median over the rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import budgets
from benchmarks.measuring import home_of

Figures = dict[str, float]


def derive(result: Mapping[str, Any]) -> dict[str, Any]:
    """`floors`: figure → spread; `subjects`: name → figure → spread; `budgets`: name → budget → spread of what was used of it.

    A spread has `median`, `min` and `max` over the rounds.
    """
    floors = [floors_of(one["floors"]) for one in result["rounds"]]
    names = [name for name, description in result["subjects"].items() if "error" not in description]
    figures = {name: _rounds(result, name, floors) for name in names}
    used = {name: [_used(one, framework(result["subjects"][name])) for one in rounds] for name, rounds in figures.items()}
    return {
        "floors": _spreads(floors),
        "subjects": {name: _spreads(rounds) for name, rounds in figures.items()},
        "budgets": {name: _spreads(rounds) for name, rounds in used.items()},
    }


def floors_of(measured: Sequence[Mapping[str, Any]]) -> Figures:
    """The floors of one round: of each way the median of its measurements, and of these the best."""
    found = {
        "floor_save": _best([one["save"] for one in measured]),
        "floor_copy": _best([one["copy"] for one in measured]),
    }
    for cache in measured[0]["restore"]:
        found[f"floor_{cache}"] = _best([one["restore"][cache] for one in measured])
    for cache in measured[0].get("proven", {}):  # which older records lack
        found[f"floor_proven_{cache}"] = _best([one["proven"][cache] for one in measured])
    return found


def framework(description: Mapping[str, Any]) -> budgets.Framework | None:
    """What a subject is for, from the packages that it names."""
    return "torch" if "torch" in description["versions"] else "jax" if "jax" in description["versions"] else None


def figures_of(records: Sequence[Mapping[str, Any]], home: str, nbytes: int, floors: Mapping[str, float]) -> Figures:
    """The figures of one subject in one round. What failed has none."""
    figures: Figures = {**floors, "bytes": nbytes}
    for record in records:
        if "error" in record:
            continue
        if record["operation"] == "save":
            figures |= _save(record, nbytes, floors) if record["mesh"] == home else _sharded(record, floors)
        else:
            name = "restore" if record["mesh"] == record["saved"] else record["mesh"]
            figures |= _restore(record, name, nbytes, floors, figures)
    return figures


def _save(record: Mapping[str, Any], nbytes: int, floors: Mapping[str, float]) -> Figures:
    first, second = record["saves"]
    return {
        "save_seconds": second["total"],
        "save_ratio": second["total"] / floors["floor_save"],
        "first_save_seconds": first["total"],
        "blocked_seconds": second["blocked"],
        "blocked_ratio": second["blocked"] / floors["floor_copy"],
        "first_blocked_seconds": first["blocked"],
        "save_over": max(first["over"], second["over"]),
        "files": second["files"],
        "ranks": record["ranks"],
        "stored_ratio": second["bytes"] / nbytes,
    }


def _sharded(record: Mapping[str, Any], floors: Mapping[str, float]) -> Figures:
    second = record["saves"][-1]
    ratio = second["total"] / floors["floor_save"]
    return {"sharded_save_seconds": second["total"], "sharded_save_ratio": ratio, "sharded_files": second["files"]}


def _restore(record: Mapping[str, Any], name: str, nbytes: int, floors: Mapping[str, float], others: Figures) -> Figures:
    """The floor of a restore on another mesh is that of the bytes that were read, if those are more than were needed.

    What a disk had to give once, the page cache has for whoever reads it again.
    """
    cache, read = record["cache"], record["asked"] / nbytes
    floor = floors[f"floor_{cache}"]
    if name != "restore":
        once = max(1.0, record["disk"] / nbytes)
        floor = floor * once + floors["floor_cached"] * max(0.0, read - once)
    return {
        f"{name}_{cache}_seconds": record["seconds"],
        f"{name}_{cache}_ratio": record["seconds"] / floors[f"floor_{cache}"],
        f"{name}_{cache}_floor": floor,
        f"{name}_{cache}_disk": record["disk"] / nbytes,
        f"{name}_{cache}_held": record["held"],
        f"{name}_read": max(read, others.get(f"{name}_read", 0.0)),
        f"{name}_over": max(record["over"], others.get(f"{name}_over", 0.0)),
    }


def _rounds(result: Mapping[str, Any], name: str, floors: Sequence[Figures]) -> list[Figures]:
    home = home_of(result["subjects"][name]["processes"])
    rounds = [[record for record in one["records"] if record["subject"] == name] for one in result["rounds"]]
    return [figures_of(records, home, result["bytes"], floor) for records, floor in zip(rounds, floors, strict=True)]


def _used(figures: Figures, kind: budgets.Framework | None) -> Figures:
    used = {f"{budget.operation}: {budget.name}": budget.used(figures) for budget in budgets.of(kind)}
    return {name: share for name, share in used.items() if share is not None}


def _best(measured: Sequence[Mapping[str, float]]) -> float:
    return min(median(one[way] for one in measured) for way in measured[0])


def _spreads(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Over the rounds that have the figure."""
    names = dict.fromkeys(name for one in rounds for name in one)
    values = {name: [one[name] for one in rounds if name in one] for name in names}
    return {name: {"median": median(found), "min": min(found), "max": max(found)} for name, found in values.items()}
