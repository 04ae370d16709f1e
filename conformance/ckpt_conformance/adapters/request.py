"""One request, read (ADAPTER.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckpt_conformance.adapters.failpoints import Failpoint
from ckpt_conformance.adapters.state import State, parse
from ckptcore.store import Storage


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one process is asked. `fields` holds all of it; the rest are the parts that most verbs use, `failpoint` its own."""

    verb: str
    url: str = ""
    storage: Storage = field(default_factory=Storage)
    rank: int = 0
    processes: int = 1
    rendezvous: str = ""
    axes: tuple[str, ...] = ("x",)
    shape: tuple[int, ...] = (1,)
    deadline: float = 60.0
    failpoint: Failpoint | None = None
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def state(self, told: Mapping[str, Any] | None = None) -> State:
        """A state as this process has it: the one `told`, or the request's own; without either an empty one."""
        return parse(told or self.fields.get("state") or {"components": {}}, self.rank)

    def __getitem__(self, name: str) -> Any:
        """A field, None where it is absent or null."""
        return self.fields.get(name)


def read(told: Mapping[str, Any]) -> Request:
    """A request from its JSON. Whatever is not known is ignored."""
    mesh = told.get("mesh") or {"axes": ["x"], "shape": [told.get("processes", 1)]}
    storage = told.get("storage") or {}
    return Request(
        verb=told["verb"],
        url=told.get("store") or "",
        storage=Storage(
            endpoint=storage.get("endpoint"), region=storage.get("region"), single_writer=bool(told.get("single_writer"))
        ),
        rank=told.get("rank", 0),
        processes=told.get("processes", 1),
        rendezvous=told.get("rendezvous") or "",
        axes=tuple(mesh["axes"]),
        shape=tuple(mesh["shape"]),
        deadline=float(told.get("deadline") or 60.0),
        failpoint=Failpoint.of(told.get("failpoint"), told.get("rank", 0)),
        fields=told,
    )
