"""Spans of time as people write them: `90`, `90s`, `15min`, `3h`, `2d`. Pure."""

from __future__ import annotations

import re

from ckptcli.text import span
from ckptcore.errors import CallError

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)")


def seconds(text: str, *, what: str) -> float:
    """The seconds of a span; `what` names the option in the `CallError` for one that is none."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS:
        raise CallError(f"{what} {text!r}: expected a span of time, such as 90, 90s, 15min, 3h or 2d")
    return float(found[1]) * _UNITS[found[2]]


def shown(length: float) -> str:
    """Seconds to three digits, from two minutes on as a span."""
    if length >= 120:
        return span(length)
    return f"{length * 1000:.3g} ms" if 0 < length < 0.1 else f"{length:.3g} s"
