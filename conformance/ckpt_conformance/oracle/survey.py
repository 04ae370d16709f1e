"""What a store holds, generation by generation: the facts that a scenario names (see SCENARIOS.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ckpt_conformance.oracle import arrays, evidence, keys, manifests
from ckpt_conformance.oracle.arrays import Databases
from ckpt_conformance.oracle.evidence import Delivery
from ckpt_conformance.oracle.run import Run, Value
from ckpt_conformance.place import Place

Amount = Literal["none", "some", "whole"]


@dataclass(frozen=True)
class Facts:
    """What there is of a generation.

    Attributes:
      decision: `none`, `commit`, `abort`; `unreadable` for a ledger record that cannot be understood.
      retired: whether it has a retired record.
      complete: the ranks whose receipts say so, in order.
      failed: the ranks whose receipts say that.
      missing: of an abort the ranks that it names.
      data: whether something lies under its folder, and whether every file and value of its receipts is right.
      derived: whether indexes, roster and merged view are as the receipts ask for.
      reason: of an abort.
      staged: the ranks whose staged receipts are there, in order.
      on_nodes: whether it is on record that it was whole on the nodes.

    """

    decision: str
    retired: bool
    complete: list[int]
    failed: list[int]
    missing: list[int]
    data: Amount
    derived: Amount
    reason: str
    staged: list[int] = field(default_factory=list)
    on_nodes: bool = False


@dataclass(frozen=True)
class Survey:
    """A run at a glance. `incarnations`: number → `base` or `claim`, the last record that it has; `generations`: by ID."""

    incarnations: Mapping[int, str]
    generations: Mapping[str, Facts]

    def to_json(self) -> dict[str, Any]:
        """It as objects, arrays and text; the numbers of incarnations become text."""
        numbers = {str(number): last for number, last in self.incarnations.items()}
        return {"incarnations": numbers, "generations": {name: asdict(facts) for name, facts in self.generations.items()}}


def survey(place: Place) -> Survey:
    """Look at the run at `place`. Nothing is judged: see `checker.check` for that."""
    run = Run(place)
    last = {**dict.fromkeys(sorted(run.claims), "claim"), **dict.fromkeys(run.bases, "base")}
    databases = Databases(place)
    return Survey(last, {generation: _facts(run, databases, generation) for generation in run.generations})


def _facts(run: Run, databases: Databases, generation: str) -> Facts:
    receipts = _receipts(run, generation, "receipts")
    abort = run.value(keys.decision(generation), "abort") or {}
    return Facts(
        decision=_decision(run, generation),
        retired=run.is_retired(generation),
        complete=[receipt["rank"] for receipt in receipts if receipt["status"] == "complete"],
        failed=[receipt["rank"] for receipt in receipts if receipt["status"] == "failed"],
        missing=list(abort.get("missing", [])),
        data=_data(run, generation, receipts),
        derived=_derived(run, databases, generation),
        reason=abort.get("reason", ""),
        staged=[receipt["rank"] for receipt in _receipts(run, generation, "staged")],
        on_nodes=keys.on_nodes(generation) in run.content,
    )


def _receipts(run: Run, generation: str, folder: str) -> list[Value]:
    below = run.below(f"{keys.folder(generation)}{folder}/")
    return [receipt for key in below if (receipt := run.value(key, "receipt")) is not None]


def _decision(run: Run, generation: str) -> str:
    key = keys.decision(generation)
    if key not in run.content:
        return "none"
    value = run.value(key)
    return "unreadable" if value is None else value["decision"]


def _data(run: Run, generation: str, receipts: list[Value]) -> Amount:
    if not run.below(keys.folder(generation)):
        return "none"
    complete = [receipt for receipt in receipts if receipt["status"] == "complete"]
    absent = [problem for receipt in complete for problem in evidence.absent_data(run, generation, receipt)]
    return "some" if absent or not complete else "whole"


def _derived(run: Run, databases: Databases, generation: str) -> Amount:
    if not any(_is_derived(run.below(keys.folder(generation)), generation)):
        return "none"
    delivery, _ = evidence.delivery(run, generation)
    if delivery is None or any(evidence.faults(delivery)):
        return "some"
    return "whole" if _as_asked(run, databases, delivery) else "some"


def _is_derived(below: list[str], generation: str) -> Iterator[bool]:
    folder, state = keys.folder(generation), keys.state(generation)
    for key in below:
        yield key.startswith((f"{folder}index/", f"{folder}roster-")) or (
            key.startswith(state) and not key.startswith(f"{state}ranks/")
        )


def _as_asked(run: Run, databases: Databases, delivery: Delivery) -> bool:
    objects = manifests.derive(delivery).objects
    same = all(run.content.get(key) == content for key, content in objects.items())
    return same and not any(arrays.view_faults(databases, delivery))
