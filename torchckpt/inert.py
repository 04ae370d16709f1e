"""Pickles as descriptions: what a file's instructions would make, without making it.

A pickle is a program that may call whatever it names. Here its instructions build inert descriptions only: a class is its
name, an object its class's name with its arguments and its state. Nothing is imported, looked up or called. What is
named must be on the caller's list all the same, so that a file with anything else in it is refused by name.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptcore.errors import InvalidRecord


@dataclass(frozen=True)
class Named:
    """Something that the file names, by its name."""

    name: str


@dataclass
class Made:
    """What calling `kind` with `args` and setting `state` would make."""

    kind: str
    args: Any
    state: Any = None


@dataclass
class Pairs:
    """A dictionary: its keys need not be hashable here."""

    items: list[tuple[Any, Any]] = field(default_factory=list)


_MARK = object()
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": lambda: (),
    "EMPTY_LIST": list,
    "EMPTY_DICT": Pairs,
    "MARK": lambda: _MARK,
}
_LITERALS = frozenset(
    (
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    )
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def describe(data: bytes, allowed: Collection[str], *, where: str) -> Any:
    """What the instructions describe. Raises `InvalidRecord` for names that are not `allowed`, and for rare instructions."""
    machine = _Machine(allowed, where)
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name == "STOP":
                return machine.stack.pop()
            machine.step(operation.name, argument)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidRecord(f"{where}: not a pickle of plain data: {str(error)[:300]}") from error
    raise InvalidRecord(f"{where}: ends too early")


class _Machine:
    """A stack and a memo, as the instructions expect them."""

    def __init__(self, allowed: Collection[str], where: str) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._allowed, self._where = allowed, where

    def step(self, name: str, argument: Any) -> None:
        """Follow one instruction."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _TUPLES:
            self.stack.append(tuple(self._take(_TUPLES[name])))
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name not in ("PROTO", "FRAME"):
            getattr(self, f"_{name.lower()}", self._refuse)(name, argument)

    def _take(self, count: int) -> list[Any]:
        taken = self.stack[len(self.stack) - count :]
        if len(taken) != count or any(item is _MARK for item in taken):
            raise ValueError("a value is missing")
        del self.stack[len(self.stack) - count :]
        return taken

    def _marked(self) -> list[Any]:
        """What lies above the last mark, which goes too."""
        at = next(index for index in range(len(self.stack) - 1, -2, -1) if index < 0 or self.stack[index] is _MARK)
        if at < 0:
            raise ValueError("a mark is missing")
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken

    def _refuse(self, name: str, _: Any) -> None:
        raise InvalidRecord(f"{self._where}: has the instruction {name}, which plain data does not need")

    def _name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a name is no text")
        if f"{module}.{name}" not in self._allowed:
            raise InvalidRecord(
                f"{self._where}: names {f'{module}.{name}'[:200]!r}, which is no part of what is expected there. Nothing of it"
                " was run; do not load this file by other means unless you trust who wrote it"
            )
        self.stack.append(Named(f"{module}.{name}"))

    def _global(self, _: str, argument: str) -> None:
        self._name(*argument.split(" ", 1))

    def _stack_global(self, *_: Any) -> None:
        self._name(*self._take(2))

    def _reduce(self, *_: Any) -> None:
        kind, arguments = self._take(2)
        self.stack.append(Made(kind.name, arguments))

    _newobj = _reduce

    def _build(self, *_: Any) -> None:
        (state,) = self._take(1)
        if not isinstance(self.stack[-1], Made):
            raise TypeError("a state is set on what is no object")
        self.stack[-1].state = state

    def _tuple(self, *_: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _append(self, *_: Any) -> None:
        self._extend(self._take(1))

    def _appends(self, *_: Any) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("items are added to what is no list")
        self.stack[-1].extend(items)

    def _setitem(self, *_: Any) -> None:
        self._put(self._take(2))

    def _setitems(self, *_: Any) -> None:
        self._put(self._marked())

    def _put(self, flat: list[Any]) -> None:
        if not isinstance(self.stack[-1], Pairs):
            raise TypeError("items are set in what is no dictionary")
        self.stack[-1].items.extend(zip(flat[::2], flat[1::2], strict=True))
