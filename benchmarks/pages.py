"""`python -m benchmarks.pages` puts the recorded figures into the pages. With `--check` it only says which are not up to date.

A page has a block for each table that it shows. What stands between the two comments is written from `recorded/WHAT.json`:

    <!-- recorded: compare -->
    <!-- end of compare -->

`<!-- recorded: compare, short -->` takes the short form of a table, of those that have one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.__main__ import WHAT, module_of

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).parent / "recorded"
PAGES = ("README.md", "docs/performance.md", "docs/scaling.md")
BLOCK = re.compile(r"<!-- recorded: (?P<what>[a-z-]+)(?P<short>, short)? -->\n(?P<body>.*?)<!-- end of (?P=what) -->", re.DOTALL)


def written(text: str, recorded: Path) -> str:
    """The text of a page with all of its blocks as the records say. Raises `ValueError` for a block that is not whole."""
    _check_blocks(text)
    return BLOCK.sub(lambda found: _block(found, recorded), text)


def _check_blocks(text: str) -> None:
    opened, whole = re.findall(r"<!-- recorded: ([^>]*?) -->", text), [found["what"] for found in BLOCK.finditer(text)]
    ended = re.findall(r"<!-- end of ([^>]*?) -->", text)
    if [name.removesuffix(", short") for name in opened] != whole or ended != whole:
        raise ValueError(f"blocks begin for {opened}, end for {ended}, and {whole} are whole")
    unknown = sorted(set(whole) - set(WHAT))
    if unknown:
        raise ValueError(f"nothing measures {', '.join(unknown)}")


def _block(found: re.Match[str], recorded: Path) -> str:
    what, file = found["what"], recorded / f"{found['what']}.json"
    body = (
        _body(json.loads(file.read_text()), short=found["short"] is not None)
        if file.exists()
        else f"Nothing is recorded of `{what}`."
    )
    return f"<!-- recorded: {what}{found['short'] or ''} -->\n\n{body}\n\n<!-- end of {what} -->"


def _body(record: dict[str, Any], *, short: bool) -> str:
    """The table, and one line of where it was measured."""
    module = module_of(record["what"])
    table = (module.short if short else module.table)(record["result"])
    return f"{table}\n\nMeasured on {machine.sentence(record['machine'])}"


def main(arguments: list[str]) -> int:
    """Write the pages, or only look whether they are as they would be written."""
    old = 0
    for name in PAGES:
        page = ROOT / name
        text = page.read_text() if page.exists() else ""
        new = written(text, RECORDED)
        if new == text:
            continue
        old += 1
        if "--check" in arguments:
            print(f"{name} is not what the records say: python -m benchmarks.pages", file=sys.stderr)
        else:
            page.write_text(new)
    return 1 if old and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
