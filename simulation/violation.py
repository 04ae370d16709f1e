"""What a simulation finds."""

from __future__ import annotations


class Violation(BaseException):
    """Something that the specification rules out has happened. `clause` is the rule's number.

    No `Exception`, so that no handler of the code under test turns it into a failed save.
    """

    def __init__(self, clause: str, message: str) -> None:
        self.clause = clause
        super().__init__(f"{clause}: {message}")


class Died(BaseException):
    """The process is dead: nothing after this has any effect, and no handler of the code under test catches it."""
