"""What `ckpt cp` and `ckpt mirror` have in common: one round of copying, with what failed, and the bandwidth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.output import progress
from ckptcore.errors import CallError, DamageError
from ckptcore.names import GenerationId
from ckptcore.operate.copying import Copied, Copier

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)B(?:/s)?")
_POWERS = ("", "K", "M", "G", "T")

Dest = Annotated[str, typer.Argument(metavar="DEST", help="Where the copy lies: a new place, or a copy of the same run.")]
Limit = Annotated[str | None, typer.Option("--limit", metavar="RATE", help="The most bytes a second, such as 100MB/s.")]


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One generation that is in the copy. `sent`: of its `bytes`, those that were not there yet."""

    generation: str
    bytes: int
    sent: int


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """One generation that was not copied, and why."""

    generation: str
    error: str


def rate_of(given: str | None) -> float | None:
    """Bytes a second. Raises `CallError` for what is no rate, or zero."""
    if given is None:
        return None
    match = _RATE.fullmatch(given.strip())
    if match is None or float(match[1]) == 0:
        raise CallError(f"--limit {given!r}: expected bytes a second, such as 100MB/s or 1.5GiB/s")
    return float(match[1]) * (1024 if match[3] else 1000) ** _POWERS.index(match[2].upper())


def copy_all(copier: Copier) -> tuple[list[Copied], dict[GenerationId, str]]:
    """Copy every commit that is not there yet. What is damaged or was retired meanwhile is passed over, and told."""
    copied, failed = list[Copied](), dict[GenerationId, str]()
    for generation in copier.pending():
        try:
            copied.append(copy_one(copier, generation))
        except DamageError as error:
            failed[generation] = str(error)
    copier.follow_up()
    return copied, {**{generation: str(error) for generation, error in copier.unreadable.items()}, **failed}


def copy_one(copier: Copier, generation: GenerationId) -> Copied:
    """Copy one generation, with a bar where somebody looks."""
    plan = copier.plan(generation)
    with progress(f"copying {generation}", plan.bytes) as advance:
        return copier.copy(plan, advance)


def rows(copied: Sequence[Copied]) -> list[Copy]:
    """As JSON has them."""
    return [Copy(generation=str(each.generation), bytes=each.bytes, sent=each.sent) for each in copied]


def failures(failed: dict[GenerationId, str]) -> list[Failed]:
    """As JSON has them."""
    return [Failed(generation=str(generation), error=error) for generation, error in failed.items()]


def render(target: str, copied: Sequence[Copied], failed: dict[GenerationId, str]) -> RenderableType:
    """For people."""
    lines = [Text(text.plain(f"{each.generation}  {_sent(each)}")) for each in copied]
    lines += [Text(text.plain(f"{generation}  not copied: {error}"), style="red") for generation, error in failed.items()]
    done = f"{text.plural(len(copied), 'checkpoint')} in {target}" if copied else f"nothing new for {target}"
    return Group(*lines, Text(text.plain(done)))


def _sent(copied: Copied) -> str:
    if not copied.sent:
        return f"{text.size(copied.bytes)}, was there"
    return f"{text.size(copied.bytes)}" + (f", {text.size(copied.sent)} of it new" if copied.sent < copied.bytes else "")
