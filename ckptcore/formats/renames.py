"""Rename rules as data: from the names in a file to those of a component, and back (pure).

A rule maps a dotted prefix to another: `{"model.layers.*.mlp": "blocks.*.ffn"}` takes
`model.layers.3.mlp.up.weight` to `blocks.3.ffn.up.weight`. `*` stands for one element; the other side has as many. The
empty text is the empty prefix, so `{"model": ""}` takes `model` away. A rule to `None` leaves out what it matches.
Of several rules that match, the one with the most elements counts, then the one with the fewest `*`. A
name that no rule matches stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckptcore.errors import CallError, StructureMismatch
from ckptcore.geometry import SHOWN

Names = Mapping[str, str | None]
"""Rules, as a caller gives them."""
_SHOWN = 200
"""Characters of a name in an error."""


@dataclass(frozen=True)
class _Rule:
    pattern: tuple[str, ...]
    result: tuple[str, ...] | None

    @property
    def rank(self) -> tuple[int, int]:
        """The higher, the more exact."""
        return len(self.pattern), -self.pattern.count("*")

    def matches(self, elements: Sequence[str]) -> bool:
        return len(elements) >= len(self.pattern) and all(
            wanted in ("*", found) for wanted, found in zip(self.pattern, elements, strict=False)
        )

    def apply(self, elements: Sequence[str]) -> str | None:
        if self.result is None:
            return None
        stars = iter(found for wanted, found in zip(self.pattern, elements, strict=False) if wanted == "*")
        head = [next(stars) if element == "*" else element for element in self.result]
        return ".".join([*head, *elements[len(self.pattern) :]])


@dataclass(frozen=True)
class Renames:
    """Rules, most exact first. Make one with `Renames.of`, or `Renames.back` for the other direction."""

    rules: tuple[_Rule, ...] = field(default=())

    @staticmethod
    def of(names: Names | None) -> Renames:
        """The rules of `names`. Raises `CallError` for what is no rule."""
        rules = [_Rule(_elements(pattern), _result(pattern, result)) for pattern, result in _items(names)]
        return Renames(tuple(sorted(rules, key=lambda rule: rule.rank, reverse=True)))

    @staticmethod
    def back(names: Names | None) -> Renames:
        """The rules of `names` the other way round. What is left out is told by the same pattern in both directions."""
        return Renames.of(dict((pattern, None) if result is None else (result, pattern) for pattern, result in _items(names)))

    def __call__(self, name: str) -> str | None:
        """The new name; None when it is left out."""
        elements = _elements(name)
        rule = next((rule for rule in self.rules if rule.matches(elements)), None)
        return name if rule is None else rule.apply(elements)

    def table(self, known: Iterable[str], *, where: str) -> dict[str, str]:
        """New name → old name of all that are not left out. Raises `StructureMismatch` if two become one."""
        table: dict[str, str] = {}
        twice: list[str] = []
        for name in known:
            new = self(name)
            if new is not None and table.setdefault(new, name) != name:
                twice.append(f"{shown(table[new])} and {shown(name)} both become {shown(new)}")
        if twice:
            more = [f"and {len(twice) - SHOWN} more"] if len(twice) > SHOWN else []
            raise StructureMismatch(f"{where}: `names` gives several tensors one name:", [*twice[:SHOWN], *more])
        return table


def shown(name: str) -> str:
    """A name in an error: quoted, and cut where it is long."""
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}…"


def _items(names: Names | None) -> list[tuple[str, str | None]]:
    if names is not None and not isinstance(names, Mapping):
        raise CallError(f"names is {type(names).__name__}: expected a mapping such as {{'model.layers.*': 'layers.*'}}")
    for pattern, result in (names or {}).items():
        if not isinstance(pattern, str) or not (result is None or isinstance(result, str)):
            raise CallError(
                f"names has the rule {pattern!r}: {result!r}; a rule maps a text to a text, or to None to leave it out"
            )
    return list((names or {}).items())


def _result(pattern: str, result: str | None) -> tuple[str, ...] | None:
    if result is None:
        return None
    if _elements(pattern).count("*") != _elements(result).count("*"):
        raise CallError(f"names has the rule {pattern!r}: {result!r}; both sides need the same number of '*'")
    return _elements(result)


def _elements(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")) if name else ()
