from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import guarantees, records
from ckptcore.errors import CallError, GuaranteeError
from ckptcore.guarantees import Approximate, accept, check_derived, keepable, missing_for, prove, resolve, version_differences
from ckptcore.records import Level

DIGEST = "blake3:" + "0" * 64


@dataclass(frozen=True)
class Facts:
    kind: str
    scope: str = "global"


PARAMS, OPTIMIZER, SCHEDULE = Facts("parameters"), Facts("optimizer"), Facts("schedule")
CONTINUING = {"params": PARAMS, "optimizer": OPTIMIZER, "schedule": SCHEDULE}
RNG, RNG_OF_RANKS = {"rng": Facts("rng")}, {"rng": Facts("rng", "rank")}
CURSOR, CURSOR_OF_RANKS = {"data": Facts("data")}, {"data": Facts("data", "rank")}
EXACT = {**CONTINUING, **RNG, **CURSOR}


def proven(components: dict[str, Facts], **derived: Any) -> str:
    return prove(components, derived).level


def test_exact_needs_all_five() -> None:
    assert proven(EXACT) == "exact"
    assert proven({**CONTINUING, **RNG_OF_RANKS, **CURSOR_OF_RANKS}) == "exact"
    assert prove(EXACT, {}) == records.Guarantee(level="exact")


def test_without_rng_one_cursor_of_all_ranks_gives_coverage() -> None:
    assert proven({**CONTINUING, **CURSOR}) == "coverage"
    assert proven(CONTINUING, data="step") == "coverage"


def test_without_rng_a_cursor_of_each_rank_gives_replay_only() -> None:
    found = prove({**CONTINUING, **CURSOR_OF_RANKS}, {})
    assert (found.level, found.replay_samples) == ("replay", 0)


def test_an_approximate_cursor_gives_replay_with_its_bound() -> None:
    assert prove({**CONTINUING, **RNG}, {"data": Approximate(512)}) == records.Guarantee(level="replay", replay_samples=512)
    assert proven(EXACT, data=Approximate(8)) == "replay", "the declaration says that the saved cursor is not exact"


@pytest.mark.parametrize("absent", ["optimizer", "schedule", "data"])
def test_without_one_of_these_only_weights_are_proven(absent: str) -> None:
    assert proven({name: facts for name, facts in EXACT.items() if name != absent}) == "weights"


def test_needs_are_met_by_kind_not_by_name() -> None:
    assert (
        proven({"generator": PARAMS, "adam": OPTIMIZER, "lr": SCHEDULE, "keys": Facts("rng"), "loader": Facts("data")}) == "exact"
    )
    assert proven({**EXACT, "optimizer": Facts("custom")}) == "weights"


def test_needs_can_be_met_inside_another_component_or_by_the_step() -> None:
    found = prove({"params": PARAMS, "optimizer": OPTIMIZER, **CURSOR}, {"schedule": "optimizer", "rng": "step"})
    assert found == records.Guarantee(level="exact", derived={"rng": "step", "schedule": "optimizer"})
    everything = dict.fromkeys(("parameters", "optimizer", "schedule", "rng"), "state")
    assert proven({"state": Facts("custom")}, data="step", **everything) == "exact"


def test_a_cursor_inside_another_component_has_that_components_scope() -> None:
    assert proven({**CONTINUING, "loop": Facts("custom")}, data="loop") == "coverage"
    assert proven({**CONTINUING, "loop": Facts("custom", "rank")}, data="loop") == "replay"


def test_one_rank_scoped_cursor_among_several_makes_the_cursor_rank_scoped() -> None:
    assert proven({**CONTINUING, **CURSOR, "more": Facts("data", "rank")}) == "replay"


def test_a_declaration_that_points_nowhere_meets_nothing_and_is_not_recorded() -> None:
    derived = {"schedule": "optimiser"}
    lacking = "schedule: derived says that it is in component 'optimiser', which this save lacks"
    assert missing_for("exact", EXACT, derived) == [lacking]
    assert resolve(EXACT, derived, guarantee="weights").derived == {}


