"""A result of a comparison, made up."""

from __future__ import annotations

from typing import Any

from benchmarks import summary

NBYTES = 1_000_000
MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "memory_gib": 24.0,
    "kernel": "Linux 6.0 x86_64",
    "file_system": "ext4",
    "device": "SSD",
    "python": "3.11.0",
    "versions": {"numpy": "2.4.6"},
}


def floors(seconds: float) -> dict[str, Any]:
    """Each floor is `seconds`, in its best way."""
    ways = {"one-file": 2 * seconds, "files-2": seconds}
    caches = {"cold": ways, "cached": ways}
    return {"save": ways, "restore": caches, "proven": caches, "copy": {"one-thread": seconds}}


def save(name: str, seconds: float, mesh: str = "one", ranks: int = 1) -> dict[str, Any]:
    """A save whose first one took twice as long."""
    one = {"blocked": seconds / 10, "total": seconds, "over": 1 << 20, "files": 5, "bytes": NBYTES}
    first = {**one, "total": 2 * seconds, "over": 3 << 20}
    return {"subject": name, "operation": "save", "mesh": mesh, "ranks": ranks, "saves": [first, one]}


def restore(name: str, seconds: float, cache: str, mesh: str = "one", *, asked: float = 1.0) -> dict[str, Any]:
    """A restore that read `asked` times the state, as it was saved or on another mesh."""
    saved = "one" if mesh == "one" else "1d"
    what = {"subject": name, "operation": "restore", "saved": saved, "mesh": mesh, "ranks": 1, "cache": cache}
    return {**what, "held": 0.0, "seconds": seconds, "over": 2 << 20, "asked": int(asked * NBYTES), "disk": 0}


def description(title: str, *packages: str) -> dict[str, Any]:
    """What a subject says of itself."""
    processes = {"one": 1, "1d": 1, "2d": 1, "transposed": 1}
    return {"title": title, "settings": f"as {title} comes", "versions": dict.fromkeys(packages, "1.0"), "processes": processes}


def one_round(scale: float) -> dict[str, Any]:
    """The floors take `scale` seconds; `Fast` is as fast, `Slow` takes three times as long, and fails on another mesh."""
    records: list[dict[str, Any]] = []
    for name, factor in (("fast", 1.0), ("slow", 3.0)):
        records += [save(name, factor * scale), save(name, 2 * factor * scale, "1d")]
        records += [restore(name, factor * scale, cache) for cache in ("cold", "cached")]
    records += [restore("fast", 2.8 * scale, "cold", "2d", asked=2.0)]
    failed = {"subject": "slow", "operation": "restore", "saved": "1d", "mesh": "2d", "ranks": 1, "cache": "cold"}
    return {"floors": [floors(scale), floors(scale), floors(9 * scale)], "records": [*records, {**failed, "error": "it cannot"}]}


def result() -> dict[str, Any]:
    """Two rounds, the second one on a disk that is half as fast; one subject is not installed."""
    subjects = {
        "fast": description("Fast", "jax"),
        "slow": description("Slow", "torch"),
        "absent": {"error": "No module named 'x'"},
    }
    made: dict[str, Any] = {
        "size": "small",
        "arrays": 66,
        "bytes": NBYTES,
        "subjects": subjects,
        "rounds": [one_round(1.0), one_round(2.0)],
    }
    return {**made, "derived": summary.derive(made)}
