"""Is a committed checkpoint whole? Shallow: records and files. Deep: every byte (spec: verification)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.digests import check, component_digest
from ckptcore.errors import Damaged, DamageError, Retired, UnsupportedFormat
from ckptcore.history import History
from ckptcore.inspect.streaming import batches
from ckptcore.names import GenerationId
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes, exists, has_size
from ckptcore.workers import Workers

_LED = ("captured", "topology", "parent", "parent_manifest", "versions", "metadata")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; where it is known, the object, the rank that delivered it, and the leaf whose bytes are wrong."""

    text: str
    key: str | None = None
    rank: int | None = None
    leaf: StoredLeaf | None = None


@dataclass(frozen=True)
class Verification:
    """What was found, nothing in a whole checkpoint. `bytes_read` counts array bytes, deep only."""

    generation: GenerationId
    depth: Literal["shallow", "deep"]
    found: tuple[Problem, ...]
    bytes_read: int

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, in words."""
        return tuple(problem.text for problem in self.found)

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.found


def verify(
    checkpoint: Checkpoint,
    *,
    deep: bool = False,
    components: Collection[str] | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Verification:
    """Check a commit against its manifest and report every problem. `components`: what a deep verification reads, all by default.

    `progress` is told of array bytes as they are read, of `total_bytes` in all if the checkpoint is whole.
    Raises `StoreError` if that could not be found out, and `Retired` where retention has taken what is missing.
    """
    problems = list(_shallow_problems(checkpoint))
    read = 0
    if deep and not problems:
        for leaf in _leaves(checkpoint, checkpoint.manifest.components if components is None else components):
            try:
                read += _read_all(checkpoint, leaf, progress)
            except DamageError as error:
                _raise_unsupported(error)
                problems.append(Problem(str(error), leaf=leaf))
    if problems:
        _raise_retired(checkpoint, problems[0].text)
    return Verification(checkpoint.generation, "deep" if deep else "shallow", tuple(problems), read)


def total_bytes(checkpoint: Checkpoint) -> int:
    """The array bytes that a deep verification reads."""
    return sum(entry.bytes for entry in checkpoint.manifest.components.values())


def check_whole(checkpoint: Checkpoint) -> None:
    """Raise a `DamageError` unless the shallow verification finds nothing; `Retired` if retention was faster."""
    for problem in _shallow_problems(checkpoint):
        _raise_retired(checkpoint, problem.text)
        raise Damaged(f"generation {checkpoint.generation}: {problem.text}")


def record(checkpoint: Checkpoint, found: Verification, *, clock: Clock) -> records.Note:
    """Write a `verified` or a `damaged` note."""
    text = records.clip("; ".join(found.problems))
    kind = "verified" if found.ok else "damaged"
    run_id = checkpoint.manifest.run_id
    return notes.write(checkpoint.store, run_id, checkpoint.generation, kind, clock=clock, depth=found.depth, text=text)


def _shallow_problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    try:
        homes = [(home, home.roster) for home in checkpoint.homes()]
        for component in checkpoint.manifest.components:
            yield from map(Problem, _component_problems(checkpoint, component))
    except DamageError as error:
        _raise_unsupported(error)
        yield Problem(str(error))
        return
    with Workers(checkpoint.store.limits.requests, "verify") as pool:
        for home, roster in homes:
            yield from _home_problems(home, roster, pool)


def _home_problems(home: Checkpoint, roster: records.Roster, pool: Workers) -> Iterator[Problem]:
    """What is wrong with the receipts, and with the files that they list: all are looked at, many at a time."""
    store = home.store
    read = pool.map(lambda delivered: receipt(store, delivered), roster.ranks)
    receipts = [found for found in read if isinstance(found, records.Receipt)]
    yield from (found for found in read if isinstance(found, Problem))
    yield from lost_files(store, home.generation, receipts, pool)
    if len(receipts) == len(roster.ranks):
        yield from map(Problem, _manifest_problems(home.manifest, receipts))
    root = f"{names.state_prefix(home.generation)}manifest.ocdbt"
    if any(delivered.database for delivered in roster.ranks) and not exists(store, root):
        yield Problem(f"{root} is missing, the root of the database of all arrays", root)


def lost_files(store: Store, generation: GenerationId, receipts: Sequence[records.Receipt], pool: Workers) -> Iterator[Problem]:
    """The files that receipts of a generation list, and that are not there or have another size."""
    listed = [file for receipt in receipts for file in _files(generation, receipt)]
    yield from (problem for problem in pool.map(lambda file: _file_problem(store, *file), listed) if problem)


def _component_problems(checkpoint: Checkpoint, component: str) -> Iterator[str]:
    entry = checkpoint.manifest.components[component]
    if checkpoint.facts(component) != (entry.kind, entry.scope):
        yield f"component {component!r}: its layout has another kind or scope than the manifest"
    index = checkpoint.index(component)
    if component_digest(component, {name: leaf.digest for name, leaf in index.leaves.items()}) != entry.digest:
        yield f"component {component!r}: its index does not add up to the digest in the manifest"
    if len(index.leaves) != entry.leaves:
        yield f"component {component!r}: {len(index.leaves)} leaves in the index, {entry.leaves} in the manifest"


def receipt(store: Store, delivered: records.Delivered) -> records.Receipt | Problem:
    """A rank's receipt, or what is wrong with it."""
    key = delivered.receipt.key
    data = bounded_bytes(store, key, delivered.receipt.size)
    if data is None:
        return Problem(f"{key} is missing", key, delivered.rank)
    try:
        check(data, delivered.receipt.digest, what=key)
        return records.decode(data, records.Receipt, key=key)
    except DamageError as error:
        _raise_unsupported(error)
        return Problem(str(error), key, delivered.rank)


