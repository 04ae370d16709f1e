"""Numbers in JSON, which has neither NaN nor infinities: these are texts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

Number: TypeAlias = float | Literal["nan", "inf", "-inf"]


def number(value: float) -> Number:
    """A number as JSON has it."""
    return value if math.isfinite(value) else cast("Number", repr(float(value)))


def numbers(found: Mapping[str, float]) -> dict[str, Number]:
    """The same by name."""
    return {name: number(value) for name, value in found.items()}
