"""Notes: what is learned about a generation after its decision (spec: notes).

Each note is an object of its own, put once. They never change what was committed; retention
and the choice of the resume point read them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ckptcore import ledger, names, records, values
from ckptcore.clock import Clock
from ckptcore.digests import digest
from ckptcore.errors import CallError, DamageError, InvalidRecord, Retired
from ckptcore.events import log, shorten
from ckptcore.names import GenerationId
from ckptcore.records import Note
from ckptcore.store import Store
from ckptcore.storereads import record_bytes

_ONCE = {"quarantine"}
_TAG = re.compile(r"[A-Za-z0-9_.\-]{1,100}")
_METRIC = re.compile("[^\ud800-\udfff]{1,200}", re.DOTALL)
_NEVER = "0001-01-01T00:00:00Z"
"""When a note was made that cannot be read."""
_CAUTIOUS = re.compile("quarantine|damaged|pin")


def write(
    store: Store, run_id: str, generation: GenerationId, kind: Any, *, clock: Clock, name: str | None = None, **fields: Any
) -> Note:
    """Write one note and return it as it is stored.

    `name` overrides the file name; by default it is the kind for quarantine, and kind plus a content digest for the others.
    """
    note = Note(run_id=run_id, generation=str(generation), kind=kind, created=clock.utc(), **fields)
    data = records.encode(note)
    file_name = name or (kind if kind in _ONCE else f"{kind}-{digest(data).split(':')[1][:12]}")
    key = names.note_key(generation, file_name)
    return records.decode(store.put_if_absent(key, data), Note, key=key)


def annotate(
    store: Store,
    run_id: str,
    generation: GenerationId,
    *,
    clock: Clock,
    metrics: Mapping[str, float] | None = None,
    tags: Sequence[str] = (),
    pin: str | None = None,
) -> None:
    """Add metrics (numbers by name; NaN and infinities are numbers too), tags, and a pin with its reason.

    Raises `CallError` before anything is written, and `Retired` when retention was faster than a tag or a pin.
    """
    if not metrics and not tags and pin is None:
        raise CallError("annotate: nothing to note; give metrics=, tags= or pin=")
    encoded = {name: values.encode(value, where=f"metric {name!r}") for name, value in numbers(metrics or {}).items()}
    checked = _tags(tags)
    if pin is not None and not isinstance(pin, str):
        raise CallError(f"pin is {type(pin).__name__}, expected a text that says what the checkpoint is kept for")
    if encoded:
        write(store, run_id, generation, "metrics", clock=clock, metrics=encoded)
    for tag in checked:
        write(store, run_id, generation, "tag", clock=clock, name=f"tag-{tag}", tag=tag)
    if pin is not None:
        write(store, run_id, generation, "pin", clock=clock, text=records.clip(pin))
    if checked or pin is not None:
        check_kept(store, generation)


def check_kept(store: Store, generation: GenerationId) -> None:
    """Raise `Retired` if a pin or tag, durable by now, came too late: a collector that retires later sees it."""
    if ledger.is_retired(store, generation):
        raise Retired(
            f"generation {generation} of {store.url} had been retired before it was pinned or tagged:"
            " its data is gone or may go; choose another one"
        )


def obstacle(store: Store, run_id: str, generation: GenerationId) -> str | None:
    """Why nothing new may refer to a commit: it is retired, or marked as one that nobody resumes from. None if it is neither."""
    if ledger.is_retired(store, generation):
        return "retired"
    marks = (note for note in read(store, run_id, generation) if note.kind in ("quarantine", "damaged"))
    return next((f"marked {note.kind}: {note.text}" for note in marks), None)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as Python floats, from anything that is one number (an array on a device too). Raises `CallError`."""
    if not isinstance(metrics, Mapping):
        raise CallError(f"metrics is {type(metrics).__name__}, expected numbers by name: {{'loss': 0.5}}")
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not _METRIC.fullmatch(name):
            raise CallError(f"metric name {str(name)[:200]!r}: expected a text of 1 to 200 characters")
        found[name] = _number(name, value)
    return found


