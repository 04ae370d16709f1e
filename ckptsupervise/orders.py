"""What is to be started on a node for an attempt, and what each of its ranks finds in its environment. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptcore import heartbeat, launch
from ckptsupervise.rank import SUPERVISOR

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Names the devices that a process sees, in the order in which it counts them."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Of a job of several nodes, the part of this one: its ranks begin at `first` of `size` in all, on the `index`-th of `nodes`.

    `master` and `coordinator`: `host:port` on the first node, where torch's and JAX's ranks meet.
    """

    first: int
    size: int
    index: int
    nodes: int
    master: str
    coordinator: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be started: `command` once for each of `slots` of the node's `places`, in the order of ranks.

    `group`: None if these are all ranks of the job.
    """

    command: Sequence[str]
    attempt: int
    slots: Sequence[int]
    places: int
    folder: Path
    """Of this attempt's heartbeats."""
    group: Group | None = None

    @property
    def ranks(self) -> range:
        """The ranks that are started here."""
        first = self.group.first if self.group else 0
        return range(first, first + len(self.slots))


def environment(order: Order, coordinator: str, outer: Mapping[str, str]) -> list[dict[str, str]]:
    """What each rank finds in its environment besides what the engine puts there, in the order of ranks."""
    shared = {
        heartbeat.FOLDER: str(order.folder),
        launch.ATTEMPT: str(order.attempt),
        launch.SLOTS: str(order.places),
        launch.COORDINATOR: coordinator,
        SUPERVISOR: str(os.getpid()),
        **visible(order.slots, outer),
    }
    ranks = [{}] * len(order.slots) if order.group is None else [_placed(order.group, rank) for rank in order.ranks]
    return [{**shared, **placed, launch.SLOT: str(slot)} for slot, placed in zip(order.slots, ranks, strict=True)]


def _placed(group: Group, rank: int) -> dict[str, str]:
    """What the engine, which knows of this node alone, has to be corrected in. Rank 0 itself listens where ranks meet."""
    host, _, port = group.master.rpartition(":")
    return {
        "RANK": str(rank),
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(group.size),
        "ROLE_WORLD_SIZE": str(group.size),
        "GROUP_RANK": str(group.index),
        "GROUP_WORLD_SIZE": str(group.nodes),
        "MASTER_ADDR": host.removeprefix("[").removesuffix("]"),
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def visible(slots: Sequence[int], outer: Mapping[str, str]) -> dict[str, str]:
    """The devices of `slots`, so that the n-th local rank, which takes its n-th device, gets that of its slot.

    Nothing if all slots are in use, or the devices that the supervisor sees are fewer.
    """
    if list(slots) == list(range(len(slots))):
        return {}
    seen = outer.get(VISIBLE)
    if seen is None:
        return {VISIBLE: ",".join(str(slot) for slot in slots)}
    devices = seen.split(",")
    return {VISIBLE: ",".join(devices[slot].strip() for slot in slots)} if max(slots) < len(devices) else {}
