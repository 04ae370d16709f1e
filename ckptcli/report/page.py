"""The page: sections over a chronicle. It needs nothing beside it, no network, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from string import Template

from ckptcli import text
from ckptcli.incidents import attempt_line
from ckptcli.report.attempts import accounted, attempt_table, incident_table, overview
from ckptcli.report.bars import PHASES, bar, duration, longest, phases
from ckptcli.report.goodput import goodput
from ckptcli.report.markup import element, escape, facts, section, table
from ckptcli.report.timeline import counts, timeline
from ckptcore.inspect import unbegun
from ckptcore.inspect.chronicle import Chronicle, Delivery
from ckptcore.inspect.inventory import Entry, time_of
from ckptcore.inspect.starts import Start
from ckptcore.records import Manifest, Run

RANKS = 64
"""The most ranks that are shown one by one: of more, the slowest."""


def page(told: Chronicle, now: datetime, *, mtbf: float | None = None) -> str:
    """The HTML text. `now`: when it is made; ages are from then. `mtbf`: seconds between failures, for the goodput curve."""
    shown, supervised = _shown(told), accounted(told, now)
    main = [
        section(
            "timeline",
            "Timeline",
            timeline(told),
            remark="Each lane is an incarnation: one start of the job. Times are UTC."
            + (" The lane above them is the supervisor's." if supervised else ""),
        ),
        section(
            "incidents",
            "Incidents and goodput",
            *([] if supervised is None else [overview(supervised), incident_table(supervised.incidents, told.attempts)]),
            remark="Where the time under supervision went, and what each incident has cost: the last sign of life until it was"
            " noticed (detect), until the next attempt restores, and its compilation (relaunch), until it has its state"
            " (restore), until it is where training had been (recompute).",
        ),
        section(
            "saves",
            "How long saves took",
            _saves(told),
            remark="The slowest rank of each. Training waits for the first part only.",
        ),
        section(
            "goodput", "Goodput", goodput(told, mtbf), remark="The share of time that becomes work, by the time between saves."
        ),
        section("ranks", "Who wrote what", _ranks(told), remark=_about(shown, "of the newest checkpoint")),
        section("components", "Components", _components(shown), remark=_about(shown, "of the newest checkpoint")),
        section("mesh", "Mesh", _mesh(shown)),
        section(
            "starts",
            "Starts of the job",
            _starts(told.starts),
            remark="The guarantee is what the job could keep when it went on from its base.",
        ),
        section("attempts", "Attempts of the supervisor", attempt_table(told.attempts, told.starts)),
        section("generations", "Generations", _generations(told.entries, now)),
    ]
    return Template(_part("page.html")).substitute(
        title=escape(f"Checkpoints of {told.url}"),
        style=_part("page.css"),
        header=_header(told, now),
        main="\n".join(part for part in main if part),
    )


def _part(name: str) -> str:
    return files("ckptcli.report").joinpath(name).read_text(encoding="utf-8").strip()


def _header(told: Chronicle, now: datetime) -> str:
    verdict, kind, shown = _unbegun(told) if told.run is None else _begun(told, told.run, now)
    shown["made"] = now.strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"<h1>{escape(told.url)}</h1>\n{element('p', escape(verdict), class_=f'verdict {kind}')}\n{facts(shown)}"


def _unbegun(told: Chronicle) -> tuple[str, str, dict[str, object]]:
    """Of a place where only a supervisor has been."""
    newest = told.attempts[-1]
    return "No run has begun here: no job has opened it", "bad", {"attempt": attempt_line(newest), "next": unbegun.advice(newest)}


def _begun(told: Chronicle, run: Run, now: datetime) -> tuple[str, str, dict[str, object]]:
    head = next((entry for entry in told.entries if entry.is_head), None)
    verified = [entry for entry in told.entries if entry.state == "verified"]
    states = ", ".join(f"{count} {state}" for state, count in counts(told.entries).items())
    verdict = "Nothing to resume from" if head is None else f"The next start resumes from step {head.generation.step:,}"
    shown: dict[str, object] = {
        "run": run.run_id,
        "resume point": head and f"{head.generation}, captured {text.ago(head.at, now)}",
        "newest verified": f"step {verified[-1].generation.step:,}, captured {text.ago(verified[-1].at, now)}"
        if verified
        else "none",
        "generations": states or "none yet",
        "begun": _created(run),
        "parent": run.parent and f"{run.parent.generation} of {run.parent.url}",
    }
    return verdict, "bad" if head is None else "good", shown


def _shown(told: Chronicle) -> tuple[Entry, Manifest] | None:
    """The newest commit whose receipts could be read."""
    for entry in reversed(told.entries):
        if entry.generation in told.deliveries and entry.listed.manifest is not None:
            return entry, entry.listed.manifest
    return None


def _about(shown: tuple[Entry, Manifest] | None, what: str) -> str:
    return "" if shown is None else f"{what.capitalize()}, step {shown[0].generation.step:,}."


def _saves(told: Chronicle) -> str:
    return phases(dict(sorted(told.deliveries.items())))


def _ranks(told: Chronicle) -> str:
    shown = _shown(told)
    if shown is None:
        return ""
    found = told.deliveries[shown[0].generation]
    slowest = max(found, key=_seconds)
    listed = sorted(sorted(found, key=_seconds)[-RANKS:], key=lambda delivery: delivery.rank)
    names = sorted({name for delivery in found for name in delivery.bytes})
    head = ["rank", *PHASES, "write speed", "", *names, "files"]
    rows = [
        _rank(delivery, names, longest(found, "write"), is_slowest=delivery is slowest and len(found) > 1) for delivery in listed
    ]
    omitted = f"The slowest {RANKS} of {len(found):,} ranks." if len(found) > RANKS else ""
    return table(head, rows, right=["rank", *PHASES, "write speed", *names, "files"], caption=omitted)


def _seconds(delivery: Delivery) -> float:
    return sum(delivery.phases.values())


def _rank(delivery: Delivery, names: Sequence[str], longest_write: float, *, is_slowest: bool) -> list[str]:
    write = delivery.phases.get("write", 0.0)
    written = sum(delivery.bytes.values())
    speed = f"{text.size(int(written / write))}/s" if write and written else ""
    return [
        f"{delivery.rank}" + (" <b>slowest</b>" if is_slowest else ""),
        *(duration(delivery.phases[phase]) if phase in delivery.phases else "" for phase in PHASES),
        speed,
        bar(write / longest_write if longest_write else 0.0, "write"),
        *(text.size(delivery.bytes[name]) if name in delivery.bytes else "" for name in names),
        f"{delivery.files:,}",
    ]


def _components(shown: tuple[Entry, Manifest] | None) -> str:
    if shown is None:
        return ""
    components = shown[1].components
    most = max((entry.bytes for entry in components.values()), default=0)
    rows = [
        [
            escape(name),
            text.size(entry.bytes),
            bar(entry.bytes / most if most else 0.0),
            f"{entry.leaves:,}",
            escape(entry.kind),
            "every rank has its own" if entry.scope == "rank" else "one for all",
            "" if entry.source is None else f"kept in {escape(entry.source)}",
        ]
        for name, entry in sorted(components.items(), key=lambda item: -item[1].bytes)
    ]
    return table(["component", "size", "", "leaves", "kind", "scope", "where"], rows, right=["size", "leaves"])


def _mesh(shown: tuple[Entry, Manifest] | None) -> str:
    if shown is None:
        return ""
    topology = shown[1].topology
    told: Mapping[str, object] = {
        "framework": topology.framework,
        "platform": topology.platform,
        "processes": f"{topology.participants:,}",
        "devices": f"{topology.devices:,}",
        **{
            f"mesh {number}": " × ".join(f"{axis} {size}" for axis, size in zip(mesh.axes, mesh.shape, strict=True))
            or "one device"
            for number, mesh in enumerate(topology.meshes, 1)
        },
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(shown[1].versions.items())),
    }
    return facts(told)


def _starts(starts: Sequence[Start]) -> str:
    rows = [
        [
            f"{start.number}",
            _moment(start.claimed),
            _processes(start),
            escape(start.guarantee or ""),
            escape(start.reason) if start.based else "<b>no base recorded</b>",
            "" if start.base is None else element("a", escape(start.base), href=f"#g-{start.base}"),
            escape(", ".join(map(str, start.rolled_forward))),
            escape("; ".join(f"{generation}: {text.first_line(reason)}" for generation, reason in start.passed_over.items())),
        ]
        for start in reversed(starts)
    ]
    head = ["incarnation", "claimed", "processes", "guarantee", "base", "goes on from", "rolled forward", "passed over"]
    return table(head, rows, right=["incarnation"]) if rows else ""


def _processes(start: Start) -> str:
    """`3 × jax`, `4 → 3 × jax`."""
    before = f"{start.before:,} → " if start.resized else ""
    return "" if start.participants is None else f"{before}{start.participants:,} × {escape(start.framework)}"


def _generations(entries: Sequence[Entry], now: datetime) -> str:
    rows = [
        [
            element("span", escape(entry.generation) + (" ★" if entry.is_head else ""), id=f"g-{entry.generation}"),
            f"{entry.generation.step:,}",
            element("span", escape(entry.state), class_=f"state {entry.state}"),
            escape(entry.guarantee or ""),
            text.size(entry.bytes),
            _moment(entry.at),
            text.age(entry.at, now),
            escape(_remarks(entry)),
        ]
        for entry in reversed(entries)
    ]
    head = ["generation", "step", "state", "guarantee", "size", "captured", "age", "notes"]
    return table(head, rows, right=["step", "size", "age"]) if rows else ""


def _remarks(entry: Entry) -> str:
    open_or_aborted = entry.missing or entry.state == "undecided"
    missing = text.missing(entry.missing, entry.participants, entry.reason) if open_or_aborted else ""
    metrics = [f"{name} = {value:.4g}" for name, value in entry.listed.metrics.items()]
    parts = [missing, text.first_line(entry.reason, 200), "pinned" if entry.listed.pinned else "", *entry.listed.tags, *metrics]
    return "; ".join(part for part in parts if part)


def _created(run: Run) -> str:
    """When the run was begun, as it is stored where no calendar has that date."""
    at = time_of(run.created)
    return run.created if at is None else f"{_moment(at)} UTC"


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")
