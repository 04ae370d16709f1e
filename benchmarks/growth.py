"""How each operation grows with ranks, arrays, bytes and generations: time, memory, requests and bytes.

One dimension grows, the others stay as they are. The job is simulated (`benchmarks.simulated`): all ranks have
really written before anything is measured. Each operation runs in a fresh process that has done everything once at a
tiny size, so that its memory is its own and no import is in its time.

The exponent is the slope of log(time) over log(n) by least squares over the upper half of the sizes: 0 is constant, 1 is
linear, 2 is quadratic. It is stated with its range.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import simulated
from benchmarks.counting import Counting, cost
from benchmarks.simulated import Job, Launch, Size
from ckptcore import names, records, union
from ckptcore.history import History
from ckptcore.inspect.inventory import inventory
from ckptcore.inspect.status import status
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.retention import Collector
from ckptcore.store import Store, open_store


@dataclass(frozen=True)
class Scale:
    """One dimension: the numbers that it takes, and the size of the job at each; of `generations` the number is that of saves."""

    numbers: tuple[int, ...]
    size: Callable[[int], Size]
    fixed: str


@dataclass(frozen=True)
class Place:
    """A run of the simulated job, and the step that is saved, as every process of a measurement gets it."""

    url: str
    size: Size
    launch: Launch
    step: int

    def job(self, store: Store) -> Job:
        """The job on it."""
        return Job(store, self.size, self.launch)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--large", action="store_true", help="up to 1,024 ranks x 1,000 arrays, and to 8 GB: half an hour, 16 GB")
    parser.add_argument("--only", choices=("ranks", "arrays", "bytes", "generations"), help="one dimension alone")


def scales(*, smoke: bool, large: bool) -> dict[str, Scale]:
    """What grows, and what stays as it is."""
    if smoke:
        return {
            "ranks": Scale((2, 4), lambda n: Size(n, 4), "4 arrays"),
            "generations": Scale((3, 5), lambda _: Size(2, 4), "2 ranks, 4 arrays"),
        }
    arrays = 1000 if large else 100
    bytes_ = tuple(n * 100_000_000 for n in (1, 3, 10, *((30, 80) if large else ())))
    return {
        "ranks": Scale((2, 8, 32, 128, 512, 1024), lambda n: Size(n, arrays), f"{arrays:,} arrays, 640 bytes a rank and array"),
        "arrays": Scale((100, 300, 1000, 3000, 10_000), lambda n: Size(8, n), "8 ranks, 640 bytes a rank and array"),
        "bytes": Scale(bytes_, lambda n: Size(8, 100, n), "8 ranks, 100 arrays"),
        "generations": Scale((10, 30, 100, 300, 1000), lambda _: Size(2, 4), "2 ranks, 4 arrays"),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All dimensions, one after the other."""
    alone = Here() if options.smoke else Apart()
    found = {}
    for name, scale in scales(smoke=options.smoke, large=options.large).items():
        if options.only in (None, name):
            folder = options.dir / name
            points = _generations(scale, folder, alone) if name == "generations" else _points(name, scale, folder, alone)
            found[name] = {"fixed": scale.fixed, "points": points}
    return {"dimensions": found}


class Apart:
    """Runs each piece of work in a fresh process."""

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """`call(*arguments)`, a function of this module."""
        return self.map(call, [arguments])[0]

    def map(self, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """As many at a time as there are cores, each process as often as its turn comes."""
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(arguments)), get_context("spawn")) as pool:
            try:
                return list(pool.map(call, *zip(*arguments, strict=True)))
            except BaseException:
                for child in active_children():  # leaving the pool would wait for what they are at
                    child.terminate()
                raise