@pytest.mark.parametrize(
    ("derived", "words"),
    [
        ({"learning_rate": "optimizer"}, "not a need"),
        ({"rng": Approximate(3)}, "only data"),
        ({"rng": 5}, "expected a component's name"),
        ({"parameters": "step"}, "never follow"),
        ([("rng", "step")], "expected a mapping"),
    ],
)
def test_wrong_declarations_are_refused(derived: Any, words: str) -> None:
    with pytest.raises(GuaranteeError, match=words):
        check_derived(derived)
    with pytest.raises(GuaranteeError, match=words):
        prove(EXACT, derived)
    with pytest.raises(GuaranteeError, match=words):
        resolve(EXACT, derived, guarantee="weights")


def test_without_parameters_nothing_can_be_promised() -> None:
    with pytest.raises(GuaranteeError, match="nothing can be promised"):
        prove({"optimizer": OPTIMIZER}, {})


@pytest.mark.parametrize("samples", [-1, 1.5, True, None])
def test_the_bound_of_an_approximate_cursor_is_a_number_of_samples(samples: Any) -> None:
    with pytest.raises(CallError, match="number of samples"):
        Approximate(samples)


def test_a_need_declared_to_be_in_a_component_that_is_not_there_is_missing() -> None:
    components = {"params": PARAMS, "optimizer": OPTIMIZER}
    for need in ("schedule", "data"):
        lines = missing_for("replay", components, {"schedule": "optimizer", "data": "step", need: "elsewhere"})
        assert [line.split(":")[0] for line in lines] == [need]


SCOPES = st.sampled_from([None, "global", "rank"])


@given(st.fixed_dictionaries(dict.fromkeys(guarantees.NEEDS, SCOPES)), st.sampled_from([{}, {"data": Approximate(1)}]))
def test_more_components_never_prove_less(scopes: dict[str, str | None], derived: dict[str, Any]) -> None:
    components = {need: Facts(need, scope) for need, scope in scopes.items() if scope}
    for level, other in itertools.product(guarantees.LEVELS, guarantees.LEVELS):
        stronger_is_coverage = (level, other) == ("exact", "coverage")
        if (
            guarantees.strength(level) >= guarantees.strength(other)
            and not stronger_is_coverage
            and not missing_for(level, components, derived)
        ):
            assert not missing_for(other, components, derived)
    for need in scopes:
        fewer = {name: facts for name, facts in components.items() if name != need}
        if "parameters" in fewer:
            assert guarantees.strength(prove(fewer, derived).level) <= guarantees.strength(prove(components, derived).level)


class TestResolve:
    def test_the_strongest_is_recorded_unless_a_weaker_one_is_asked_for(self) -> None:
        assert resolve(EXACT, {}).level == "exact"
        for level in guarantees.LEVELS:
            assert resolve(EXACT, {}, guarantee=level).level == level
        assert resolve(EXACT, {}, guarantee="replay").replay_samples == 0

    def test_a_stronger_one_than_provable_is_refused_and_says_what_is_missing(self) -> None:
        with pytest.raises(GuaranteeError, match=r"(?s)guarantee='exact' cannot be kept.*rng: no component.*derived="):
            resolve({**CONTINUING, **CURSOR}, {}, guarantee="exact")

    def test_exact_by_a_cursor_of_each_rank_is_no_coverage(self) -> None:
        components = {**CONTINUING, **RNG, **CURSOR_OF_RANKS}
        for asked in ({"guarantee": "coverage"}, {"require": "coverage"}):
            with pytest.raises(GuaranteeError, match="one of each rank"):
                resolve(components, {}, **asked)  # pyright: ignore[reportArgumentType]
        assert resolve(components, {}, require="replay").level == "exact"

    def test_weights_are_never_taken_unasked(self) -> None:
        with pytest.raises(GuaranteeError) as caught:
            resolve({"params": PARAMS}, {})
        text = str(caught.value)
        for word in ("optimizer:", "schedule:", "rng:", "data:", "derived=", "Approximate(samples)", "guarantee='weights'"):
            assert word in text
        assert resolve({"params": PARAMS}, {}, guarantee="weights").level == "weights"

    def test_require_is_the_least(self) -> None:
        assert resolve(EXACT, {}, require="exact").level == "exact"
        with pytest.raises(GuaranteeError, match=r"(?s)require='exact' is not met by 'coverage'.*rng"):
            resolve({**CONTINUING, **CURSOR}, {}, require="exact")
        with pytest.raises(GuaranteeError, match="was asked for"):
            resolve(EXACT, {}, guarantee="weights", require="coverage")

    def test_unknown_levels_are_refused(self) -> None:
        for asked in ({"guarantee": "best"}, {"require": "best"}):
            with pytest.raises(CallError, match="best"):
                resolve(EXACT, {}, **asked)  # pyright: ignore[reportArgumentType]


