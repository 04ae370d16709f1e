"""Which arrays of Flax make which array of torch: pure.

Both sides' names are known, those of the checkpoint and those of the target, so one search serves both directions.
Every name of Flax and every rule give a name in torch; a pair is what torch has, with axes that fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ckptcore.convert import axes, naming
from ckptcore.convert.axes import Layout
from ckptcore.convert.naming import Captured, Names
from ckptcore.convert.rules import ASK, FLAX_TORCH, Rule

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """One torch array, the Flax arrays that it consists of, along its first axis, and how each is arranged there."""

    torch: str
    flax: tuple[str, ...]
    layouts: tuple[Layout, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each part begins along torch's first axis."""
        rows = (layout.shape[0] if len(self.flax) > 1 else 0 for layout in self.layouts)
        return tuple(accumulate(rows, initial=0))[:-1]

    @property
    def shape(self) -> Shape:
        """The torch array's shape."""
        first = self.layouts[0].shape if self.layouts else ()
        return (sum(layout.shape[0] for layout in self.layouts), *first[1:]) if len(self.layouts) > 1 else first


@dataclass
class Pairing:
    """`pairs` by torch's name. `problems` says by torch's name why there is none; `names` what each of Flax's leaves could be.

    `misfits` are those of torch's names for which Flax has something that does not fit, or too much. `applied` are the
    user's own rules and prefixes that fit something on both sides.
    """

    pairs: dict[str, Pair] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    misfits: set[str] = field(default_factory=set)
    names: dict[str, list[str]] = field(default_factory=dict)
    applied: list[Rule | str] = field(default_factory=list)

    @property
    def used(self) -> set[str]:
        """Flax's names that are part of a pair."""
        return {name for pair in self.pairs.values() for name in pair.flax}

    def could_be(self, torch: set[str]) -> set[str]:
        """Flax's names that may be part of one of the `torch` names."""
        return {name for name, found in self.names.items() if torch & set(found)}

    def is_misfit(self, flax: str) -> bool:
        """Whether torch has something for one of Flax's names that does not fit."""
        return not self.misfits.isdisjoint(self.names.get(flax, ()))


@dataclass(frozen=True)
class _Candidate:
    rule: Rule
    flax: tuple[str, ...]


def pair(
    flax: Mapping[str, Shape], torch: Mapping[str, Shape | None], *, rules: Sequence[Rule], names: Mapping[str, str]
) -> Pairing:
    """Pair the arrays of both sides, given by name and shape; a shape of torch's may be unknown (None).

    Of `rules`, which go before `FLAX_TORCH`, and of those, each that fits counts: if two put different things
    into one array, or one thing into two arrays by the standard rules, that is a problem.
    """
    own, standard = (_candidates(flax, group, Names(names)) for group in (rules, FLAX_TORCH))
    result = Pairing(names={name: [] for name in flax}, applied=list(_applied(flax, torch, own, rules, Names(names))))
    for found in (own, standard):
        for name, candidates in found.items():
            for candidate in candidates:
                for part in candidate.flax:
                    result.names[part].append(name)
    taken: dict[str, list[str]] = defaultdict(list)
    for name, shape in torch.items():
        tiers = [_fitting(name, found.get(name, []), flax, shape) for found in (own, standard)]
        fitting = tiers[0] or tiers[1]
        if len(fitting) == 1:
            result.pairs[name] = fitting[0]
            for part in fitting[0].flax if not tiers[0] else ():
                taken[part].append(name)
        else:
            candidates = [*own.get(name, []), *standard.get(name, [])]
            result.problems[name] = _ambiguous(fitting) if fitting else _nothing(name, candidates, flax, shape)
            result.misfits.update([name] if candidates else [])
    _refuse_shared(result, taken)
    _add_torch_only(result, [*rules, *FLAX_TORCH])
    return result


def _candidates(flax: Mapping[str, Shape], rules: Sequence[Rule], names: Names) -> dict[str, list[_Candidate]]:
    """By torch name: each rule that leads there, and the leaves of Flax that it takes. All of its parts are there."""
    parts: dict[tuple[int, str, Captured], dict[int, str]] = defaultdict(dict)
    renamed = {name: names.torch(name) for name in {module for leaf in flax for module in _modules(leaf)}}
    for name in flax:
        if rules is FLAX_TORCH and _question(name) is not None:
            continue
        for number, rule in enumerate(rules):
            for part, pattern in enumerate(rule.parts):
                captured = naming.capture(pattern, name)
                if captured is not None:
                    module = None if captured[0] is None else renamed[captured[0]]
                    key = (number, naming.render(rule.torch, module, captured[1]), captured)
                    parts[key][part] = name
    found: dict[str, list[_Candidate]] = defaultdict(list)
    for (number, name, _), taken in parts.items():
        rule = rules[number]
        if len(taken) == len(rule.parts):
            found[name].append(_Candidate(rule, tuple(taken[part] for part in range(len(taken)))))
    return found


