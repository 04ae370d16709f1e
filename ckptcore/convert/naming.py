"""Names of Flax's modules as names of torch's: pure.

Names are dotted. In a pattern `*` stands for text without a dot. A leading `*.` in a rule's pattern stands for
the path of a module, however long, or none: that path is renamed by the user's `names`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ckptcore.errors import CallError

Captured = tuple[str | None, tuple[str, ...]]
"""The module's path (None if the pattern has no leading `*.`) and the texts of the other stars."""


@dataclass(frozen=True)
class Names:
    """Prefixes of Flax's module paths, such as `blocks_*.attn`, and what they are in torch: `blocks.*.attn`.

    Of several that fit, the one with the most parts counts, then the one with the most text beside its stars. What follows
    the prefix stays. The empty text is the prefix of all.
    """

    prefixes: Mapping[str, str]

    def __post_init__(self) -> None:
        for flax, torch in self.prefixes.items():
            if not isinstance(flax, str) or not isinstance(torch, str):
                raise CallError(f"names {flax!r}: {torch!r}: expected texts, such as 'Dense_0': 'fc1'")
            if flax.count("*") != torch.count("*"):
                raise CallError(f"names {flax!r}: {torch!r}: as many '*' are needed on the right as on the left")

    def torch(self, module: str) -> str:
        """The torch name of Flax's `module`."""
        flax = self.prefix(module)
        match = None if flax is None else _prefix(flax).match(module)
        if flax is None or match is None:
            return module
        renamed = fill(self.prefixes[flax], match.groups())
        return ".".join(part for part in (renamed, module[match.end() :].removeprefix(".")) if part)

    def prefix(self, module: str) -> str | None:
        """The prefix that counts for Flax's `module`; None if none fits."""
        ordered = sorted(self.prefixes, key=lambda text: (-text.count("."), text.count("*") - len(text), text))
        return next((flax for flax in ordered if _prefix(flax).match(module) is not None), None)


def capture(pattern: str, name: str) -> Captured | None:
    """What the stars of a rule's `pattern` stand for in `name`; None if it does not fit."""
    if not name.endswith(pattern.rpartition("*")[2].removeprefix(".")):
        return None  # most do not fit, and this says so fastest
    match = _whole(pattern).fullmatch(name)
    if match is None:
        return None
    if not pattern.startswith("*."):
        return None, match.groups()
    module, *rest = match.groups()
    return (module or "").removesuffix("."), tuple(rest)


def render(pattern: str, module: str | None, stars: tuple[str, ...]) -> str:
    """The name that `pattern` gives for what was captured."""
    if module is None:
        return fill(pattern, stars)
    return ".".join(part for part in (module, fill(pattern.removeprefix("*."), stars)) if part)


def stars(pattern: str) -> tuple[bool, int]:
    """Whether a pattern has a leading `*.`, and how many other stars."""
    return pattern.startswith("*."), pattern.removeprefix("*.").count("*")


def fill(pattern: str, texts: tuple[str, ...]) -> str:
    """`pattern` with its stars replaced, in order."""
    rest = iter(texts)
    return re.sub(r"\*", lambda _: next(rest), pattern)


@cache
def _prefix(pattern: str) -> re.Pattern[str]:
    return re.compile(_stars(pattern) + r"(?=\.|$)" if pattern else "")


@cache
def _whole(pattern: str) -> re.Pattern[str]:
    if pattern.startswith("*."):
        return re.compile(r"((?:.+\.)?)" + _stars(pattern.removeprefix("*.")))
    return re.compile(_stars(pattern))


def _stars(pattern: str) -> str:
    return r"([^.]+)".join(re.escape(part) for part in pattern.split("*"))