def topology(**changes: Any) -> records.Topology:
    return records.Topology(**{"framework": "jax", "platform": "cpu", "participants": 2, "devices": 4, **changes})


def mesh(*shape: int) -> records.Mesh:
    return records.Mesh(axes=["x", "y"][: len(shape)], shape=list(shape), devices=DIGEST)


HERE = topology()


def kept(
    components: dict[str, Facts],
    *,
    now: records.Topology = HERE,
    without: tuple[str, ...] = (),
    remapped: bool = False,
    **derived: Any,
) -> tuple[Level, list[str]]:
    restored = [name for name in components if name not in without]
    return keepable(prove(components, derived), HERE, now, components, restored, remapped=remapped)


class TestKeepable:
    def test_the_same_topology_keeps_everything(self) -> None:
        for components in (EXACT, {**CONTINUING, **CURSOR}, {**CONTINUING, **CURSOR_OF_RANKS}, {"params": PARAMS}):
            assert kept(components) == (prove(components, {}).level, [])

    @pytest.mark.parametrize(
        "change",
        [{"framework": "torch"}, {"platform": "gpu"}, {"participants": 1}, {"devices": 8}],
        ids=lambda change: next(iter(change)),
    )
    def test_another_topology_keeps_coverage(self, change: dict[str, Any]) -> None:
        level, reasons = kept(EXACT, now=topology(**change))
        assert level == "coverage"
        assert len(reasons) == 1
        assert next(iter(change)) in reasons[0]

    def test_meshes_have_to_be_the_same(self) -> None:
        """A target without shardings is another topology than the mesh that the run trains on."""
        saved = prove(EXACT, {})
        pairs = [
            ([mesh(2, 2)], [mesh(4, 1)], "coverage"),
            ([mesh(4)], [mesh(4)], "exact"),
            ([], [mesh(4)], "coverage"),
            ([mesh(4)], [], "coverage"),
            ([], [], "exact"),
        ]
        for before, now, level in pairs:
            assert keepable(saved, topology(meshes=before), topology(meshes=now), EXACT, EXACT)[0] == level

    def test_altered_leaves_keep_coverage(self) -> None:
        saved = prove(EXACT, {})
        level, reasons = keepable(saved, topology(), topology(), EXACT, EXACT, altered=["arrays are cast"])
        assert (level, reasons) == ("coverage", ["arrays are cast"])

    def test_other_libraries_are_told_by_name_and_version(self) -> None:
        saved = {"jax": "0.4.1", "jaxlib": "0.4.1", "numpy": "1.26", "optax": "0.2"}
        now = {"jax": "0.10.2", "jaxlib": "0.4.1", "numpy": "2.0", "flax": "0.12"}
        assert version_differences(saved, now, {"jax", "jaxlib", "flax", "optax", "haiku"}) == [
            "flax absent then, 0.12 now",
            "jax 0.4.1 then, 0.10.2 now",
            "optax 0.2 then, absent now",
        ]
        assert version_differences(saved, saved, saved) == []

    def test_rng_left_out_keeps_coverage(self) -> None:
        assert kept(EXACT, without=("rng",)) == ("coverage", ["component 'rng' (rng) is left out"])

    @pytest.mark.parametrize("name", ["optimizer", "schedule", "data"])
    def test_what_continuing_needs_left_out_keeps_weights(self, name: str) -> None:
        level, reasons = kept(EXACT, without=(name,))
        assert level == "weights"
        assert reasons == [f"component {name!r} ({name}) is left out"]

    def test_any_component_left_out_costs_exact(self) -> None:
        level, reasons = kept({**EXACT, "ema": Facts("custom")}, without=("ema",))
        assert (level, reasons) == ("coverage", ["component 'ema' (custom) is left out"])

    def test_a_component_that_holds_a_need_inside_is_needed(self) -> None:
        components = {"params": PARAMS, "optimizer": OPTIMIZER, "loop": Facts("custom")}
        derived: dict[str, Any] = {"schedule": "optimizer", "rng": "step", "data": "loop"}
        assert kept(components, without=("loop",), **derived)[0] == "weights"
        assert kept(components, now=topology(participants=8), **derived)[0] == "coverage"

    def test_needs_that_follow_from_the_step_need_no_component(self) -> None:
        assert kept(CONTINUING, data="step", rng="step") == ("exact", [])
        assert kept(CONTINUING, data="step", rng="step", now=topology(participants=1))[0] == "coverage"

    def test_cursors_of_each_rank_do_not_fit_another_number_of_ranks(self) -> None:
        components = {**CONTINUING, **RNG, **CURSOR_OF_RANKS}
        level, reasons = kept(components, now=topology(participants=3), without=("data",))
        assert level == "weights"
        assert "the data cursors of 2 ranks do not fit 3" in reasons
        assert kept(components, now=topology(participants=3), remapped=True)[0] == "replay"
        assert kept(components, now=topology(devices=8))[0] == "replay"

    @pytest.mark.parametrize(("before", "now", "count"), [(2, 1, "2 ranks then and 1 now"), (1, 3, "1 rank then and 3 now")])
    def test_state_of_each_rank_needs_to_be_told_whose_it_is(self, before: int, now: int, count: str) -> None:
        """It was said to be left out, which it is not: it is in `like`."""
        components = {**CONTINUING, **RNG_OF_RANKS, **CURSOR, "ema": Facts("custom")}
        saved, then = prove(components, {}), topology(participants=before)
        level, reasons = keepable(saved, then, topology(participants=now), components, {*CONTINUING, "data"}, sourceless=["rng"])
        assert level == "coverage"
        assert reasons[:2] == [
            "component 'ema' (custom) is left out",
            f"component 'rng' (rng) is one of each rank, of {count}: remap= says whose state each takes",
        ]

    def test_remapped_state_is_not_exact(self) -> None:
        assert kept(EXACT, remapped=True) == ("coverage", ["rank-scoped state was remapped"])

    def test_an_approximate_cursor_survives_another_topology(self) -> None:
        assert kept(CONTINUING, now=topology(participants=5), data=Approximate(9)) == ("replay", [])

    def test_no_more_than_saved_is_kept(self) -> None:
        saved = resolve(EXACT, {}, guarantee="replay")
        assert keepable(saved, HERE, HERE, EXACT, EXACT) == ("replay", [])

    def test_nothing_restored_keeps_nothing_but_the_lowest_with_reasons(self) -> None:
        level, reasons = kept(EXACT, without=tuple(EXACT))
        assert level == "weights"
        assert "component 'params' (parameters) is left out" in reasons

    def test_committed_components_of_a_manifest_serve_as_facts(self) -> None:
        index = records.Descriptor(key="k", size=1, digest=DIGEST)
        committed = {
            name: records.Committed(kind=facts.kind, scope="global", leaves=1, bytes=1, digest=DIGEST, index=index)
            for name, facts in EXACT.items()
        }
        assert keepable(prove(committed, {}), HERE, HERE, committed, committed) == ("exact", [])


class TestAccept:
    def test_the_saved_guarantee_needs_no_acceptance(self) -> None:
        for level in guarantees.LEVELS:
            assert accept(level, records.Guarantee(level=level), None) == level

    def test_a_weaker_one_is_accepted_by_name_only(self) -> None:
        saved = records.Guarantee(level="exact")
        assert accept("coverage", saved, "coverage") == "coverage"
        assert accept("coverage", saved, "weights") == "coverage"
        for accepted in (None, "exact"):
            with pytest.raises(GuaranteeError, match=r"(?s)promises 'exact'.*accept_guarantee='coverage'.*2 ranks became 1"):
                accept("coverage", saved, accepted, reasons=["2 ranks became 1"])
        with pytest.raises(GuaranteeError):
            accept("replay", saved, "coverage")

    def test_advice_comes_first(self) -> None:
        with pytest.raises(GuaranteeError, match=r"^do this\. Otherwise the checkpoint promises 'exact'"):
            accept("coverage", records.Guarantee(level="exact"), None, advice="do this. Otherwise ")
