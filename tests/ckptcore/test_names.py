from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import names
from ckptcore.errors import CallError, InvalidRecord
from ckptcore.names import GenerationId

IDS = st.builds(GenerationId, st.integers(1, 999_999), st.integers(0, names.MAX_STEP), st.integers(1, 999_999))
DIGEST = "blake3:" + "ab" * 32
TRICKS = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "a//b",
    "/a",
    "a/",
    "./a",
    ".hidden",
    "a/.hidden",
    "-flag",
    "a\\b",
    "a\x00b",
    "a\nb",
    "a\n",
    "a b",
    "a%2e%2e",
    "é",
    "a:b",
    "~",
    "C:",
    "a/" + "b" * 201,
    "/".join(["a" * 100] * 10),
]


@given(IDS)
def test_an_id_is_read_as_it_was_written(generation: GenerationId) -> None:
    assert GenerationId.parse(str(generation)) == generation


@given(IDS, IDS)
def test_ids_are_ordered_as_numbers(left: GenerationId, right: GenerationId) -> None:
    as_numbers = [tuple(map(int, str(generation).split("-"))) for generation in (left, right)]
    assert (left < right) == (as_numbers[0] < as_numbers[1])


def test_the_tenth_attempt_comes_after_the_ninth_although_its_text_does_not() -> None:
    ninth, tenth = GenerationId(4, 80_000, 9), GenerationId(4, 80_000, 10)
    assert ninth < tenth
    assert str(ninth) > str(tenth)
    assert GenerationId(5, 1, 1) > GenerationId(4, 80_000, 1), "a newer incarnation is newer, however small its step"
    assert str(ninth) == "000004-000000080000-9"


@pytest.mark.parametrize("parts", [(0, 0, 1), (1_000_000, 0, 1), (1, -1, 1), (1, 10**12, 1), (1, 0, 0), (1, 0, 1_000_000)])
def test_numbers_that_have_no_id_are_refused(parts: tuple[int, int, int]) -> None:
    with pytest.raises(CallError, match="outside"):
        GenerationId(*parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-1-1",
        "000000-000000000001-1",
        "000001-000000000001-0",
        "000001-000000000001-01",
        "000001-000000000001-1000000",
        "000001-00000000001-1",
        "000001-000000000001",
        "000001-000000000001-1\n",
        " 000001-000000000001-1",
        "000001-000000000001-1.json",
        "٠٠٠٠٠١-000000000001-1",
        "000001-000000000001--1",
        "../000001-000000000001-1",
        "x" * 10_000,
    ],
)
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord, match="not a generation ID") as caught:
        GenerationId.parse(text)
    assert len(str(caught.value)) < 200


@given(IDS, st.integers(0, names.MAX_RANK), st.integers(1, 999_999))
def test_every_key_is_safe_and_is_read_back(generation: GenerationId, rank: int, incarnation: int) -> None:
    prefix = names.generation_prefix(generation)
    keys = [
        names.ledger_key(generation),
        names.retired_key(generation),
        names.layout_key(generation, DIGEST),
        names.receipt_key(generation, rank),
        names.values_key(generation, rank),
        names.index_key(generation, "params", DIGEST),
        names.roster_key(generation, DIGEST),
        names.database_prefix(generation, rank, "0123abcd") + "manifest.ocdbt",
        names.note_key(generation, "pin"),
        names.claim_key(incarnation),
        names.base_key(incarnation),
    ]
    assert [names.check_key(key) for key in keys] == keys
    assert len(set(keys)) == len(keys)
    assert all(key.startswith(prefix) for key in keys[2:8])
    assert names.parse_ledger_key(keys[0]) == (generation, False)
    assert names.parse_ledger_key(keys[1]) == (generation, True)
    assert names.parse_receipt_key(keys[3]) == rank
    assert names.parse_incarnation_key(keys[9]) == (incarnation, "claim")
    assert names.parse_incarnation_key(keys[10]) == (incarnation, "base")


@pytest.mark.parametrize(
    "key",
    [
        "ledger/",
        "ledger/x.json",
        "ledger/000000-000000000001-1.json",
        "ledger/000001-000000000001-1.json.tmp",
        "ledger/000001-000000000001-1.json\n",
        "ledger/a/000001-000000000001-1.json",
        "x/ledger/000001-000000000001-1.json",
        "ledger/000001-000000000001-1.retired.retired.json",
        "incarnations/000000/claim.json",
        "incarnations/1/claim.json",
        "incarnations/000001/other.json",
        "receipts/00001.json",
        "generations/g/receipts/1.json",
        "generations/g/receipts/00001.json.tmp",
    ],
)
def test_other_keys_are_no_ones(key: str) -> None:
    assert names.parse_ledger_key(key) is None
    assert names.parse_incarnation_key(key) is None
    assert names.parse_receipt_key(key) is None


@pytest.mark.parametrize("key", TRICKS, ids=lambda key: repr(key)[:30])
def test_keys_that_could_leave_the_run_are_refused(key: str) -> None:
    with pytest.raises(InvalidRecord, match="plain segments"):
        names.check_key(key)


@given(st.text(max_size=30))
def test_an_accepted_key_has_plain_segments_only(key: str) -> None:
    try:
        names.check_key(key)
    except InvalidRecord:
        return
    assert key.isascii()
    assert all(segment and not segment.startswith((".", "-")) for segment in key.split("/"))
    assert not set(key) & set("\\:%~ \n\x00")


@pytest.mark.parametrize("name", ["params", "_x", "a-b_C9", "a" * 64])
def test_component_names_are_plain_words(name: str) -> None:
    assert names.check_component(name) == name


@pytest.mark.parametrize("name", ["", "9a", "-a", "a.b", "a/b", "a b", "a\n", "é", "a" * 65, "rank_state", "..", "a%b"])
def test_other_component_names_are_refused(name: str) -> None:
    with pytest.raises(CallError, match="component name"):
        names.check_component(name)


def test_an_array_is_named_after_its_path() -> None:
    path: names.Path = (("key", "Dense_0"), ("index", 3), ("attr", "mu"), ("key", -1))
    assert names.array_name("params", path) == "params.Dense_0.3.mu.-1"
    assert names.array_name("params", ()) == "params"
    assert names.array_name("a", (("key", "x/y\\z%.\n"),)) == "a.x%2Fy%5Cz%25.%0A"
    assert names.rank_array_name(7, "rng.key") == "rank_state.7.rng.key"


@given(st.text(max_size=10), st.text(max_size=10))
def test_a_name_is_one_segment_and_different_keys_have_different_names(left: str, right: str) -> None:
    found = [names.array_name("c", (("key", text),)) for text in (left, right)]
    assert not any(set(name) & set("/\\\n\x00\x7f") for name in found)
    assert (found[0] == found[1]) == (left == right)


def test_paths_are_shown_as_people_write_them() -> None:
    assert (
        names.show_path("params", (("key", "Dense_0"), ("key", 2), ("index", 0), ("attr", "mu"))) == "params['Dense_0'][2][0].mu"
    )
    assert names.show_path("params", ()) == "params"
