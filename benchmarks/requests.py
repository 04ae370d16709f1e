"""How many calls to an object store a job makes: a save, a start, a look, a collection; and while it waits.

Every rank is a thread with a checkpointer and a store of its own, before an S3 server on the loopback interface that
only a counting proxy reaches, which is as slow to answer as a real one. The protocol code is that of a job; the state is small,
and has as many arrays as asked for. Counts do not depend on the machine; how often a rank has to wait does, so calls that are
made while waiting are counted apart.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.arguments import amount, as_given, count, counts
from benchmarks.counting_proxy import METHODS, Call, CountingProxy, by_kind, counting_proxy
from ckptcore import components as parts
from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer
from ckptcore.clock import Clock
from ckptcore.inspect.inventory import inventory
from ckptcore.inspect.status import status
from ckptcore.keep import Keep
from ckptcore.retention import Collector
from ckptcore.saving import ASKED_A_SECOND, LONGEST_PAUSE, SHORTEST_PAUSE
from ckptcore.store import Store, open_store
from tests.ckptcore.support import Hub, Sharded, ThreadChannel, checkpointer
from tests.servers import S3, s3_server

LATENCY = 0.02
"""Seconds that an object store takes to answer, about."""
DEADLINE = 600.0
SAVES = 3
"""Saves of a job. The first one also looks for what others have left; the last one is counted as `save`."""
ESTIMATED = "8,1024"
"""Ranks for which the cost of a save is computed, unless others are asked for."""
ARRAYS = 100
"""And how many arrays they save."""
HOUR = 3600.0

Counts = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job. `late`: seconds by which the last rank begins its last save later than the others. `generations`: saves before."""

    ranks: int
    arrays: int
    late: float = 0.0
    generations: int = 0
    keep: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--latency", type=amount, default=LATENCY, help=f"seconds for each request (default {LATENCY})")
    parser.add_argument(
        "--ranks", type=as_given(counts), default=ESTIMATED, metavar="N,…", help="jobs whose saves are computed (default 8,1024)"
    )
    parser.add_argument("--arrays", type=count, default=ARRAYS, metavar="N", help=f"their arrays (default {ARRAYS})")
    parser.add_argument(
        "--objects",
        type=count,
        default=1,
        metavar="N",
        help="objects of data that each of their ranks writes (default 1; docs/storage.md says how large they are)",
    )
    parser.add_argument(
        "--prices",
        type=as_given(_prices),
        metavar="METHOD=PRICE,…",
        default="",
        help="what 1,000 requests of a method cost (GET=…,PUT=…,LIST=…): the cost of a save is computed from it",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All cases, one after the other."""
    cases, late = (_smoke() if options.smoke else _cases()), (() if options.smoke else (0.0, 5.0, 30.0))
    prices = _prices(options.prices)
    latency = 0.0 if options.smoke else options.latency
    with s3_server() as server, counting_proxy(server.endpoint) as proxy:
        measured = [Job(case, server, proxy, latency, f"runs/{number}").measure() for number, case in enumerate(cases)]
        slow = [Case(ranks=8, arrays=1, late=seconds) for seconds in late]
        waited = [Job(case, server, proxy, latency, f"runs/late-{case.late:g}").measure() for case in slow]
    fitted = fit(measured)
    return {
        "latency": latency,
        "cases": measured,
        "late": waited,
        "formulas": fitted,
        "per_save": [
            {
                "ranks": ranks,
                "operation": operation,
                "requests": per_save(fitted, operation, ranks, options.arrays, objects=options.objects),
            }
            for ranks in counts(options.ranks)
            for operation in ("save", "save, keep")
        ],
        "arrays": options.arrays,
        "objects": options.objects,
        "per_hour": {str(ranks): hourly(ranks) for ranks in counts(options.ranks)},
        "prices": prices,
    }


def _smoke() -> list[Case]:
    return [Case(ranks=1, arrays=1), Case(ranks=2, arrays=1, keep=2), Case(ranks=2, arrays=1, generations=1)]


def _cases() -> list[Case]:
    return [
        *(Case(ranks=ranks, arrays=100) for ranks in (1, 2, 4, 8, 16)),
        *(Case(ranks=2, arrays=arrays) for arrays in (1, 1000)),
        *(Case(ranks=2, arrays=1, generations=generations) for generations in (10, 100)),
        *(Case(ranks=ranks, arrays=1, keep=2) for ranks in (1, 2, 8)),
    ]


# One job


@dataclass
class Job:
    """A job before the counting proxy, and what was counted."""

    case: Case
    server: S3
    proxy: CountingProxy
    latency: float
    place: str
    counted: dict[str, dict[str, Any]] = field(default_factory=dict)

    def measure(self) -> dict[str, Any]:
        """Every operation, once: the case, and what was counted of each."""
        if self.case.generations:
            self._on_ranks(self._before, latency=0.0)
        self._on_ranks(self._train)
        self._on_ranks(self._resume)
        for name, look in (("ls", inventory), ("status", status)):
            with self._counting(name):
                look(self._store(name))
        if self.case.keep is None:
            collector, keep = Collector(self._store("gc")), Keep(last=self._commits() - 1)
            with self._counting("collect one generation"):
                collector.collect(keep)
        case = self.case
        told = {"ranks": case.ranks, "arrays": case.arrays, "late": case.late, "generations": case.generations}
        return told | {"operations": self.counted}

    def _before(self, channel: Channel, together: Callable[[], object]) -> None:
        """Earlier saves, which are not counted."""
        rank = channel.rank
        with self._checkpointer(channel, None) as saver:
            for step in range(1, self.case.generations + 1):
                saver.save(step, self._state(step, rank), metrics={"loss": 1.0}).result()
        together()
        self.proxy.taken()
        together()

    def _commits(self) -> int:
        return len([entry for entry in inventory(self._store("before")) if entry.restorable])

    def _train(self, channel: Channel, together: Callable[[], object]) -> None:
        case, rank = self.case, channel.rank
        keep = None if case.keep is None else Keep(last=case.keep)
        with self._checkpointer(channel, keep) as saver:
            start = saver.restore_or_init(lambda: self._state(0, rank), like=self._state(0, rank)).step
            self._counted(rank, "start" if case.generations else "start of a run", together)
            for step in range(start + 1, start + SAVES + 1):
                saver.should_save(step)
                self._counted(rank, "should_save", together)
                if step == start + SAVES and rank == case.ranks - 1:
                    time.sleep(case.late)
                saver.save(step, self._state(step, rank), metrics={"loss": 1.0} if keep else None).result()
                name = "save" if step > start + 1 else "first save"
                self._counted(rank, f"{name}, keep" if keep else name, together)

    def _resume(self, channel: Channel, together: Callable[[], object]) -> None:
        with self._checkpointer(channel, None) as saver:
            saver.restore(like=self._state(0, channel.rank))
            self._counted(channel.rank, "start and restore", together)

    def _checkpointer(self, channel: Channel, keep: Keep | None) -> Checkpointer:
        told = {"storage": self._storage(str(channel.rank)), "keep": keep, "interval": 10**9, "coordinator_timeout": DEADLINE}
        return checkpointer(self.server.url(self.place), channel, **told)

    def _state(self, step: int, rank: int) -> dict[str, Any]:
        return state(self.case.arrays, step, rank, self.case.ranks)

    def _storage(self, caller: str) -> Any:
        return replace(self.server.storage, endpoint=self.proxy.endpoint(caller))

    def _store(self, caller: str) -> Store:
        return open_store(self.server.url(self.place), self._storage(caller))

    def _counted(self, rank: int, name: str, together: Callable[[], object]) -> None:
        """Every rank has done something: rank 0 takes what was counted before anybody goes on."""
        together()
        if rank == 0:
            self.counted[name] = summary(self.proxy.taken(), self.case.ranks)
        together()

    @contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        self.proxy.taken()
        yield
        self.counted[name] = summary([replace(call, caller="0") for call in self.proxy.taken()], 1)

    def _on_ranks(self, work: Callable[[Channel, Callable[[], object]], None], *, latency: float | None = None) -> None:
        """Do it once a rank, each in a thread of its own; raise the first error."""
        self.proxy.latency = self.latency if latency is None else latency
        hub, barrier = Hub(self.case.ranks), threading.Barrier(self.case.ranks, timeout=DEADLINE)
        errors: list[BaseException] = []

        def body(rank: int) -> None:
            try:
                work(ThreadChannel(hub, rank), barrier.wait)
            except BaseException as error:  # noqa: BLE001 -- raised below
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(self.case.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def state(arrays: int, step: int, rank: int, ranks: int) -> dict[str, Any]:
    """A training state of four components; every array is cut over all ranks, and no chunk is small enough for a tree's node."""
    cut = {f"w{i}": Sharded.of(np.full((ranks, 160), step + i, np.float32), rank, ranks) for i in range(arrays)}
    own = parts.PerRank({"key": np.array([step, rank], np.uint32)})
    return {"params": cut, "optimizer": {"count": step, "lr": 0.1}, "rng": own, "data": {"position": step}}


# Counts


def summary(calls: Sequence[Call], ranks: int) -> dict[str, Any]:
    """Calls of rank 0, and of each other rank (the mean), without those of waiting, which are told apart; kinds; bytes."""
    by_rank = [[call for call in calls if call.caller == str(rank)] for rank in range(ranks)]
    waiting = [waits(each, first=rank == 0) for rank, each in enumerate(by_rank)]
    done = [without(each, waited) for each, waited in zip(by_rank, waiting, strict=True)]
    return {
        "rank 0": done[0],
        "other rank": _mean(done[1:]),
        "rank 0, waiting": waiting[0],
        "other rank, waiting": _mean(waiting[1:]),
        "kinds of rank 0": by_kind(by_rank[0]),
        "kinds of rank 1": by_kind(by_rank[1]) if ranks > 1 else {},
        "bytes sent": sum(call.sent for call in calls),
        "bytes received": sum(call.received for call in calls),
        "refused": dict(Counter(str(call.status) for call in calls if call.status not in (200, 204, 206))),
    }


def waits(calls: Sequence[Call], *, first: bool) -> Counts:
    """The calls that a rank makes in a save only because others are not ready.

    Rank 0 lists receipts, and the first such listing is none of them; other ranks ask for the decision, and the answer is none.
    Both look for a newer claim now and then: what is beyond the looks before the save and before the decision.
    """
    lists = sum(call.kind == "list of a generation's receipts" for call in calls)
    absent = sum(call.kind == "ledger" and call.status == 404 and call.method == "GET" for call in calls)
    claims = sum(call.kind == "claim" and call.method == "GET" for call in calls)
    saves = any(call.kind == "receipt" and call.method == "PUT" for call in calls)
    if not saves:
        return {}
    looks = max(claims - (3 if first else 2), 0)
    return {"LIST": max(lists - 1, 0), "GET": looks} if first else {"LIST": 0, "GET": absent + looks}


def without(calls: Iterable[Call], waited: Mapping[str, int]) -> Counts:
    """How many calls of each method there were, but for those of waiting."""
    counted = Counter(call.method for call in calls)
    return {method: counted[method] - waited.get(method, 0) for method in METHODS}


def _mean(counts: Sequence[Counts]) -> dict[str, float]:
    methods = sorted({method for each in counts for method in each})
    return {method: round(sum(each.get(method, 0) for each in counts) / len(counts), 2) for method in methods}


# Formulas

OPERATIONS = (
    "save",
    "save, keep",
    "start of a run",
    "start and restore",
    "should_save",
    "ls",
    "status",
    "collect one generation",
)
TERMS = ("1", "ranks", "arrays", "generations")


def fit(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each operation, caller and method, the coefficients of `TERMS` by least squares, and the largest deviation."""
    fitted: dict[str, Any] = {}
    for operation in OPERATIONS:
        cases = [case for case in measured if operation in case["operations"]]
        for caller in ("rank 0", "other rank"):
            told = [(case, case["operations"][operation][caller]) for case in cases if case["operations"][operation][caller]]
            if told:
                terms = _varied([case for case, _ in told], alone=caller != "rank 0")
                fitted.setdefault(operation, {})[caller] = {method: _fitted(told, method, terms) for method in METHODS}
    return fitted


def _fitted(told: Sequence[tuple[Mapping[str, Any], Mapping[str, float]]], method: str, terms: Sequence[str]) -> dict[str, float]:
    rows = np.array([[float(case.get(term, 1)) for term in terms] for case, _ in told])
    counts = np.array([counted.get(method, 0) for _, counted in told], float)
    found = np.linalg.lstsq(rows, counts, rcond=None)[0]
    coefficients = dict.fromkeys(TERMS, 0.0) | {term: round(float(value), 3) for term, value in zip(terms, found, strict=True)}
    return coefficients | {"off by": round(float(np.abs(rows @ found - counts).max()), 2)}


def _varied(cases: Sequence[Mapping[str, Any]], *, alone: bool) -> list[str]:
    """The terms that can be told from these cases: those that differ among them, and no more than there are cases.

    What another rank than 0 asks is its own part `alone`, whatever the number of ranks.
    """
    different = [term for term in TERMS[1:] if len({case[term] for case in cases}) > 1 and not (alone and term == "ranks")]
    return ["1", *different[: len(cases) - 1]]


def evaluated(formula: Mapping[str, float], ranks: int, arrays: int, generations: int = 0) -> float:
    """What a formula gives."""
    values = dict(zip(TERMS, (1, ranks, arrays, generations), strict=True))
    return sum(formula[term] * value for term, value in values.items())


def per_save(fitted: Mapping[str, Any], operation: str, ranks: int, arrays: int, *, objects: int = 1) -> dict[str, int]:
    """Requests of one save by all ranks, by method; nobody waits for anybody.

    Each object of data beyond the one that every rank had when this was counted is a PUT, and a GET of rank 0.
    """
    lead, other = fitted[operation]["rank 0"], fitted[operation]["other rank"]
    more = {"PUT": ranks * (objects - 1), "GET": ranks * (objects - 1)}
    return {
        method: round(evaluated(lead[method], ranks, arrays) + (ranks - 1) * evaluated(other[method], ranks, arrays))
        + more.get(method, 0)
        for method in METHODS
    }


def hourly(ranks: int) -> dict[str, int]:
    """The most polls in an hour of waiting, by rank 0 and by each other rank: from the rule alone, with no pause varied."""
    shortest = max(ranks / ASKED_A_SECOND, SHORTEST_PAUSE)
    return {
        "rank 0": sum(1 for _ in _Still().polls(HOUR)),
        "other rank": sum(1 for _ in _Still().polls(HOUR, first=shortest, most=max(LONGEST_PAUSE, shortest))),
    }


class _Still(Clock):
    """A clock on which an hour passes at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def varied(self, seconds: float) -> float:
        return seconds


def _prices(text: str) -> dict[str, float]:
    """`GET=0.0004,PUT=0.005` as numbers."""
    parts = [(method.strip(), price.strip()) for method, _, price in (part.partition("=") for part in text.split(",") if part)]
    unknown = [method for method, _ in parts if method not in METHODS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(map(repr, unknown))}: expected METHOD=PRICE, of {', '.join(METHODS)}")
    return {method: amount(price) for method, price in parts}


# The tables


def table(result: Mapping[str, Any]) -> str:
    """What is printed: the formulas, what a save costs, and what waiting costs."""
    return "\n\n".join(part for part in (_formulas(result), _costs(result), _waits(result)) if part)


def _formulas(result: Mapping[str, Any]) -> str:
    shown = ("GET", "PUT", "LIST", "DELETE", "HEAD")
    lines = [
        f"Requests, R ranks, A arrays, G earlier generations; {result['latency'] * 1000:g} ms each; without those of waiting.",
        "",
        f"| operation | by | {' | '.join(shown)} |",
        f"| --- | --- |{' --- |' * len(shown)}",
    ]
    for operation in (each for each in OPERATIONS if each in result["formulas"]):
        alone = operation in ("ls", "status", "collect one generation")
        for caller, methods in sorted(result["formulas"][operation].items(), reverse=True):
            by = "one process" if alone else "rank 0" if caller == "rank 0" else "each other rank"
            lines.append(f"| {operation} | {by} | {' | '.join(_formula(methods[method]) for method in shown)} |")
    return "\n".join(lines)


def _formula(fitted: Mapping[str, float]) -> str:
    """`12 + 7 R`, without what is less than one request in any case that was measured, or in its neighbourhood."""
    shown = {"1": ("", 0.5), "ranks": (" R", 0.4), "arrays": (" A", 0.003), "generations": (" G", 0.02)}
    terms = [f"{_number(fitted[term])}{letter}" for term, (letter, least) in shown.items() if abs(fitted[term]) >= least]
    return " + ".join(terms).replace("+ -", "- ") or "0"


def _number(value: float) -> str:
    whole = abs(value) >= 10 or (abs(value) >= 0.95 and abs(value - round(value)) < 0.05)
    return f"{value:.0f}" if whole else f"{value:.2g}"


def _costs(result: Mapping[str, Any]) -> str:
    prices, money = result["prices"], bool(result["prices"])
    columns = [*METHODS, *(["cost"] if money else [])]
    arrays, objects = result.get("arrays", ARRAYS), result.get("objects", 1)
    data = f"{objects:,} objects of data a rank" if objects > 1 else "one object of data a rank"
    lines = [f"One save by all ranks, {arrays:,} arrays, {data}, by the formulas:", "", f"| ranks | | {' | '.join(columns)} |"]
    lines.append(f"| --- | --- |{' --- |' * len(columns)}")
    for row in result["per_save"]:
        counts = row["requests"]
        shown = [f"{counts[method]:,}" for method in METHODS]
        cost = sum(counts[method] * prices.get(method, 0.0) / 1000 for method in METHODS)
        shown += [f"{cost:.4f}"] if money else []
        lines.append(f"| {row['ranks']:,} | {row['operation']} | {' | '.join(shown)} |")
    told = ", ".join(f"{method} {price:g}" for method, price in prices.items())
    return "\n".join([*lines, f"\nThe cost follows from the prices given for 1,000 requests: {told}."] if money else lines)


def _waits(result: Mapping[str, Any]) -> str:
    lines = [
        "Waiting for one late rank of 8:",
        "",
        "| seconds late | rank 0: LIST, GET | each rank that waits: GET |",
        "| --- | --- | --- |",
    ]
    for case in result["late"]:
        save = case["operations"]["save"]
        lead, other = save["rank 0, waiting"], save["other rank, waiting"]
        lines.append(f"| {case['late']:g} | {lead['LIST']}, {lead['GET']} | {other['GET']:g} |")
    hours = "; ".join(
        f"{int(ranks):,} ranks: {each['rank 0']} polls by rank 0, {each['other rank']} by each other rank"
        for ranks, each in sorted(result["per_hour"].items(), key=lambda entry: int(entry[0]))
    )
    return "\n".join([*(lines if result["late"] else []), f"\nAn hour of waiting at most: {hours}."])
