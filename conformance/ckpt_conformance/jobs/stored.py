"""Whether the store holds what a step `store` says (SCENARIOS.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt_conformance.jobs.expect import same


def check(expected: Mapping[str, Any], survey: Mapping[str, Any]) -> list[str]:
    """What is not as it must be. `survey` is the JSON form of what the checker saw: `incarnations`, `generations`."""
    problems = []
    if "incarnations" in expected:
        wanted = {str(number): what for number, what in expected["incarnations"].items()}
        problems += _differences("incarnation", wanted, {str(number): what for number, what in survey["incarnations"].items()})
    if "generations" in expected:
        problems += _generations(expected["generations"], survey["generations"])
    return problems


def _generations(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    problems = _presence("generation", expected, found)
    for name in expected.keys() & found.keys():
        for fact, value in expected[name].items():
            if fact == "gone":
                there = sorted({*found[name]["whole"], *found[name]["half"]}.intersection(value))
                problems += [f"generation {name}: there is something of rank {rank}, expected nothing" for rank in there]
            elif not _holds(fact, value, found[name].get(fact)):
                problems.append(f"generation {name}: {fact} is {found[name].get(fact)!r}, expected {value!r}")
    return sorted(problems)


def _holds(fact: str, value: Any, found: Any) -> bool:
    return value in (found or "") if fact == "reason" else same(value, found)


def _differences(what: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    shared = expected.keys() & found.keys()
    wrong = [f"{what} {name} is {found[name]!r}, expected {expected[name]!r}" for name in shared if expected[name] != found[name]]
    return sorted(_presence(what, expected, found) + wrong)


def _presence(what: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    absent = [f"{what} {name} is not in the store" for name in expected.keys() - found.keys()]
    return absent + [f"{what} {name} is in the store, and none is expected" for name in found.keys() - expected.keys()]
