"""Single changes to a run, for tests of the oracle and what it has to say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckpt_conformance.oracle import checker
from ckpt_conformance.place import Place
from tests.conformance.runs import content, edit

Change = Callable[[Place], object]
DIGEST = "blake3:" + "0" * 64
"""Of nothing that is in a run."""


def change(key: str, **fields: Any) -> Change:
    """Set fields of a record; a name with `__` goes down: `parent__url`."""

    def apply(place: Place) -> None:
        def put(record: Any) -> None:
            for path, value in fields.items():
                *way, last = path.split("__")
                inner = record
                for name in way:
                    inner = inner[int(name)] if isinstance(inner, list) else inner[name]
                inner[last] = value

        edit(place, key, put)

    return apply


def flip(prefix: str) -> Change:
    """One bit in the middle of the first object below a prefix."""

    def apply(place: Place) -> None:
        key = place.keys(prefix)[0]
        data = bytearray(content(place, key))
        data[len(data) // 2] ^= 1
        place.write(key, bytes(data))

    return apply


def delete(prefix: str) -> Change:
    return lambda place: place.delete(place.keys(prefix)[0])


def truncate(prefix: str) -> Change:
    return lambda place: place.write(place.keys(prefix)[0], content(place, place.keys(prefix)[0])[:-7])


def reported(place: Place, clause: str, key: str) -> None:
    problems = checker.check(place)
    assert any(problem.clause == clause and key in problem.key for problem in problems), list(map(str, problems))
