"""What a collection may not take (spec: K-2, K-3, K-7), from the records alone.

Whether it was taken too early can be said of two looks only: what had to be kept at both, for one reason, had to be kept between
them. (A base, a pin or a receipt that came later may have found the data gone.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ckpt_conformance.oracle import keys
from ckpt_conformance.oracle.commits import outcome
from ckpt_conformance.oracle.keys import Generation
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.oracle.run import Run, Value

_HOLDING = ("pin", "tag")
_MARKS = ("quarantine", "damaged")
_OPENING = "a possible choice of the opening of"


@dataclass(frozen=True)
class Kept:
    """What has to be kept at one look.

    Attributes:
      reasons: generation → why its data is needed, each reason in words (K-7).
      retired: the generations that are retired.
      usable: the commits that a run could go on from: resumable, not marked, retired or not.

    """

    reasons: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    usable: frozenset[str] = frozenset()

    def since(self, before: Kept) -> dict[str, str]:
        """The generations that had to be kept from an earlier look to this one, each with a reason."""
        both = {generation: reasons & before.reasons.get(generation, set()) for generation, reasons in self.reasons.items()}
        return {generation: min(reasons) for generation, reasons in both.items() if reasons}


def kept(run: Run, vouched: Collection[int] = ()) -> Kept:
    """What has to be kept of a run, and what may still be used of it.

    `vouched`: the incarnations of which a person says that their processes have ended (K-7).
    """
    commits = {generation: value for generation in run.decided if (value := run.manifest(generation)) is not None}
    marked = _noted(run, _MARKS)
    resumable = {generation for generation, value in commits.items() if value["guarantee"]["level"] != "weights"}
    return Kept(
        reasons=_reasons(run, commits, vouched),
        retired=frozenset(filter(run.is_retired, commits)),
        usable=frozenset(resumable - marked),
    )


def retired_too_much(before: Kept, now: Kept) -> Iterator[Problem]:
    """Retirements between two looks that K-2 and K-3 forbid."""
    newly = now.retired - before.retired
    for generation, reason in now.since(before).items():
        if generation in newly and not reason.startswith(_OPENING):
            yield Problem(keys.retired(generation), "K-2", f"retires what has to be kept: {reason}")
    left, could_be = now.usable - now.retired, now.usable - before.retired
    if newly & now.usable and len(left) < min(2, len(could_be)):
        yield Problem("ledger/", "K-3", f"{len(left)} resumable commits are left of {len(could_be)}")


def _reasons(run: Run, commits: Mapping[str, Value], vouched: Collection[int]) -> dict[str, set[str]]:
    """Every reason to keep the data of a commit, those that follow from others included (K-7)."""
    found: dict[str, set[str]] = {}
    for generation, reason in [*_direct(run, commits, vouched)]:
        if generation in commits:
            found.setdefault(generation, set()).add(reason)
    for generation in sorted(commits, key=Generation.parse, reverse=True):  # what holds a component is older
        own = found.get(generation, set()) if run.is_retired(generation) else {f"the source of {generation}"}
        for source in _sources(commits[generation]) & commits.keys():
            found.setdefault(source, set()).update(own)
    return {generation: reasons for generation, reasons in found.items() if reasons}


def _direct(run: Run, commits: Mapping[str, Value], vouched: Collection[int]) -> Iterator[tuple[str, str]]:
    bases = {number: value for number, key in run.bases.items() if (value := run.value(key)) is not None}
    newest = max(bases, default=0)
    if newest and bases[newest]["generation"] is not None:
        yield bases[newest]["generation"], f"the base of incarnation {newest}"
    for generation in _noted(run, _HOLDING):
        yield generation, "pinned or tagged"
    for opening in run.claims.keys() - set(vouched):
        if opening > newest:
            yield from ((generation, f"{_OPENING} incarnation {opening}") for generation in commits if run.is_retired(generation))
    for generation in run.generations:
        if outcome(run, generation) == "none":
            receipt = run.value(keys.receipt(generation, 0)) or {}
            for source in ((receipt.get("lead") or {}).get("references") or {}).values():
                yield source, f"what the undecided {generation} refers to"


def _sources(manifest: Value) -> set[str]:
    return {entry["source"] for entry in manifest["components"].values() if entry.get("source") is not None}


def _noted(run: Run, kinds: tuple[str, ...]) -> set[str]:
    """The generations with a note of one of these kinds; the name tells it where the content does not (R-73)."""
    notes = [named.parts for named in run.named.values() if named.kind == "note"]
    return {parts["generation"] for parts in notes if parts["name"].partition("-")[0] in kinds}
