"""Note records, as somebody else than the implementation under test would write them (spec: R-70 to R-72)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from ckpt_conformance.oracle import canonical, values
from ckpt_conformance.place import Place


def put_note(place: Place, generation: str, kind: str, fields: Mapping[str, Any] | None = None) -> str:
    """Write a note about a generation, and return its key.

    `fields` are those of R-70; `metrics` are plain numbers, `created` is now unless given, and `name` overrides the key's last
    segment. Raises `ValueError` if the place holds no readable run.
    """
    given = dict(fields or {})
    name = given.pop("name", None)
    metrics = {key: values.encode(float(number)) for key, number in given.pop("metrics", {}).items()}
    record = {
        "format": "ckpt/note",
        "version": "1.0",
        "requires": [],
        "run_id": _run_id(place),
        "generation": generation,
        "kind": kind,
        "created": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "text": "",
        "tag": None,
        "metrics": metrics,
        "depth": None,
        **given,
    }
    content = canonical.encode(record)
    key = f"notes/{generation}/{name or _name(kind, record['tag'], content)}.json"
    place.write(key, content)
    return key


def _run_id(place: Place) -> str:
    content = place.read("run.json")
    if content is None:
        raise ValueError(f"{place.url} holds no run")
    return canonical.decode(content)["run_id"]


def _name(kind: str, tag: str | None, content: bytes) -> str:
    if kind == "quarantine":
        return kind
    return f"tag-{tag}" if kind == "tag" else f"{kind}-{blake3(content).hexdigest()[:12]}"
