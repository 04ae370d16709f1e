"""An adapter: the command that starts it, and what it says of itself."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckpt_conformance.cases.scenario import STORES
from ckpt_conformance.cases.steps import FAILPOINTS, VERBS
from ckpt_conformance.jobs.expect import Ended
from ckpt_conformance.jobs.processes import QUIET, Cold, Launcher, ProcessError, start
from ckpt_conformance.jobs.request import CONTRACT, DESCRIBE
from ckpt_conformance.jobs.serving import Serving
from ckpt_conformance.oracle.elements import ELEMENTS

SHORT_NAMES = ("jax", "torch", "minimal")
DESCRIBE_LIMIT = 120.0
"""Seconds that `describe` may take: it may import a framework."""
MINOR = 2
"""The minor version of ADAPTER.md: it grows when words are added."""
FORMATS = ("1.0",)
FEATURES = (
    "uneven", "rank-scope", "unequal-rank-shapes", "pipeline", "aliases", "prng", "values", "references", "metrics", "remap",
    "cast", "rollback", "single-writer", "tied-targets", "nodes", "vouching", "copies",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9._+-]+")
WORDS: Mapping[str, Collection[str]] = {
    "verbs": ("describe", *VERBS),
    "failpoints": FAILPOINTS,
    "features": FEATURES,
    "dtypes": ELEMENTS,
    "stores": STORES,
}
"""What each list of the answer to `describe` may hold."""


class AdapterError(Exception):
    """An adapter that cannot be used. The message says which, and why."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter by its name in reports. `given` is the command as the user gave it, `describe` its answer to that verb."""

    name: str
    given: str
    describe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """The words of the command. Short names stand for the adapters that come with the suite."""
        return command_of(self.given)

    def launcher(self, environment: Mapping[str, str]) -> Launcher:
        """What starts its processes: its server, if it has one."""
        kind = Serving if self.describe.get("serve") else Cold
        return kind(self.command, {**QUIET, **environment})


def command_of(given: str) -> list[str]:
    """The words of an adapter's command. Raises `AdapterError` for text that is none."""
    if given in SHORT_NAMES:
        return [sys.executable, "-m", f"ckpt_conformance.adapters.{given}"]
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise AdapterError(f"--adapter {given!r} is no command: {error}") from error
    if not words:
        raise AdapterError("an adapter's command is empty")
    return words


def described(given: str) -> Adapter:
    """The adapter of a command, asked what it offers. Raises `AdapterError` if it does not start or breaks the contract."""
    launcher = Cold(command_of(given), QUIET)
    with tempfile.TemporaryDirectory(prefix="ckpt-describe-") as folder:
        try:
            (ended,) = start("describe", launcher, [DESCRIBE], Path(folder), limit=DESCRIBE_LIMIT).wait()
        except ProcessError as error:
            raise AdapterError(f"{given}: {error}") from error
    if problem := _trouble(ended):
        raise AdapterError(f"{given}: describe: {problem}")
    answer = dict(ended.answer or {})
    return Adapter(name=given if given in SHORT_NAMES else answer["name"], given=given, describe=answer)


def problems_of(answer: Mapping[str, Any]) -> list[str]:
    """What is wrong with an answer to `describe` (ADAPTER.md)."""
    found = (
        [] if answer.get("contract") == CONTRACT else [f"contract is {answer.get('contract')!r}, this suite speaks {CONTRACT}"]
    )
    found += [
        f"{name} is not text" for name in ("name", "version", "framework", "format") if not isinstance(answer.get(name), str)
    ]
    if not _NAME.fullmatch(str(answer.get("name"))):
        found.append("name has other characters than letters, digits, '.', '_', '+' and '-'")
    found += [f"{name} is no array of texts" for name in WORDS if not _is_texts(answer.get(name))]
    found += _unknown(answer)
    if answer.get("devices_per_process") not in (1, "any"):
        found.append('devices_per_process is neither 1 nor "any"')
    if not isinstance(answer.get("serve"), bool):
        found.append("serve is no boolean")
    most = answer.get("max_processes")
    if most is not None and (type(most) is not int or most < 1):
        found.append("max_processes is neither null nor a positive integer")
    return found


def _unknown(answer: Mapping[str, Any]) -> Iterator[str]:
    """Words that ADAPTER.md does not have, and that nothing would ask for: spelled wrongly, or of a newer minor version."""
    minor = answer.get("minor", 0)
    if type(minor) is not int or minor < 0:
        yield "minor is no whole number"
    elif minor <= MINOR:
        given = {"format": [answer.get("format")], **{name: answer.get(name) for name in WORDS}}
        for name, known in {"format": FORMATS, **WORDS}.items():
            words = given[name]
            for word in words if _is_texts(words) else ():
                if word not in known:
                    yield f"{name}: {word!r} is not known; known: {', '.join(sorted(known))}"


def _trouble(ended: Ended) -> str:
    if ended.late or ended.status != 0:
        said = ended.log.strip().splitlines()
        return f"{ended.late or ended.words}{f': {said[-1]}' if said else ''}"
    if ended.answer is None:
        return "the last line of its output is no JSON object"
    return "; ".join(problems_of(ended.answer))


def _is_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, str) for item in value)
