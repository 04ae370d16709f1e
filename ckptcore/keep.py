"""Which commits may be retired: the policy, without the deleting (spec: retention). Pure.

Whatever the policy says, these stay: the newest commit, the newest verified one, pinned and
tagged ones, those that a component reference needs, and those that the caller protects
(bases of incarnations, parents of forks).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptcore.errors import CallError
from ckptcore.names import GenerationId
from ckptcore.records import Level


@dataclass(frozen=True)
class Best:
    """Keep the `count` best commits by a metric; those without it, or with NaN, do not compete."""

    metric: str
    count: int
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        _check_count("Best", "count", self.count, 1)
        if self.mode not in ("min", "max"):
            raise CallError(f"Best(mode={self.mode!r}): expected 'min' or 'max'")


@dataclass(frozen=True)
class Keep:
    """What to keep: the newest `last`, those at multiples of `every` steps, and the `best`.

    `last` and `every` speak of commits that a run can resume from. Saves that hold `weights` only have a
    budget of their own, the newest `weights` (as many as `last` if None). `best` considers both.
    Raises `CallError` for numbers that are too small: `last` is at least 2, so that
    a damaged newest commit leaves one to fall back to.
    """

    last: int = 3
    every: int | None = None
    best: Best | None = None
    weights: int | None = None

    def __post_init__(self) -> None:
        _check_count("Keep", "last", self.last, 2)
        if self.every is not None:
            _check_count("Keep", "every", self.every, 1)
        if self.best is not None and not isinstance(self.best, Best):
            raise CallError(f"Keep(best={self.best!r}): expected Best(metric, count)")
        if self.weights is not None:
            _check_count("Keep", "weights", self.weights, 1)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What the policy needs to know of a commit that is not retired yet.

    A quarantined or damaged one is not `usable`, and a `stray` lies on no path from the head: they fill no place in a
    budget of resumable ones, so that they can never push out the commits to fall back to.
    """

    generation: GenerationId
    level: Level
    metrics: Mapping[str, float] = field(default_factory=dict)
    pinned: bool = False
    verified: bool = False
    needed_by_reference: bool = False
    usable: bool = True
    stray: bool = False


def expendable(
    commits: Sequence[Candidate], keep: Keep, protected: Collection[GenerationId] = ()
) -> list[tuple[GenerationId, str]]:
    """The commits that may be retired, oldest first, each with the reason that its retired record gives.

    `commits` are all commits of the run that are not retired, in any order.
    """
    ordered = sorted(commits, key=lambda commit: commit.generation)
    wanted = _never(ordered) | _chosen(ordered, keep) | set(protected)
    return [(commit.generation, _reason(commit, keep)) for commit in ordered if commit.generation not in wanted]


def _never(ordered: Sequence[Candidate]) -> set[GenerationId]:
    """What no policy may touch. A verified commit of weights does not stand in for a resumable one."""
    verified = [commit for commit in ordered if commit.verified and commit.usable]
    return {
        *_newest(ordered, 1),
        *_newest(verified, 1),
        *_newest([commit for commit in verified if commit.level != "weights"], 1),
        *(commit.generation for commit in ordered if commit.pinned or commit.needed_by_reference),
    }


def _chosen(ordered: Sequence[Candidate], keep: Keep) -> set[GenerationId]:
    usable = [commit for commit in ordered if commit.usable]
    resumable = [commit for commit in usable if commit.level != "weights" and not commit.stray]
    weights = [commit for commit in usable if commit.level == "weights"]
    return {
        *_unusable_but_recent(ordered, resumable, keep.last),
        *_newest(resumable, keep.last),
        *_newest(weights, _weights_budget(keep)),
        *(commit.generation for commit in resumable if keep.every and commit.generation.step % keep.every == 0),
        *_best(usable, keep.best),
    }


def _unusable_but_recent(ordered: Sequence[Candidate], resumable: Sequence[Candidate], last: int) -> list[GenerationId]:
    """Unusable ones and strays stay, for people to look at, while they are newer than the oldest of the newest `last`."""
    since = resumable[-last].generation if len(resumable) >= last else None
    return [
        commit.generation
        for commit in ordered
        if (not commit.usable or commit.stray) and (since is None or commit.generation > since)
    ]


def _best(ordered: Sequence[Candidate], best: Best | None) -> list[GenerationId]:
    """The best by the metric; of equal ones the newer."""
    if best is None:
        return []
    sign = 1 if best.mode == "max" else -1
    scored = [
        (sign * commit.metrics[best.metric], commit.generation)
        for commit in ordered
        if not math.isnan(commit.metrics.get(best.metric, math.nan))
    ]
    return [generation for _, generation in sorted(scored)[-best.count :]]


def _newest(ordered: Sequence[Candidate], count: int) -> list[GenerationId]:
    return [commit.generation for commit in ordered[-count:]]


def _weights_budget(keep: Keep) -> int:
    return keep.last if keep.weights is None else keep.weights


def _reason(commit: Candidate, keep: Keep) -> str:
    if commit.level == "weights":
        parts = [f"not among the newest {_weights_budget(keep)} saves of weights"]
    else:
        parts = [f"not among the newest {keep.last}"]
        parts += [f"not at a multiple of {keep.every} steps"] if keep.every else []
    parts += [f"not among the best {keep.best.count} by {keep.best.metric} ({keep.best.mode})"] if keep.best else []
    return "; ".join(parts)


def _check_count(owner: str, name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise CallError(f"{owner}({name}={value!r}): expected an integer of at least {least}")