class Here(Apart):
    """Runs everything in this process, which is fast and measures no memory."""

    def map(self, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One after the other."""
        return [call(*each) for each in arguments]


# The operations: each makes ready what is not measured, and returns the work.


def _plan(place: Place, store: Store) -> Callable[[], object]:
    """The main-thread half of a save on one rank."""
    job = place.job(store)
    _ = job.state
    return lambda: job.plan(place.step, place.size.ranks - 1)


def _write(place: Place, store: Store) -> Callable[[], object]:
    """The background half of a save on one rank."""
    job = place.job(store)
    shard = job.plan(place.step, place.size.ranks - 1)
    return lambda: job.write(shard)


def _tables(place: Place, store: Store) -> Callable[[], object]:
    """What a rank does to tell others what it holds, and to unite what all tell, where ranks know their own leaves only."""
    flat = simulated.ShardedBackend(place.size, 0).flatten(place.job(store).state)

    def work() -> None:
        table = union.describe(flat)
        union.digest_of(table)
        union.unite(flat, union.Tables((table,), (tuple(range(place.size.ranks)),)))

    return work


def _commit(place: Place, store: Store) -> Callable[[], object]:
    """The coordinator's part, when the last receipt is there."""
    return lambda: place.job(store).commit(place.step)


def _open(place: Place, store: Store) -> Callable[[], object]:
    """What rank 0 does when the job starts: claim, settle, choose the base and look at its records and files."""
    return lambda: simulated.launch(store, place.size)


def _restore(place: Place, store: Store) -> Callable[[], object]:
    """One rank reads its part of every array."""
    rank = place.size.ranks - 1

    def work() -> None:
        checkpoint = Checkpoint(store, next(History.load(store).commits()))
        leaves = [leaf for name in simulated.COMPONENTS for leaf in checkpoint.leaves(name).values()]
        arrays = [leaf for leaf in leaves if isinstance(leaf.record, records.ArrayLeaf)]
        checkpoint.read([(leaf, [simulated.box(place.size, rank)]) for leaf in arrays])

    return work


def _ls(place: Place, store: Store) -> Callable[[], object]:  # noqa: ARG001
    """What `ckpt ls` reads."""
    return lambda: inventory(store)


def _status(place: Place, store: Store) -> Callable[[], object]:  # noqa: ARG001
    """What `ckpt status` reads."""
    return lambda: status(store)


def _collect(place: Place, store: Store) -> Callable[[], object]:
    """Retention after a save that made one checkpoint too many: it retires one and deletes its data."""
    kept = sum(1 for _ in History.load(store).commits()) - 1
    return lambda: Collector(store, place.launch.number).collect(Keep(last=max(2, kept)))


def _delete(place: Place, store: Store) -> Callable[[], object]:
    """Deleting the data of one generation, as retention does it."""
    prefix = names.generation_prefix(place.job(store).generation(place.step))
    return lambda: store.delete_prefix(prefix)


def _measure(name: str, place: Place) -> dict[str, Any]:
    """One operation, in a process of its own."""
    _warm()
    store = Counting(open_store(place.url))
    prepare = AGAIN.get(name) or ONCE[name]
    return cost(prepare(place, store), store, again=name in AGAIN).plain


@cache
def _warm() -> None:
    """Everything once, at a tiny size."""
    size = Size(2, 2)
    with TemporaryDirectory() as folder:
        store = open_store(folder)
        place = Place(folder, size, simulated.launch(store, size), 1)
        place.job(store).save(1)
        for prepare in AGAIN.values():
            prepare(place, store)()


AGAIN = {"plan": _plan, "tables": _tables, "restore": _restore, "ls": _ls, "status": _status}
"""Operations that can be repeated."""
ONCE = {"write": _write, "commit": _commit, "open": _open, "collect": _collect, "delete": _delete}

OPERATIONS = {
    "ranks": ("plan", "tables", "write", "commit", "open", "restore", "ls", "status", "delete"),
    "arrays": ("plan", "tables", "write", "commit", "open", "restore", "ls", "status", "delete"),
    "bytes": ("write", "commit", "open", "restore", "delete"),
    "generations": ("write", "commit", "ls", "status", "collect", "open"),
}
"""In the order in which they are measured: `write` is that of the last rank, without which there is nothing to commit."""

SAID = {
    "plan": "plan, one rank",
    "tables": "leaf tables, one rank",
    "write": "write, one rank",
    "commit": "commit, coordinator",
    "open": "open, rank 0",
    "restore": "restore, one rank",
    "ls": "`ckpt ls`",
    "status": "`ckpt status`",
    "collect": "retention",
    "delete": "delete one generation",
}


def _points(dimension: str, scale: Scale, folder: Path, alone: Apart) -> list[dict[str, Any]]:
    """One save at each size, each in a run of its own that is removed when it has been measured."""
    found = []
    for number in scale.numbers:
        store = open_store(folder)
        size = scale.size(number)
        place = Place(str(folder), size, simulated.launch(store, size), 1)
        receipt = _write_all(place, alone)
        operations = {name: alone(_measure, name, place) for name in OPERATIONS[dimension][:4]}
        sizes = _sizes(store, place.job(store).generation(1)) | {"receipt": receipt}
        operations |= {name: alone(_measure, name, place) for name in OPERATIONS[dimension][4:]}
        found.append({"number": number, **asdict(size), "operations": operations, "sizes": sizes})
        shutil.rmtree(folder)
    return found


def _generations(scale: Scale, folder: Path, alone: Apart) -> list[dict[str, Any]]:
    """One run, whose saves grow in number; each point opens it anew, as a job does that is started again."""
    found, done = [], 0
    for number in scale.numbers:
        store = open_store(folder)
        size = scale.size(number)
        launch = simulated.launch(store, size)
        alone(_save_all, Place(str(folder), size, launch, done), number - 1)
        place = Place(str(folder), size, launch, number)
        _write_all(place, alone)
        operations = {name: alone(_measure, name, place) for name in OPERATIONS["generations"]}
        found.append({"number": number, **asdict(size), "operations": operations, "sizes": {}})
        done = number
    return found


def _save_all(place: Place, last: int) -> None:
    """All saves after that of the place's step, up to `last`, each continuing from the one before."""
    store = open_store(place.url)
    latest = next(History.load(store).commits(), None)
    for step in range(place.step + 1, last + 1):
        latest = place.job(store).save(step, latest)


def _write_all(place: Place, alone: Apart) -> int:
    """The parts of all ranks, but of the last one, which is measured; bytes of a receipt. The ranks share the cores."""
    parts = [range(first, min(first + 16, place.size.ranks - 1)) for first in range(0, place.size.ranks - 1, 16)]
    return max(alone.map(_write_ranks, [(place, part) for part in parts]))


def _write_ranks(place: Place, ranks: Sequence[int]) -> int:
    """The parts of some ranks, one after the other; bytes of the longest receipt."""
    job = place.job(open_store(place.url))
    return max(len(records.encode(job.write(job.plan(place.step, rank)))) for rank in ranks)


def _sizes(store: Store, generation: GenerationId) -> dict[str, int]:
    """Bytes of what a commit consists of, and its number of files."""
    checkpoint = Checkpoint(store, next(History.load(store).commits()))
    state, merged = names.state_prefix(generation), f"{names.state_prefix(generation)}d/"
    return {
        "manifest": store.size(names.ledger_key(generation)) or 0,
        "roster": checkpoint.manifest.roster.size,
        "index": sum(entry.index.size for entry in checkpoint.manifest.components.values()),
        "layout": sum(layout.size for layout in checkpoint.roster.layouts),
        "merged root": sum(store.size(key) or 0 for key in [f"{state}manifest.ocdbt", *store.list(merged)]),
        "files": sum(1 for _ in store.list(names.generation_prefix(generation))),
    }


# The table


def exponent(numbers: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of log(value) over log(number) by least squares over the upper half; None where a value is 0."""
    half = slice(min(len(numbers) // 2, len(numbers) - 2), None)
    if len(numbers) < 2 or min(values[half]) <= 0:
        return None
    return linear_regression([math.log(n) for n in numbers[half]], [math.log(v) for v in values[half]]).slope


def table(result: Mapping[str, Any]) -> str:
    """One table a dimension, and the sizes of what is stored."""
    parts = [_dimension(name, found) for name, found in result["dimensions"].items()]
    return "\n\n".join([*parts, *_stored(result["dimensions"]), *_budget(result["dimensions"])])


def _dimension(name: str, found: Mapping[str, Any]) -> str:
    points = found["points"]
    numbers = [point["number"] for point in points]
    upper = numbers[min(len(numbers) // 2, len(numbers) - 2) :]
    shown = [_bytes(n) if name == "bytes" else f"{n:,}" for n in numbers]
    title = f"**{name.capitalize()}** ({found['fixed']}); exponents from {_range(name, upper)}:"
    header = ["", *shown, "time ~", "memory", "requests", "requests ~", "bytes read", "bytes written"]
    rows = [_row(operation, points, numbers) for operation in points[0]["operations"]]
    return f"{title}\n\n" + _markdown(header, rows)


def _range(name: str, upper: Sequence[int]) -> str:
    first, last = (_bytes(n) if name == "bytes" else f"{n:,}" for n in (upper[0], upper[-1]))
    return f"{first} to {last}"


def _row(operation: str, points: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[str]:
    costs = [point["operations"][operation] for point in points]
    calls = [sum(each["calls"].values()) for each in costs]
    last = costs[-1]
    return [
        SAID[operation],
        *(_seconds(each["seconds"]) for each in costs),
        _exponent(numbers, [each["seconds"] for each in costs]),
        _bytes(last["peak"]),
        f"{calls[-1]:,}",
        _exponent(numbers, calls),
        _bytes(last["read"]),
        _bytes(last["written"]),
    ]


def _stored(dimensions: Mapping[str, Any]) -> list[str]:
    """Of ranks and arrays the sizes of what one commit consists of."""
    found = []
    for name in ("ranks", "arrays"):
        if name in dimensions:
            points = dimensions[name]["points"]
            numbers = [point["number"] for point in points]
            rows = [
                [
                    what,
                    *(_size(what, point["sizes"][what]) for point in points),
                    _exponent(numbers, [p["sizes"][what] for p in points]),
                ]
                for what in points[0]["sizes"]
            ]
            found.append(f"**Stored**, by {name}:\n\n" + _markdown(["", *(f"{n:,}" for n in numbers), "~"], rows))
    return found


def _budget(dimensions: Mapping[str, Any]) -> list[str]:
    """The largest commit, in words."""
    points = [point for name in ("ranks", "arrays") if name in dimensions for point in dimensions[name]["points"]]
    if not points:
        return []
    largest = max(points, key=lambda point: point["ranks"] * point["arrays"])
    commit = largest["operations"]["commit"]
    text = (
        f"Commit of {largest['ranks']:,} ranks x {largest['arrays']:,} arrays, {largest['ranks'] * largest['arrays']:,} chunks:"
        f" {_seconds(commit['seconds'])}, {_bytes(commit['peak'])} of memory, manifest of {largest['sizes']['manifest']:,} bytes."
    )
    return [text]


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def _exponent(numbers: Sequence[float], values: Sequence[float]) -> str:
    found = exponent(numbers, values)
    return "–" if found is None else f"n^{found:.2f}"


def _size(what: str, value: int) -> str:
    return f"{value:,}" if what == "files" else _bytes(value)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