def _number(name: str, value: Any) -> float:
    cause: Exception | None = None
    if not isinstance(value, str | bytes | bytearray):  # float() would read a text
        try:
            # A loss is mostly a tensor that still belongs to a graph; torch warns when that becomes a number.
            return float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, OverflowError) as error:
            cause = error
    raise CallError(f"metric {name!r} is {str(value)[:200]!r}, expected a number") from cause


def _tags(tags: Sequence[str]) -> list[str]:
    if isinstance(tags, str):
        raise CallError(f"tags={tags[:200]!r}: expected a list of tags, such as [{tags[:200]!r}]")
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise CallError(f"tag {str(tag)[:200]!r} must be letters, digits, '.', '_' or '-', at most 100")
    return list(tags)


def read(store: Store, run_id: str, generation: GenerationId) -> list[Note]:
    """All notes on a generation, oldest first."""
    found = _load(store, run_id, store.list(names.notes_prefix(generation)))
    return sorted(found.values(), key=lambda note: note.created)


def read_all(
    store: Store, run_id: str, *, but: Collection[GenerationId] = (), known: dict[str, Note] | None = None
) -> dict[GenerationId, list[Note]]:
    """The notes of the run by generation, oldest first: one listing. Those on generations in `but` are not read.

    `known`: notes by key that were read before, which never change; brought up to date.
    """
    left_out = {str(generation) for generation in but}
    keys = [key for key in store.list(names.NOTES) if key.split("/")[1] not in left_out]
    before = {} if known is None else known
    found = _load(store, run_id, (key for key in keys if key not in before)) | {key: before[key] for key in keys if key in before}
    if known is not None:
        known.clear()
        known.update({key: note for key, note in found.items() if note.created != _NEVER})
    result: dict[GenerationId, list[Note]] = {}
    for note in sorted(found.values(), key=lambda note: note.created):
        result.setdefault(GenerationId.parse(note.generation), []).append(note)
    return result


def metrics(notes: Sequence[Note]) -> dict[str, float]:
    """The newest value of every metric in `notes` (oldest first). What is no number is logged and passed over."""
    merged: dict[str, float] = {}
    for note in notes:
        try:
            merged |= {name: _float(encoded, f"metric {name!r} of {note.generation}") for name, encoded in note.metrics.items()}
        except DamageError as error:
            log.warning("metrics are passed over: %s", shorten(error))
    return merged


def _float(encoded: Any, where: str) -> float:
    value = values.decode(encoded, where=where)
    if type(value) is not float:
        raise InvalidRecord(f"{where} is no float")
    return value


def has(notes: Sequence[Note], kind: str) -> bool:
    """Whether there is a note of `kind`."""
    return any(note.kind == kind for note in notes)


def _load(store: Store, run_id: str, keys: Iterable[str]) -> dict[str, Note]:
    """Notes by key."""
    found: dict[str, Note] = {}
    for key in keys:
        try:
            data = record_bytes(store, key) if key.endswith(".json") else None
            if data is None:
                continue
            note = records.decode(data, Note, key=key)
            records.expect(key, run_id=(note.run_id, run_id), generation=(note.generation, key.split("/")[1]))
        except DamageError as error:
            log.warning("an unreadable note is passed over: %s", error)
            note = _stand_in(key, run_id)
        if note is not None:
            found[key] = note
    return found


def _stand_in(key: str, run_id: str) -> Note | None:
    """What an unreadable note counts as: its name still says what is at stake, and that must not be lost."""
    _, generation, *name = key.split("/")
    kind = _CAUTIOUS.match("/".join(name))
    if kind is None or names.parse_ledger_key(f"{names.LEDGER}{generation}.json") is None:
        return None
    return Note(run_id=run_id, generation=generation, kind=kind[0], created=_NEVER, text="the note is unreadable")  # pyright: ignore[reportArgumentType]
