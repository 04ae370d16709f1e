"""One JSON Schema (draft 2020-12) for what each command prints with `--json`.

The checked-in files under `docs/schema/` are this module's output; a test compares them.
`python -m ckptcli.schemas docs/schema` writes them again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from ckptcli.cat import Found
from ckptcli.cp import Copies
from ckptcli.diff import Difference
from ckptcli.explain import Explanation
from ckptcli.fork import Forked
from ckptcli.formats.shared import Imported, Written
from ckptcli.gc import Collected
from ckptcli.interval import Advice
from ckptcli.ls import Listing
from ckptcli.mirror import Mirrored
from ckptcli.pin import Pinned
from ckptcli.quarantine import Quarantined
from ckptcli.recover import Recovery
from ckptcli.report import command as report
from ckptcli.rollback import Rollback
from ckptcli.show import Shown
from ckptcli.status import Report
from ckptcli.supervise import Supervised
from ckptcli.tag import Tagged
from ckptcli.tree import Tree
from ckptcli.verify import Verified

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "ls": Listing,
    "verify": Verified,
    "tree": Tree,
    "show": Shown,
    "explain": Explanation,
    "diff": Difference,
    "cat": Found,
    "report": report.Written,
    "status": Report,
    "supervise": Supervised,
    "interval": Advice,
    "recover": Recovery,
    "rollback": Rollback,
    "quarantine": Quarantined,
    "tag": Tagged,
    "pin": Pinned,
    "gc": Collected,
    "fork": Forked,
    "cp": Copies,
    "mirror": Mirrored,
    "export": Written,
    "import": Imported,
}
"""By command."""


def schema(command: str) -> dict[str, Any]:
    """The schema of what `command` prints."""
    generated = msgspec.json.schema(DOCUMENTS[command])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:ckpt:command:{command}",
        "title": f"what `ckpt {command} --json` prints",
        **generated,
    }


def text(command: str) -> str:
    """The schema as it is checked in and printed."""
    return json.dumps(schema(command), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(folder: Path) -> None:
    """Write every schema as `<command>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for command in DOCUMENTS:
        (folder / f"{command}.json").write_text(text(command), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
