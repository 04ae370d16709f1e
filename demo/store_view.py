"""An independent look at a run's directory: path names and a JSON parser, nothing of the library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GenerationView:
    """What lies in the store of one save. `decision` is None while there is none."""

    name: str
    receipts: dict[int, str]
    participants: int | None
    databases: dict[int, int]
    decision: str | None
    reason: str

    @property
    def step(self) -> int:
        """The number of completed updates in the saved state."""
        return int(self.name.split("-")[1])

    @property
    def is_complete(self) -> bool:
        """Whether every participant has delivered a receipt that says so."""
        return self.participants == len(self.receipts) and set(self.receipts.values()) == {"complete"}

    @property
    def state(self) -> str:
        """Receipts and decision, for people."""
        return f"{len(self.receipts)} of {self.participants} receipts, {self.decision or 'undecided'}"

    def describe(self) -> str:
        """All that lies there, for people."""
        ranks = self.databases.keys() | self.receipts.keys() | set(range(self.participants or 0))
        held = "; ".join(self._rank(rank) for rank in sorted(ranks))
        return f"{self.name}  {self.decision or 'undecided':9}  {held}"

    def _rank(self, rank: int) -> str:
        receipt = self.receipts.get(rank)
        return f"rank {rank}: {self.databases.get(rank, 0) / 1000:.1f} kB, {receipt or 'no receipt'}"


def generations(root: Path) -> list[GenerationView]:
    """Every generation that left a trace, decided or not, in order."""
    names = {path.name for path in _children(root / "generations")}
    names |= {path.name.removesuffix(".json") for path in _children(root / "ledger") if not path.name.endswith(".retired.json")}
    return [_generation(root, name) for name in sorted(names)]


def delivered(root: Path, step: int) -> set[int]:
    """The ranks whose receipts of `step` are there; only names are looked at, so it may be asked while the job runs."""
    return {int(path.stem) for path in (root / "generations").glob(f"*-{step:012d}-*/receipts/[0-9]*.json")}


def base(root: Path, incarnation: int) -> dict[str, Any] | None:
    """The record of where an incarnation starts from, or None while there is none."""
    return _read(root / "incarnations" / f"{incarnation:06d}" / "base.json")


def newest_incarnation(root: Path) -> int:
    """The number of the newest claim; 0 when there is none."""
    return max((int(path.name) for path in _children(root / "incarnations")), default=0)


def describe_base(record: dict[str, Any]) -> list[str]:
    """Where an incarnation starts from and why, for people."""
    lines = [f"incarnation {record['incarnation']} starts from {record['generation']} ({record['reason']})"]
    settled = {item["generation"]: f"{item['decision']}: {item['reason']}" for item in record.get("settled", [])}
    skipped = {item["generation"]: item["reason"] for item in record.get("skipped", [])}
    lines += [f"  settled {generation}: {decision}" for generation, decision in settled.items()]
    lines += [f"  passed over {generation}: {reason}" for generation, reason in skipped.items() if generation not in settled]
    return lines


def _generation(root: Path, name: str) -> GenerationView:
    folder = root / "generations" / name
    receipts = {int(path.stem): _read(path) or {} for path in _children(folder / "receipts")}
    decision = _read(root / "ledger" / f"{name}.json") or {}
    return GenerationView(
        name=name,
        receipts={rank: str(receipt.get("status")) for rank, receipt in receipts.items()},
        participants=next((receipt.get("participants") for receipt in receipts.values()), None),
        databases={int(path.name.split("-")[0]): _size(path) for path in _children(folder / "state" / "ranks")},
        decision=decision.get("decision"),
        reason=decision.get("reason", ""),
    )


def _children(folder: Path) -> list[Path]:
    """What lies in a folder, sorted, without temporary files; nothing when there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name[0].isdigit())


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_bytes()) if path.exists() else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
