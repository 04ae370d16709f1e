"""Which chunks of which leaf of which rank a problem of a commit is about. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptcore import names, records
from ckptcore.array_spec import CHECKSUM_BYTES, OCDBT_CONFIG
from ckptcore.digests import check
from ckptcore.errors import DamageError
from ckptcore.inspect.findings import Finding
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.storereads import bounded_bytes
from ckptcore.verify import Problem

MOST_CHUNKS = 100
"""How many damaged chunks of one leaf are looked for."""
MOST_LEAVES = 20
"""How many leaves are named whose chunks lie in a lost file."""


def chunks_of(checkpoint: Checkpoint, problem: Problem) -> Iterator[Finding]:
    """Which chunks of which leaf of which rank a problem is about."""
    if problem.leaf is not None:
        yield from _unreadable_chunks(checkpoint, problem.leaf)
    elif problem.key is not None and problem.rank is not None and "/d/" in problem.key:
        yield from _lost_chunks(checkpoint, problem.key, problem.rank)


def _unreadable_chunks(checkpoint: Checkpoint, leaf: StoredLeaf) -> Iterator[Finding]:
    """The chunks of a leaf that cannot be read, by the rank that wrote them."""
    if not isinstance(leaf.record, records.ArrayLeaf):
        return
    bad = _failing(checkpoint, leaf)
    by_rank: dict[int | None, list[int]] = {}
    writers = _writers(checkpoint, leaf)
    for chunk in bad:
        by_rank.setdefault(writers.get(chunk), []).append(chunk)
    for rank, chunks in by_rank.items():
        written = "" if rank is None else f", written by rank {rank},"
        yield Finding(
            kind="chunks",
            text=f"{_counted(chunks)} of {leaf.stored_target!r}{written} cannot be read",
            clause="O-10, O-11",
            generation=checkpoint.generation,
            rank=rank,
            leaf=leaf.stored_target,
            chunks=tuple(chunks),
        )


def _failing(checkpoint: Checkpoint, leaf: StoredLeaf) -> list[int]:
    """The chunks that cannot be read, at most `MOST_CHUNKS`. None of an array whose metadata is what is damaged."""
    try:
        array, _ = checkpoint.array(leaf)
    except DamageError:
        return []
    bad = []
    for chunk in range(array.grid.size):
        try:
            checkpoint.read([(leaf, [array.grid.cell(chunk)])])
        except DamageError:
            bad.append(chunk)
        if len(bad) >= MOST_CHUNKS:
            break
    return bad


def _lost_chunks(checkpoint: Checkpoint, key: str, rank: int) -> Iterator[Finding]:
    """The chunks that a rank wrote into the database of which a file is lost."""
    home = next((home for home in checkpoint.homes() if key.startswith(names.generation_prefix(home.generation))), checkpoint)
    receipt = _receipts(home).get(rank)
    if receipt is None:
        return
    written = [(component, name) for component, part in receipt.components.items() for name in part.chunks]
    listed = [found for component, name in written if (found := _in_files(home, receipt, component, name))]
    others = len([file for file in receipt.files if "/" in file.path]) > 1
    where = f"that file or another one of rank {rank}" if others else "that file"
    for name, chunks in listed[:MOST_LEAVES]:
        text = f"{_counted(chunks)} of {name!r}, written by rank {rank}, {'lies' if len(chunks) == 1 else 'lie'} in {where}"
        at = {"generation": checkpoint.generation, "rank": rank, "key": key, "leaf": name, "chunks": tuple(chunks)}
        yield Finding(kind="chunks", text=text, clause="O-11", **at)
    if len(listed) > MOST_LEAVES:
        more = f"and chunks of {len(listed) - MOST_LEAVES} more leaves that rank {rank} wrote"
        yield Finding(kind="chunks", text=more, clause="O-11", generation=checkpoint.generation, rank=rank, key=key)


def _in_files(home: Checkpoint, receipt: records.Receipt, component: str, name: str) -> tuple[str, list[int]] | None:
    """The stored name of a leaf, and those of a rank's chunks of it that lie in files: small ones lie in the tree itself."""
    try:
        leaf = home.leaves(component, receipt.rank)[name]
        array, _ = home.array(leaf)
    except (DamageError, KeyError):
        return None  # a finding of its own
    inline = OCDBT_CONFIG["max_inline_value_bytes"]
    numbers = [chunk for chunk, _ in receipt.components[component].chunks[name]]
    large = [chunk for chunk in numbers if array.chunk_bytes(chunk) + CHECKSUM_BYTES > inline]
    return (leaf.stored_name, large) if large else None


def _writers(checkpoint: Checkpoint, leaf: StoredLeaf) -> Mapping[int, int]:
    """Chunk of a leaf → the rank whose receipt lists it. Empty where receipts cannot be read."""
    source = checkpoint.manifest.components[leaf.component].source
    home = next((home for home in checkpoint.homes() if str(home.generation) == source), checkpoint)
    name = leaf.record.alias or leaf.name if isinstance(leaf.record, records.ArrayLeaf) else leaf.name
    found = {}
    for rank, receipt in _receipts(home).items():
        part = receipt.components.get(leaf.component)
        if part is not None and (leaf.rank is None or leaf.rank == rank):
            found |= {chunk: rank for chunk, _ in part.chunks.get(name, [])}
    return found


def _receipts(home: Checkpoint) -> dict[int, records.Receipt]:
    """The receipts of a commit that can be read, by rank."""
    found = {}
    for delivered in home.roster.ranks:
        key = delivered.receipt.key
        try:
            data = bounded_bytes(home.store, key, delivered.receipt.size) or b""
            check(data, delivered.receipt.digest, what=key)
            found[delivered.rank] = records.decode(data, records.Receipt, key=key)
        except DamageError:
            continue  # a finding of its own
    return found


def _counted(chunks: list[int]) -> str:
    shown = ", ".join(map(str, chunks[:8])) + (f", … ({len(chunks)} in all)" if len(chunks) > 8 else "")
    return f"chunk{'' if len(chunks) == 1 else 's'} {shown}"
