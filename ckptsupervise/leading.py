"""One attempt on several nodes, as the node that leads it has it: its own ranks, and through links those of the others.

It looks like an attempt on one node to whoever watches it: which rank failed first, hangs or is slow is found among all of them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from ckptcore import heartbeat
from ckptcore.clock import Clock
from ckptcore.heartbeat import Beat
from ckptsupervise import stacks
from ckptsupervise.attempt_parts import Parts
from ckptsupervise.ending import LostNode
from ckptsupervise.endpoint import Endpoint
from ckptsupervise.engine import Gone, Running
from ckptsupervise.links import Link, Links, merged
from ckptsupervise.watching import Asking
from ckptsupervise.wire import Finish, Kill, Signal, Stacks


class RunningOnNodes:
    """`Running` on all nodes: `local` are this one's ranks, `links` lead to the others."""

    def __init__(self, local: Running, links: Links, *, clock: Clock) -> None:
        self._local, self._links, self._clock = local, links, clock

    @property
    def launched(self) -> float:
        """When the ranks of this node were started: those of the others were told to at the same moment."""
        return self._local.launched

    @property
    def over(self) -> bool:
        """Whether no rank runs on any node that can be reached. Asked at each look."""
        self._links.turn()
        return self._local.over and all(link.over for link in self._links.all())

    @property
    def error(self) -> str:
        """Of this node; another one that cannot start ranks is lost."""
        return self._local.error

    def processes(self) -> dict[int, int]:
        """Of all nodes."""
        return {**self._local.processes(), **merged(self._links.all())}

    def gone(self) -> list[Gone]:
        """Of all nodes."""
        found = [each for link in self._links.all() for each in link.gone]
        return sorted([*self._local.gone(), *found], key=lambda each: each.at)

    def words(self, rank: int) -> str:
        """Of another node's ranks they are known at the end."""
        link = self._link(rank)
        return self._local.words(rank) if link is None else link.words.get(rank, "")

    def send(self, number: int, ranks: Sequence[int]) -> None:
        """To each on its node."""
        for link in self._links.all():
            theirs = [rank for rank in ranks if rank in link.ranks]
            if theirs:
                link.tell(Signal(number=number, ranks=theirs))
        self._local.send(number, self._own(ranks))

    def kill(self, ranks: Sequence[int] | None = None) -> None:
        """To each on its node."""
        for link in self._links.all():
            theirs = None if ranks is None else [rank for rank in ranks if rank in link.ranks]
            if theirs is None or theirs:
                link.tell(Kill(ranks=theirs))
        if ranks is None or self._own(ranks):
            self._local.kill(None if ranks is None else self._own(ranks))

    def finish(self, timeout: float) -> list[int]:
        """On all nodes at a time; what is left on others is theirs to tell of, and so is not returned."""
        self._links.tell(Finish(timeout=timeout))
        left = self._local.finish(timeout)
        await_finished(self._links, timeout, clock=self._clock)
        return left

    def beats(self, folder: Path) -> list[Beat]:
        """The newest of all ranks."""
        return sorted(
            [*heartbeat.read(folder), *(beat for link in self._links.all() for beat in link.beats)], key=lambda beat: beat.rank
        )

    def unusable(self, folder: Path) -> str:
        """Why no beats can be written on a node."""
        return heartbeat.unusable(folder) or next(
            (f"on {link.member.node}: {link.state.unusable}" for link in self._links.all() if link.state.unusable), ""
        )

    def stacks(self, pids: Mapping[int, int], folder: Path) -> str:
        """The stacks of ranks, each taken on its node: of as many as on one, and of no node that does not answer in time."""
        asked: list[Link] = []
        pids = dict(list(pids.items())[: stacks.MOST])
        for link in self._links.all():
            theirs = [rank for rank in pids if rank in link.ranks]
            if theirs:
                link.tell(Stacks(ranks=theirs))
                asked.append(link)
        own = {rank: pid for rank, pid in pids.items() if self._link(rank) is None}
        text = [stacks.of_ranks(own, folder)] if own else []
        until = self._clock.monotonic() + stacks.SECONDS + stacks.PATIENCE + 1.0
        for link in asked:
            link.wait("stacks", max(0.0, until - self._clock.monotonic()))
            text.append(f"on {link.member.node}:\n{link.stacks or 'not told'}")
        return "\n\n".join(text)

    def lost(self) -> LostNode | None:
        """The node that was lost first, while its ranks ran."""
        return self._links.lost()

    def _own(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if self._link(rank) is None]

    def _link(self, rank: int) -> Link | None:
        return next((link for link in self._links.all() if rank in link.ranks), None)


class AskedOnNodes:
    """The signals that ask a job of several nodes to stop: those of the node that had most."""

    def __init__(self, own: Asking, node: str, links: Links) -> None:
        self._own, self._node, self._links = own, node, links

    @property
    def signals(self) -> Sequence[int]:
        """As many as that node had."""
        counts = [link.state.asked for link in self._links.all()]
        most = max([len(self._own.signals), *counts])
        return list(self._own.signals) + [signal.SIGTERM] * (most - len(self._own.signals))

    def nodes(self) -> list[str]:
        """Whose supervisor was asked to stop."""
        own = [self._node] if self._own.signals else []
        return own + [link.member.node for link in self._links.all() if link.state.asked]


def await_finished(links: Links, timeout: float, *, clock: Clock) -> None:
    """Wait for all that were told to finish within `timeout` seconds: a link that is closed before may take that along."""
    for left in clock.polls(timeout + 5.0, first=0.02, most=0.2):  # they need as long as this one
        if left <= 0 or all(link.finished or link.lost for link in links.all()):
            return


def assemble(parts: Parts, endpoint: Endpoint, links: Links, asked: Asking, *, timeout: float, clock: Clock) -> LostNode | None:
    """Wait until all other members have joined the attempt; who has not, after `timeout` seconds, is lost.

    None as well if somebody was asked to stop meanwhile.
    """
    began = clock.monotonic()
    missing = {member.node: member for member in parts.plan.members[1:]}
    for left in clock.polls(timeout, first=0.02, most=0.2):
        for node, member in list(missing.items()):
            channel = endpoint.take(parts.plan.attempt, member.nonce)
            if channel is not None:
                links.add(Link(member, parts.ranks(node), channel, clock))
                del missing[node]
        if not missing or links.lost() or asked.signals:
            return links.lost()
        if left <= 0:
            break
    message = f"did not join within {timeout:g} s" + (f", nor did {', '.join(sorted(missing)[1:])}" if len(missing) > 1 else "")
    return LostNode(node=min(missing), since=began, message=message)
