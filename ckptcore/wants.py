"""What the ranks of a job restore between them (spec: reading): what is left over is left over by all of them.

Every rank tells the digest of what it wants; if they differ, the lowest rank with each of them tells all of it. Main thread only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ckptcore import canonical, digests, records
from ckptcore.backend import Target
from ckptcore.channel import Channel
from ckptcore.match import Elsewhere
from ckptcore.union import EXCHANGE_TIMEOUT, unite_meshes


@dataclass(frozen=True, kw_only=True)
class Wants:
    """`elsewhere` is what other ranks take, and this one does not; `meshes` are those of all targets."""

    elsewhere: Sequence[Elsewhere] = ()
    meshes: Sequence[records.Mesh] = ()


def tell(target: Target) -> bytes:
    """What a rank says of what it wants: a digest."""
    return digests.digest(_encoded(target)).encode()


def gather(channel: Channel, target: Target, told: Sequence[bytes]) -> Wants:
    """What all ranks want, of which `told` are the digests, in rank order. Every rank calls this."""
    if len(set(told)) == 1:
        return Wants(meshes=target.meshes)
    own = _encoded(target)
    first = told.index(tell(target)) == channel.rank
    sent = channel.gather(zlib.compress(own) if first else b"", timeout=EXCHANGE_TIMEOUT, what="what other ranks restore")
    decoded = [canonical.decode(zlib.decompress(data), what="what another rank restores") for data in sent if data]
    mine = {leaf.name for leaf in target.wanted}
    known = {(name, below) for wants in decoded for name, below in wants["names"] if name not in mine}
    return Wants(elsewhere=sorted(known), meshes=unite_meshes(wants["meshes"] for wants in decoded))


def _encoded(target: Target) -> bytes:
    """The global leaves that a rank wants, under all their names, and its meshes."""
    wanted = (leaf for leaf in target.wanted if not leaf.rank_scoped)
    names = {(name, leaf.kind == "any") for leaf in wanted for name in (leaf.name, *leaf.tied)}
    meshes: list[Any] = [msgspec.to_builtins(mesh) for mesh in target.meshes]
    return canonical.encode({"names": [list(entry) for entry in sorted(names)], "meshes": meshes})