def whole_receipt(store: Store, delivered: records.Delivered) -> records.Receipt:
    """A rank's receipt. Raises a `DamageError` unless it is what the roster says."""
    found = receipt(store, delivered)
    if isinstance(found, Problem):
        raise Damaged(found.text)
    return found


def _files(generation: GenerationId, receipt: records.Receipt) -> Iterator[tuple[int, str, int]]:
    """The files that a rank vouches for: `(rank, key, size)`."""
    if receipt.values is not None:
        yield receipt.rank, receipt.values.key, receipt.values.size
    if receipt.database is not None:
        prefix = names.database_prefix(generation, receipt.rank, receipt.database)
        yield from ((receipt.rank, prefix + file.path, file.size) for file in receipt.files)


def _file_problem(store: Store, rank: int, key: str, size: int) -> Problem | None:
    if has_size(store, key, size):
        return None
    found = store.size(key)
    return Problem(f"{key} " + ("is missing" if found is None else f"has {found} bytes, rank {rank} wrote {size}"), key, rank)


def _manifest_problems(manifest: records.Manifest, receipts: Sequence[records.Receipt]) -> Iterator[str]:
    """What the manifest says otherwise than the receipts it was derived from: no other record certifies the manifest."""
    lead = receipts[0].lead
    stated = {field: getattr(lead, field) for field in _LED if lead is not None}
    stated |= {field: getattr(receipts[0], field) for field in ("claim", "guarantee", "requires")}
    for name, entry in manifest.components.items():
        if entry.source is None:
            stated[f"components.{name}.bytes"] = sum(r.components[name].bytes for r in receipts if name in r.components)
    found = {field: getattr(manifest, field, None) for field in stated}
    found |= {f"components.{name}.bytes": entry.bytes for name, entry in manifest.components.items() if entry.source is None}
    key = names.ledger_key(GenerationId.parse(manifest.generation))
    yield from (f"{key}: `{field}` differs from what the receipts say" for field in stated if found[field] != stated[field])


def _raise_unsupported(error: DamageError) -> None:
    """A record of a newer format is no damage: nothing is known about it."""
    if isinstance(error, UnsupportedFormat):
        raise error


def _raise_retired(checkpoint: Checkpoint, problem: str) -> None:
    """What retention takes while it is looked at is not damaged (spec: O-14). Of the newest base it takes nothing (K-7)."""
    store, generation = checkpoint.store, checkpoint.generation
    if ledger.is_retired(store, generation) and History.load(store).newest_base() != generation:
        raise Retired(f"generation {generation} was retired, and that is no damage: {problem}. Take a newer one")


def _leaves(checkpoint: Checkpoint, components: Collection[str]) -> Iterator[StoredLeaf]:
    for component in components:
        for rank in checkpoint.ranks(component):
            yield from checkpoint.leaves(component, rank).values()


def _read_all(checkpoint: Checkpoint, leaf: StoredLeaf, progress: Callable[[int], object]) -> int:
    """Read a leaf, an array a bounded number of chunks at a time; reading checks it. Returns bytes of arrays."""
    if not isinstance(leaf.record, ArrayLeaf):
        checkpoint.value(leaf)
        return 0
    array, _ = checkpoint.array(leaf)
    if leaf.record.alias is not None:
        return 0  # its bytes are those of the array it is tied to
    total = 0
    for boxes in batches(array):
        read = sum(part.nbytes for part in checkpoint.read([(leaf, boxes)])[0])
        progress(read)
        total += read
    return total
