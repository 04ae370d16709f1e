"""Whether what the processes of a job did is what the scenario expects."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt_conformance.cases.steps import Expect

DONE, REFUSED, CANNOT = 0, 10, 11
KILLED = -signal.SIGKILL
_ENDING = (signal.SIGABRT, signal.SIGKILL, signal.SIGTERM)
"""What a runtime or a launcher ends a process by whose peer is gone. A segmentation fault is none: it is a crash."""
ERRORS = {
    "not-found", "damaged", "invalid-record", "unsupported-format", "foreign-record", "retired", "structure-mismatch",
    "guarantee", "fork-required", "superseded", "unsafe-store", "store-full", "store-unavailable", "store", "save-aborted",
    "save-failed", "commit-unknown", "deadline", "call", "unsupported-leaf",
}  # fmt: skip
"""The kinds of ADAPTER.md."""
ALONE = ("deadline", "superseded", "save-aborted", "save-failed", "commit-unknown")
"""What a process reports whose peer is gone, unless the case says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process that has ended: its exit status, −n for signal n, and its answer, None where its last line is no JSON object.

    `late` says what was waited for, where the process had to be killed because it took too long.
    """

    pid: int
    status: int
    answer: Mapping[str, Any] | None = None
    log: str = ""
    late: str = ""

    @property
    def words(self) -> str:
        """How it ended: `done`, `refused (superseded)`, `killed by signal 9`, `exit status 1`."""
        if self.status == REFUSED and self.answer is not None:
            return f"refused ({self.answer.get('error')})"
        known = {DONE: "done", REFUSED: "refused", CANNOT: "cannot"}
        return known.get(self.status, f"killed by signal {-self.status}" if self.status < 0 else f"exit status {self.status}")


def judge(expect: Expect, ended: Sequence[Ended]) -> list[str]:
    """What is wrong with how the processes of a job ended and what they answered, rank by rank. Empty: all is as expected."""
    exits = expect.exit if isinstance(expect.exit, tuple) else (expect.exit,) * len(ended)
    if len(exits) != len(ended):
        return [f"{len(exits)} exits are expected, and the job has {len(ended)} processes"]
    return [
        f"rank {rank}: {problem}"
        for rank, (wanted, process) in enumerate(zip(exits, ended, strict=True))
        for problem in _judge(wanted, expect, rank, process)
    ]


def cannot(ended: Sequence[Ended]) -> str | None:
    """What the processes said that their implementation does not offer, if all of them did. One alone hides nothing."""
    texts = [str((process.answer or {}).get("message", "no reason is given")) for process in ended if process.status == CANNOT]
    return texts[0] if texts and len(texts) == len(ended) else None


def match(expected: Any, found: Any, where: str = "answer") -> list[str]:
    """Where `found` is not what is expected: objects may have more keys, `*` is anything but null, all else is equal.

    An object with the only key `one_of` stands for each entry of its array.
    """
    if isinstance(expected, Mapping) and set(expected) == {"one_of"}:
        fits = any(not match(value, found) for value in expected["one_of"])
        return [] if fits else [f"{where} is {found!r}, expected one of {expected['one_of']!r}"]
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return [
            problem
            for key, value in expected.items()
            for problem in (match(value, found[key], f"{where}.{key}") if key in found else [f"{where}.{key} is missing"])
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [problem for index, (value, item) in pairs for problem in match(value, item, f"{where}[{index}]")]
    if found is not None if expected == "*" else same(expected, found):
        return []
    return [f"{where} is {found!r}, expected {'anything but null' if expected == '*' else repr(expected)}"]


def same(expected: Any, found: Any) -> bool:
    """Equal as JSON values, at every depth: `true` is not 1, and 1 is not 1.0."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(same(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same, expected, found))
    return type(expected) is type(found) and expected == found


def _judge(wanted: str, expect: Expect, rank: int, process: Ended) -> list[str]:
    if process.late:
        return [process.late]
    if not _fits(wanted, process.status):
        return [f"expected {wanted}, found {process.words}{_said(process)}"]
    if process.status == DONE:
        return _judge_answer(expect.answer, rank, process.answer)
    accepted = expect.error or (ALONE if wanted == "gone" else ())
    return _judge_refusal(accepted, process.answer) if process.status == REFUSED else []


def _fits(wanted: str, status: int) -> bool:
    """`gone`: by a signal of `_ENDING` too, which a shell reports as 128 + its number."""
    accepted = {
        "done": (DONE,),
        "refused": (REFUSED,),
        "done-or-refused": (DONE, REFUSED),
        "killed": (KILLED,),
        "gone": (DONE, REFUSED, *(-number for number in _ENDING), *(128 + number for number in _ENDING)),
    }
    return status in accepted[wanted]


def _said(process: Ended) -> str:
    message = (process.answer or {}).get("message")
    return f": {message}" if message else ""


def _judge_answer(expected: Any, rank: int, answer: Mapping[str, Any] | None) -> list[str]:
    if answer is None:
        return ["the last line of its output is no JSON object"]
    if not isinstance(expected, Mapping):
        return [] if expected is None else match(expected, answer)
    common = {key: value for key, value in expected.items() if key != "ranks"}
    own = expected["ranks"][rank] if "ranks" in expected else {}
    return match(common, answer) + match(own, answer)


def _judge_refusal(accepted: Sequence[str], answer: Mapping[str, Any] | None) -> list[str]:
    kind = (answer or {}).get("error")
    if kind not in ERRORS:
        return [f"it refused with the error {kind!r}, which is no kind of ADAPTER.md"]
    if accepted and kind not in accepted:
        return [f"expected the error {' or '.join(accepted)}, found {kind}: {(answer or {}).get('message')}"]
    return []
