"""What an error shows, and what it holds."""

from __future__ import annotations

from ckptcore.errors import MOST_SHOWN, StructureMismatch


def test_a_mismatch_shows_the_first_differences_and_holds_all_of_them() -> None:
    differences = [f"params['{number}']: not in the checkpoint" for number in range(MOST_SHOWN + 170)]
    error = StructureMismatch("it does not fit:", differences)
    assert error.differences == tuple(differences)
    assert str(error).splitlines() == [
        "it does not fit:",
        *(f"  - {difference}" for difference in differences[:MOST_SHOWN]),
        "  - … and 170 more",
    ]


def test_a_few_differences_are_shown_whole() -> None:
    differences = [str(number) for number in range(MOST_SHOWN)]
    assert str(StructureMismatch("it does not fit:", differences)) == "\n  - ".join(["it does not fit:", *differences])
    assert str(StructureMismatch("it does not fit")) == "it does not fit"
