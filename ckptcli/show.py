"""`ckpt show`: one commit, its promise, its parts, and what was learned of it later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.numbers import Number, numbers
from ckptcli.options import Json, Url, Which, named, settings
from ckptcli.output import emit, facts, table
from ckptcore import notes
from ckptcore.errors import DamageError
from ckptcore.inspect import leaves
from ckptcore.inspect.chronicle import Delivery, deliveries
from ckptcore.inspect.inventory import Entry, inventory
from ckptcore.ledger import metadata_of
from ckptcore.reader import Checkpoint
from ckptcore.records import Committed, Manifest, Topology


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """One component. `source`: the generation whose data it refers to, if that is another one."""

    name: str
    kind: str
    scope: str
    leaves: int
    bytes: int
    digest: str
    source: str | None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One note. `text`: a reason, or what is wrong; `depth`: of a verification."""

    kind: str
    at: str
    text: str
    tag: str | None
    depth: str | None


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """How long a part of the save took. `slowest`: the rank that it took longest; `ranks`: seconds by rank."""

    name: str
    slowest: int
    seconds: float
    ranks: dict[str, float]


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="show"):
    """What `ckpt show --json` prints. `manifest`: the whole record, as the specification has it."""

    url: str
    generation: str
    incarnation: int
    step: int
    attempt: int
    state: str
    head: bool
    restorable: bool
    captured: str
    guarantee: str
    derived: dict[str, str]
    replay_samples: int | None
    parent: str | None
    bytes: int
    components: list[Component]
    notes: list[Told]
    metrics: dict[str, Number]
    phases: list[Phase]
    manifest: dict[str, Any]


def show(context: typer.Context, url: Url, which: Which = None, *, as_json: Json = False) -> None:
    """Show one checkpoint: what it promises, what it consists of, what was noted on it, and how long its save took."""
    checkpoint = settings(context).run(url).checkpoint(**named(which))
    manifest = checkpoint.manifest
    entry = next(entry for entry in inventory(checkpoint.store) if entry.generation == checkpoint.generation)
    told = notes.read(checkpoint.store, manifest.run_id, checkpoint.generation)
    shown = Shown(
        url=checkpoint.store.url,
        generation=manifest.generation,
        incarnation=manifest.incarnation,
        step=manifest.step,
        attempt=checkpoint.generation.attempt,
        state=entry.state,
        head=entry.is_head,
        restorable=entry.restorable,
        captured=manifest.captured,
        guarantee=manifest.guarantee.level,
        derived=manifest.guarantee.derived,
        replay_samples=manifest.guarantee.replay_samples,
        parent=manifest.parent,
        bytes=sum(part.bytes for part in manifest.components.values()),
        components=[_component(name, part) for name, part in manifest.components.items()],
        notes=[Told(kind=note.kind, at=note.created, text=note.text, tag=note.tag, depth=note.depth) for note in told],
        metrics=numbers(notes.metrics(told)),
        phases=_phases(_delivered(checkpoint)),
        manifest=msgspec.to_builtins(manifest),
    )
    emit(shown, lambda: _render(shown, manifest, entry), as_json=as_json)


def _component(name: str, part: Committed) -> Component:
    fields = {"kind": part.kind, "scope": part.scope, "leaves": part.leaves, "bytes": part.bytes}
    return Component(name=name, digest=part.digest, source=part.source, **fields)


def _delivered(checkpoint: Checkpoint) -> Sequence[Delivery]:
    try:
        return deliveries(checkpoint)
    except DamageError:
        return ()  # the manifest can be shown all the same; `ckpt verify` says what is wrong


def _phases(delivered: Sequence[Delivery]) -> list[Phase]:
    names = dict.fromkeys(name for each in delivered for name in each.phases)
    found = []
    for name in names:
        took = {each.rank: each.phases[name] for each in delivered if name in each.phases}
        slowest = max(took, key=lambda rank: took[rank])
        ranks = {str(rank): seconds for rank, seconds in took.items()}
        found.append(Phase(name=name, slowest=slowest, seconds=took[slowest], ranks=ranks))
    return found


def _render(shown: Shown, manifest: Manifest, entry: Entry) -> RenderableType:
    parts: list[RenderableType] = [
        facts(
            [
                ("run", shown.url),
                ("generation", shown.generation),
                ("step", f"{shown.step:,}"),
                ("state", _state(shown, entry)),
                ("captured", _captured(entry)),
                ("guarantee", _guarantee(shown)),
                ("parent", shown.parent or "none"),
                ("topology", _topology(manifest.topology)),
                *[
                    ("mesh", " × ".join(f"{a}={n}" for a, n in zip(m.axes, m.shape, strict=True)))
                    for m in manifest.topology.meshes
                ],
                ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
                ("metadata", "" if manifest.metadata is None else _metadata(manifest)),
                *_noted(shown),
            ]
        ),
        Text(""),
        _components(shown),
    ]
    if shown.phases:
        parts += [Text(""), _times(shown)]
    return Group(*parts)


def _state(shown: Shown, entry: Entry) -> str:
    head = " (the next start resumes from here)" if shown.head else ""
    return shown.state + head + (f": {entry.reason}" if entry.reason else "")


def _captured(entry: Entry) -> str:
    if entry.at is None:
        return ""
    return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC, {text.ago(entry.at, datetime.now(UTC))}"


def _metadata(manifest: Manifest) -> str:
    try:
        return leaves.as_text(metadata_of(manifest))
    except DamageError as error:
        return str(error)


def _guarantee(shown: Shown) -> str:
    bound = f", at most {shown.replay_samples:,} samples repeated or skipped" if shown.replay_samples is not None else ""
    derived = ", ".join(f"{need} from {where}" for need, where in shown.derived.items())
    return f"{shown.guarantee}{bound}" + (f"; {derived}" if derived else "")


def _topology(topology: Topology) -> str:
    parts = [text.plural(topology.participants, "process"), text.plural(topology.devices, "device")]
    return f"{topology.framework} on {topology.platform}, {', '.join(parts)}"


def _noted(shown: Shown) -> list[tuple[str, str]]:
    metrics = ", ".join(
        f"{name}={value if isinstance(value, str) else format(value, '.6g')}" for name, value in shown.metrics.items()
    )
    rest = [(note.kind, _note(note)) for note in shown.notes if note.kind != "metrics"]
    return [("metrics", metrics), *rest]


def _note(note: Told) -> str:
    what = note.tag if note.tag is not None else ": ".join(part for part in (note.depth, note.text) if part)
    return f"{what} ({note.at[:19].replace('T', ' ')})" if what else note.at[:19].replace("T", " ")


def _components(shown: Shown) -> RenderableType:
    made = table("component", "kind", "scope", "leaves", "size", "lies in", right=("leaves", "size"))
    for part in shown.components:
        row = (part.name, text.cell(part.kind), part.scope, f"{part.leaves:,}", text.size(part.bytes), part.source or "")
        made.add_row(*row)
    count = sum(part.leaves for part in shown.components)
    made.add_row(Text("all", style="bold"), "", "", f"{count:,}", text.size(shown.bytes), "")
    return made


def _times(shown: Shown) -> RenderableType:
    made = table("phase of the save", "slowest", "rank", "fastest", right=("slowest", "rank", "fastest"))
    for phase in shown.phases:
        made.add_row(text.cell(phase.name), _seconds(phase.seconds), str(phase.slowest), _seconds(min(phase.ranks.values())))
    return made


def _seconds(seconds: float) -> str:
    return text.span(seconds) if seconds >= 100 else f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
