"""What the cells that one process runs have in common: options, states, and what starts the adapters' processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ckpt_conformance.cases.corpus import Corpus
from ckpt_conformance.jobs.adapter import Adapter
from ckpt_conformance.jobs.beginnings import Beginnings
from ckpt_conformance.jobs.processes import Launcher

FILE = "file"
ARROW = "→"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run was asked for.

    Attributes:
      adapters: one, or two that are crossed.
      scenarios: the folder of scenarios.
      work: the folder in which cells are run; whoever made it removes it.
      store: `file`, or the URL `s3://bucket/prefix` below which every cell gets a prefix of its own.
      only, quick: which cases.
      dir: where failed cells are kept, or with `keep` all of them.
      expected: column → case → why it is expected to fail.

    """

    adapters: tuple[Adapter, ...]
    scenarios: str
    work: str
    store: str = FILE
    endpoint: str | None = None
    region: str | None = None
    only: tuple[str, ...] = ()
    quick: bool = False
    dir: str | None = None
    keep: bool = False
    expected: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of store: `file` or `s3`."""
        return self.store.partition(":")[0]

    @property
    def place(self) -> str:
        """The URL of the prefix below which the cells of this run have theirs, on an object store."""
        return "/".join((self.store.rstrip("/"), Path(self.work).name))

    @property
    def storage(self) -> dict[str, str]:
        """What the URLs of runs cannot say."""
        said = {"endpoint": self.endpoint, "region": self.region}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def environment(self) -> dict[str, str]:
        """What adapters find in their environment: credentials that a test server does not check, if an endpoint is given."""
        if self.endpoint is None:
            return {}
        return {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}

    def to_json(self) -> str:
        """For a process that runs a part of the cells."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        found = json.loads(text)
        adapters = tuple(Adapter(**adapter) for adapter in found.pop("adapters"))
        return cls(adapters=adapters, only=tuple(found.pop("only")), **found)


@dataclass(frozen=True)
class Column:
    """The adapters of a cell: `a`, and `b` for a case with two roles."""

    a: Adapter
    b: Adapter

    @property
    def name(self) -> str:
        """`jax`, or `jax→torch`."""
        return self.a.name if self.a is self.b else f"{self.a.name}{ARROW}{self.b.name}"


def columns(adapters: Sequence[Adapter], roles: int) -> list[Column]:
    """The columns in which a case of so many roles is run: each adapter, or with two roles and adapters both directions."""
    if roles == 2 and len(adapters) == 2:
        first, second = adapters
        return [Column(first, second), Column(second, first)]
    return [Column(adapter, adapter) for adapter in adapters]


class Bench:
    """Where cells are run, in a folder of its own. Leaving the context ends every process."""

    def __init__(self, options: Options, corpus: Corpus) -> None:
        self.options = options
        self.states: Mapping[str, Any] = corpus.states
        self._launchers: dict[str, Launcher] = {}
        self._stack = ExitStack()
        self._unique = uuid.uuid4().hex
        self.folder = Path(options.work) / self._unique
        self.beginnings = Beginnings(self.folder / "beginnings")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process."""
        self._stack.close()

    def launcher(self, adapter: Adapter) -> Launcher:
        """What starts the adapter's processes; made when it is first needed."""
        if adapter.given not in self._launchers:
            launcher = adapter.launcher(self.options.environment)
            self._stack.callback(launcher.close)
            self._launchers[adapter.given] = launcher
        return self._launchers[adapter.given]

    def url(self, folder: Path, run: str) -> str:
        """The URL of a cell's run: in its folder, or below a prefix of a bucket that no other run of the suite uses."""
        if self.options.kind == FILE:
            return (folder / "store" / run).as_uri()
        return "/".join((self.options.place, self._unique, folder.relative_to(self.folder).as_posix(), run))
