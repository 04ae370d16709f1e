"""What the checker reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """Something in the store that the spec forbids.

    Attributes:
      key: the object it is about, or the place where one is missing.
      clause: the ID of the clause that is broken.
      text: what is wrong, without the key.

    """

    key: str
    clause: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text} ({self.clause})"
