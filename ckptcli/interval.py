"""`ckpt interval`: how often to save, by what saves cost and how often a job fails."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli.durations import seconds, shown
from ckptcli.options import Json, settings
from ckptcli.output import emit, facts, table
from ckptcore import interval as core
from ckptcore.errors import CallError, NotFound
from ckptcore.inspect.chronicle import chronicle
from ckptcore.inspect.costs import Measured, measured
from ckptcore.store import Store

NEWEST = 10
"""Of how many commits of a run the receipts are read."""
MOST_NODES = 10**9
FACTORS = (0.5, 1.0, 2.0)
"""By what the MTBF may be misjudged."""

Run = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="A run whose newest receipts tell what saves cost, unless options do.")
]
Mtbf = Annotated[
    str,
    typer.Option(metavar="SPAN", help="Mean time between failures of the job, or with --nodes of one node: 90s, 15min, 3h, 2d."),
]
Blocking = Annotated[str | None, typer.Option(metavar="SPAN", help="How long a save stops training.")]
Persist = Annotated[
    str | None, typer.Option(metavar="SPAN", help="How long a save is written after that, until it is committed.")
]
Slowdown = Annotated[float, typer.Option(metavar="FRACTION", help="How much slower training is meanwhile: 0.05 is 5 %.")]
Restart = Annotated[str, typer.Option(metavar="SPAN", help="From the start of a job until it trains.")]
Downtime = Annotated[str, typer.Option(metavar="SPAN", help="From a failure until the job starts again.")]
Nodes = Annotated[int, typer.Option(metavar="N", min=1, max=MOST_NODES, help="How many nodes the job has, each with that MTBF.")]


class Costs(msgspec.Struct, kw_only=True):
    """What the answers rest on, in seconds. `measured_saves`: how many saves of the run tell blocking or persist, 0 for none."""

    mtbf_seconds: float
    blocking_seconds: float
    persist_seconds: float
    slowdown: float
    restart_seconds: float
    downtime_seconds: float
    counted_seconds: float
    measured_saves: int


class Answer(msgspec.Struct, kw_only=True):
    """One answer. `interval_seconds`: from the end of a save to the beginning of the next; `period_seconds`: with the save."""

    name: str
    save: str
    interval_seconds: float
    period_seconds: float
    goodput: float


class Misjudged(msgspec.Struct, kw_only=True):
    """If the MTBF is `factor` times what it was taken for: the goodput with the chosen period, and with the best then."""

    factor: float
    goodput: float
    best_period_seconds: float
    best_goodput: float


class Advice(msgspec.Struct, kw_only=True, tag_field="command", tag="interval"):
    """What `ckpt interval --json` prints. `bound`: whether the time that a save takes, not its cost, sets the period."""

    costs: Costs
    answers: list[Answer]
    period_seconds: float
    goodput: float
    bound: bool
    sensitivity: list[Misjudged]


def interval(
    context: typer.Context,
    run: Run = None,
    *,
    mtbf: Mtbf,
    blocking: Blocking = None,
    persist: Persist = None,
    slowdown: Slowdown = 0.0,
    restart: Restart = "0",
    downtime: Downtime = "0",
    nodes: Nodes = 1,
    as_json: Json = False,
) -> None:
    """Compute how often to save: Young's, Daly's and the exact answer for saves that block, and that for asynchronous ones.

    Goodput is the share of all time that becomes work which no failure takes back. `Optimal(mtbf=…)` as a Checkpointer's
    `interval` does the same inside a job, with what its saves cost.
    """
    try:
        core.lambert()
    except ImportError as error:
        raise CallError(str(error)) from error
    found = None
    if run is not None and (blocking is None or persist is None):
        found = _measured(settings(context).store(run))
    elif blocking is None:
        raise CallError("give --blocking, how long a save stops training, or a RUN whose saves tell it")
    costs = core.Costs(
        blocking=_either(blocking, found and found.blocking, "--blocking"),
        persist=_either(persist, found and found.persist, "--persist"),
        slowdown=slowdown,
        restart=seconds(restart, what="--restart"),
        downtime=seconds(downtime, what="--downtime"),
    )
    made = advice(costs, seconds(mtbf, what="--mtbf") / nodes, found.saves if found else 0)
    emit(made, lambda: _render(made), as_json=as_json)


def _measured(store: Store) -> Measured:
    found = measured(chronicle(store, newest=NEWEST).deliveries)
    if found is None:
        raise NotFound(f"run {store.url} has no checkpoint whose receipts tell what it cost; give --blocking and --persist")
    return found


def _either(given: str | None, found: float | None, option: str) -> float:
    return (found or 0.0) if given is None else seconds(given, what=option)


def advice(costs: core.Costs, mtbf: float, saves: int) -> Advice:
    """The answers for these costs."""
    blocked = costs.synchronous
    formulas = (("Young", core.young), ("Daly", core.daly), ("exact", core.exact))
    answers = [_blocking(name, formula(blocked.blocking, mtbf), blocked, mtbf) for name, formula in formulas]
    best = core.best_period(costs, mtbf)
    goodput = _goodput(best, costs, mtbf)
    gap = best - costs.blocking
    answers.append(Answer(name="exact", save="asynchronous", interval_seconds=gap, period_seconds=best, goodput=goodput))
    return Advice(
        costs=Costs(
            mtbf_seconds=mtbf,
            blocking_seconds=costs.blocking,
            persist_seconds=costs.persist,
            slowdown=costs.slowdown,
            restart_seconds=costs.restart,
            downtime_seconds=costs.downtime,
            counted_seconds=costs.counted,
            measured_saves=saves,
        ),
        answers=answers,
        period_seconds=best,
        goodput=goodput,
        bound=best == costs.shortest,
        sensitivity=[_misjudged(factor, best, costs, mtbf) for factor in FACTORS],
    )


def _blocking(name: str, between: float, costs: core.Costs, mtbf: float) -> Answer:
    period = between + costs.blocking
    goodput = _goodput(period, costs, mtbf)
    return Answer(name=name, save="blocking", interval_seconds=between, period_seconds=period, goodput=goodput)


def _misjudged(factor: float, period: float, costs: core.Costs, mtbf: float) -> Misjudged:
    best = core.best_period(costs, mtbf * factor)
    return Misjudged(
        factor=factor,
        goodput=_goodput(period, costs, mtbf * factor),
        best_period_seconds=best,
        best_goodput=_goodput(best, costs, mtbf * factor),
    )


def _goodput(period: float, costs: core.Costs, mtbf: float) -> float:
    """The goodput; of saves that cost nothing, made all the time, what failures leave."""
    return core.goodput(max(period, 1e-9 * mtbf), costs, mtbf)


def _render(made: Advice) -> RenderableType:
    return Group(_facts(made), Text(""), _answers(made), Text(""), _sensitivity(made))


def _facts(made: Advice) -> RenderableType:
    costs = made.costs
    source = f", from {costs.measured_saves} saves of the run" if costs.measured_saves else ""
    bound = " (bound by the time that a save takes: it waits for the one before)" if made.bound else ""
    return facts(
        [
            ("save every", f"{shown(made.period_seconds)}{bound}"),
            ("goodput", f"{made.goodput:.2%}"),
            ("MTBF", shown(costs.mtbf_seconds)),
            ("a save", f"stops training {shown(costs.blocking_seconds)}, is written {shown(costs.persist_seconds)}{source}"),
            ("its cost", f"{shown(costs.counted_seconds)}, with a slowdown of {costs.slowdown:.2%} while it is written"),
            ("a failure", f"{shown(costs.downtime_seconds)} until the restart, {shown(costs.restart_seconds)} until it trains"),
        ]
    )


def _answers(made: Advice) -> RenderableType:
    shows = table(
        "saves",
        "formula",
        "between saves",
        "from save to save",
        "goodput",
        right=("between saves", "from save to save", "goodput"),
    )
    for each in made.answers:
        between, period = shown(each.interval_seconds), shown(each.period_seconds)
        shows.add_row(each.save, each.name, between, period, f"{each.goodput:.2%}")
    return shows


def _sensitivity(made: Advice) -> RenderableType:
    shows = table("if the MTBF is", "goodput", "best would be", "with goodput", right=("goodput", "with goodput"))
    for each in made.sensitivity:
        mtbf = shown(each.factor * made.costs.mtbf_seconds)
        shows.add_row(mtbf, f"{each.goodput:.2%}", shown(each.best_period_seconds), f"{each.best_goodput:.2%}")
    return shows