def _applied(
    flax: Mapping[str, Shape],
    torch: Mapping[str, Shape | None],
    own: Mapping[str, Sequence[_Candidate]],
    rules: Sequence[Rule],
    names: Names,
) -> Iterator[Rule | str]:
    yield from (candidate.rule for name, candidates in own.items() if name in torch for candidate in candidates)
    yield from (rule for rule in rules if not rule.parts and any(naming.capture(rule.torch, name) for name in torch))
    found = {names.prefix(module) for module in {module for leaf in flax for module in _modules(leaf)}}
    yield from (prefix for prefix in found if prefix is not None)


def _modules(leaf: str) -> Iterator[str]:
    """Every path of a module in which the leaf lies: the outermost is ''."""
    while leaf:
        leaf = leaf.rpartition(".")[0]
        yield leaf


def _fitting(torch: str, candidates: Sequence[_Candidate], flax: Mapping[str, Shape], shape: Shape | None) -> list[Pair]:
    """The different pairs whose axes fit."""
    fitting: dict[object, Pair] = {}
    for candidate in candidates:
        pattern = axes.parse(candidate.rule.axes)
        layouts = [pattern.bind(flax[name], candidate.rule.sizes) for name in candidate.flax]
        found = tuple(layout for layout in layouts if layout is not None)
        if len(found) == len(layouts) and _stackable(found):
            made = Pair(torch, candidate.flax, found)
            if shape is None or made.shape == shape:
                fitting.setdefault((made.flax, tuple(layout.signature for layout in found)), made)
    return list(fitting.values())


def _stackable(layouts: Sequence[Layout]) -> bool:
    """Whether several arrays can lie one after another along their first axis."""
    return len(layouts) < 2 or (bool(layouts[0].shape) and len({layout.shape[1:] for layout in layouts}) == 1)


def _refuse_shared(result: Pairing, taken: Mapping[str, Sequence[str]]) -> None:
    for part, users in taken.items():
        if len(users) > 1:
            for name in users:
                others = ", ".join(repr(other) for other in users if other != name)
                result.problems[name] = f"ambiguous: {part!r} could also be {others}; add a rule for one of them"
                result.misfits.add(name)
                result.pairs.pop(name, None)


def _add_torch_only(result: Pairing, rules: Sequence[Rule]) -> None:
    """What Flax does not have at all is no problem."""
    for name in list(result.problems):
        if any(not rule.parts and naming.capture(rule.torch, name) is not None for rule in rules):
            del result.problems[name]
            result.misfits.discard(name)
            result.pairs[name] = Pair(name, (), ())


def _ambiguous(pairs: Sequence[Pair]) -> str:
    ways = "; ".join(f"{_list(pair.flax)} as {_show_layout(pair)}" for pair in pairs)
    return f"ambiguous: {ways}; add a rule for it, or restore the parameters too, whose shapes tell"


def _show_layout(pair: Pair) -> str:
    layout = pair.layouts[0]
    sides = [" ".join(f"({' '.join(axis)})" for axis in side) for side in (layout.source, layout.target)]
    return repr(" -> ".join(sides))


def _nothing(name: str, candidates: Sequence[_Candidate], flax: Mapping[str, Shape], shape: Shape | None) -> str:
    if candidates:
        same = [c for c in candidates if all(len(axes.parse(c.rule.axes).left) == len(flax[name]) for name in c.flax)]
        tried = "; ".join(dict.fromkeys(_misfit(candidate, flax) for candidate in same or candidates))
        wanted = "" if shape is None else f" gives an array of {list(shape)}"
        return f"no rule's axes{wanted or ' fit'}: {tried}; add a rule with other axes"
    last = name.rpartition(".")[2]
    near = [rule for rule in FLAX_TORCH if rule.torch.rpartition(".")[2] == last and rule.torch.count(".") == 1]
    would = dict.fromkeys(part for rule in near for part in rule.parts)
    of = f" (it would be made from {' or '.join(map(repr, would))})" if would else f" (no rule makes a {last!r})"
    return f"Flax has no array for it{of}; say with names={{Flax module: torch module}} or rules=[Rule(…)] which one it is"


def _misfit(candidate: _Candidate, flax: Mapping[str, Shape]) -> str:
    arrays = ", ".join(f"{name!r} {list(flax[name])}" for name in candidate.flax)
    return f"{arrays} by {candidate.rule.axes!r}"


def _list(names: Sequence[str]) -> str:
    return " + ".join(repr(name) for name in names)


def hint(name: str, pairing: Pairing) -> str:
    """What the rules say of a leaf of Flax that is in no pair, and what to do."""
    question = _question(name)
    if question is not None:
        return question
    found = list(dict.fromkeys(pairing.names.get(name, ())))
    wanted = [torch for torch in found if torch in pairing.problems]
    if wanted:
        return f"it would be {' or '.join(map(repr, wanted))}, of which this list says more"
    if found:
        return f"by the rules it is {' or '.join(map(repr, found))} in torch; say with names= what its module is called"
    return "no rule has its name; add one with rules=[Rule(flax=…, torch=…, axes=…)], or only=[…] if torch has no such thing"


def _question(name: str) -> str | None:
    """What has to be asked before the standard rules may be applied to a leaf of Flax."""
    module = name.rpartition(".")[0].rpartition(".")[2]
    return next((text for pattern, text in ASK.items() if naming.capture(pattern, module) is not None), None)
