"""Small texts of the reports: JSON that people read, lists of ranks, and text of any origin made safe to embed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

GENERATION = re.compile(r"\b(\d{6})-(\d{12})-(\d+)\b")
TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """The text without what XML forbids: terminal colors are dropped, other control characters and surrogates become U+FFFD."""
    return FORBIDDEN.sub("\ufffd", TERMINAL.sub("", text))


def short(text: str) -> str:
    """The text with generation IDs in the short form of scenarios, `1/2/1`."""
    return GENERATION.sub(lambda found: "/".join(str(int(part)) for part in found.groups()), text)


def clip(text: str, limit: int) -> str:
    """The text, or its first and last parts if it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n… {len(text) - limit} characters left out …\n{text[-(limit - limit // 2) :]}"


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and `…` if it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def tail(text: str, limit: int) -> str:
    """The text, or its end if it has more than `limit` characters."""
    return text if len(text) <= limit else f"… {len(text) - limit} characters left out …\n{text[-limit:]}"


def pretty(value: Any, width: int = 96, indent: int = 0) -> str:
    """The JSON value over as few lines as fit: what fits in a line stays in it."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= width or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key, ensure_ascii=False)}: {pretty(item, width, indent + 1)}" for key, item in value.items()]
        return "{" + f",\n{inner}".join(items) + "}"
    return "[" + f",\n{inner}".join(pretty(item, width, indent + 1) for item in value) + "]"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: `0–3, 5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def by_rank(found: Any) -> list[tuple[str, Any]]:
    """The answers of a step with a label each; ranks that found the same share one entry."""
    if not isinstance(found, list):
        return [("", found)] if found is not None else []
    groups: list[tuple[Any, list[int]]] = []
    for rank, item in enumerate(found):
        answer = {key: part for key, part in item.items() if key != "rank"} if isinstance(item, dict) else item
        same = next((group for group in groups if group[0] == answer), None)
        if same:
            same[1].append(rank)
        else:
            groups.append((answer, [rank]))
    return [(f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}", answer) for answer, ranks in groups]


def seconds(duration: float) -> str:
    """A duration: `0.4 s`, `12 s`, `3 min 20 s`."""
    if duration < 10:
        return f"{duration:.1f} s"
    whole = round(duration)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
