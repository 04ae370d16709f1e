"""Who keeps whose copy: always another node store, evenly, and the same whoever works it out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ckptcore.placement import holders

MARKERS = st.lists(st.one_of(st.none(), st.sampled_from("abcde")), max_size=40)


@given(MARKERS)
def test_every_part_has_one_holder_in_another_store(markers: list[str | None]) -> None:
    found = holders(markers)
    stores = set(markers) - {None}
    wanted = {rank for rank, marker in enumerate(markers) if marker is not None} if len(stores) > 1 else set()
    assert found.keys() == wanted
    assert all(markers[holder] not in (None, markers[owner]) for owner, holder in found.items())


@given(MARKERS)
def test_the_ranks_of_a_store_share_evenly_what_it_keeps(markers: list[str | None]) -> None:
    found = holders(markers)
    sizes, kept = Counter(markers), Counter(found.values())
    for marker in set(markers) - {None}:
        ranks = [rank for rank, other in enumerate(markers) if other == marker]
        counts = [kept[rank] for rank in ranks]
        assert max(counts) - min(counts) <= 1
        owners = {markers[owner] for owner, holder in found.items() if holder in ranks}
        assert len(owners) <= 1
        assert sum(counts) == sum(sizes[owner] for owner in owners)


@given(MARKERS, st.permutations("abcde"))
def test_names_of_stores_do_not_matter(markers: list[str | None], names: list[str]) -> None:
    renamed = [None if marker is None else names["abcde".index(marker)] for marker in markers]
    assert holders(renamed) == holders(markers)


def test_the_ring() -> None:
    assert holders(["a", "a", "b", "b", "c", "c"]) == {0: 2, 1: 3, 2: 4, 3: 5, 4: 0, 5: 1}
    assert holders(["b", "a", "b", None, "b"]) == {0: 1, 2: 1, 4: 1, 1: 0}
    assert holders(["a", "a"]) == holders([]) == holders([None, "a"]) == {}
