"""Keys in the store, generation IDs and array names (spec: layout of a run).

Every key is relative to the run's root, made of safe segments only, so that nothing a
record says can reach outside of the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ckptcore.errors import CallError, InvalidRecord

MAX_INCARNATION = 999_999
MAX_STEP = 999_999_999_999
MAX_RANK = 99_999
MAX_NAME_BYTES = 1024
MAX_ATTEMPT = 99_999_999

RUN = "run.json"
INCARNATIONS = "incarnations/"
GENERATIONS = "generations/"
LEDGER = "ledger/"
NOTES = "notes/"
SUPERVISION = "supervision/"
RANK_STATE = "rank_state"

_GENERATION = re.compile(r"([0-9]{6})-([0-9]{12})-([1-9][0-9]{0,5})")
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}(?:/[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199})*")
_COMPONENT = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]{0,63}")
_CLAIM = re.compile(r"incarnations/([0-9]{6})/(claim|base)\.json")
_SPECIAL = re.compile(r"[%/\\\x00-\x1f\x7f]")
_LEDGER = re.compile(r"ledger/([0-9]{6})-([0-9]{12})-([1-9][0-9]{0,5})(\.retired)?\.json")
_ATTEMPT = re.compile(r"supervision/([0-9]{8})/(plan|resumed|end)\.json")
_NODE = re.compile(r"supervision/([0-9]{8})/nodes/([0-9a-f]{8,64})\.json")

PathElement = tuple[Literal["key", "index", "attr"], str | int]
"""`("key", str | int)`, `("index", int)` or `("attr", str)`."""

Path = tuple[PathElement, ...]


@dataclass(frozen=True, order=True)
class GenerationId:
    """One save attempt: `IIIIII-SSSSSSSSSSSS-A`. Ordered as numbers (spec: identifiers)."""

    incarnation: int
    step: int
    attempt: int

    def __post_init__(self) -> None:
        if not 1 <= self.incarnation <= MAX_INCARNATION:
            raise CallError(f"incarnation {self.incarnation} is outside 1..{MAX_INCARNATION}")
        if not 0 <= self.step <= MAX_STEP:
            raise CallError(f"step {self.step} is outside 0..{MAX_STEP}")
        if not 1 <= self.attempt <= 999_999:
            raise CallError(f"attempt {self.attempt} is outside 1..999999")

    def __str__(self) -> str:
        return f"{self.incarnation:06d}-{self.step:012d}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> GenerationId:
        """Parse an ID. Raises `InvalidRecord` when `text` is not one."""
        match = _GENERATION.fullmatch(text)
        if match is None or int(match[1]) == 0:
            raise InvalidRecord(f"{text[:80]!r} is not a generation ID (IIIIII-SSSSSSSSSSSS-A)")
        return cls(int(match[1]), int(match[2]), int(match[3]))


class HasGeneration(Protocol):
    """A handle, a manifest, a restored or a listed generation: whatever says which generation it is about."""

    @property
    def generation(self) -> GenerationId | str | None:
        """The generation's ID."""
        ...


Named = GenerationId | str | HasGeneration
"""How a caller may name a generation."""


def named_generation(named: Any) -> GenerationId:
    """The generation that a caller names, by its ID, its text, or by something that has one as `generation`.

    Raises `CallError` for anything else.
    """
    found = getattr(named, "generation", named)
    if isinstance(found, str):
        try:
            return GenerationId.parse(found)
        except InvalidRecord as error:
            raise CallError(f"{error}; Run.generations() lists them") from error
    if not isinstance(found, GenerationId):
        raise CallError(
            f"{type(named).__name__} names no generation: give its ID, a SaveHandle, a manifest or an entry of Run.generations()"
        )
    return found


def check_key(key: str) -> str:
    """Return `key` if every segment is safe. Raises `InvalidRecord` otherwise."""
    if len(key) > 900 or not _KEY.fullmatch(key):
        raise InvalidRecord(f"key {key[:120]!r} is not a relative path of plain segments")
    return key


def check_component(name: str) -> str:
    """Return `name` if it may name a component. Raises `CallError` otherwise."""
    if not isinstance(name, str) or not _COMPONENT.fullmatch(name) or name == RANK_STATE:
        raise CallError(
            f"component name {str(name)[:80]!r} must be letters, digits, '_' or '-', start with a letter or '_', "
            f"and not be {RANK_STATE!r}"
        )
    return name


def claim_key(incarnation: int) -> str:
    return f"{INCARNATIONS}{incarnation:06d}/claim.json"


def base_key(incarnation: int) -> str:
    return f"{INCARNATIONS}{incarnation:06d}/base.json"


def parse_incarnation_key(key: str) -> tuple[int, str] | None:
    """`(incarnation, "claim" | "base")`, or None for any other key."""
    match = _CLAIM.fullmatch(key)
    return (int(match[1]), match[2]) if match and int(match[1]) > 0 else None


def ledger_key(generation: GenerationId) -> str:
    return f"{LEDGER}{generation}.json"


def retired_key(generation: GenerationId) -> str:
    return f"{LEDGER}{generation}.retired.json"


def on_nodes_key(generation: GenerationId) -> str:
    return f"{LEDGER}{generation}.staged.json"


def parse_ledger_key(key: str) -> tuple[GenerationId, bool] | None:
    """`(generation, is the retired record)`, or None for any other key."""
    match = _LEDGER.fullmatch(key)
    if match is None or match[1] == "000000":
        return None
    return GenerationId(int(match[1]), int(match[2]), int(match[3])), match[4] is not None


def generation_prefix(generation: GenerationId) -> str:
    return f"{GENERATIONS}{generation}/"


def layout_key(generation: GenerationId, digest: str) -> str:
    return f"{generation_prefix(generation)}layouts/{digest_name(digest)}.json"


def receipts_prefix(generation: GenerationId) -> str:
    return f"{generation_prefix(generation)}receipts/"


def receipt_key(generation: GenerationId, rank: int) -> str:
    return f"{receipts_prefix(generation)}{rank:05d}.json"


def staged_prefix(generation: GenerationId) -> str:
    return f"{generation_prefix(generation)}staged/"


def staged_key(generation: GenerationId, rank: int) -> str:
    return f"{staged_prefix(generation)}{rank:05d}.json"


def parse_receipt_key(key: str) -> int | None:
    """The rank of a receipt's key, or of a staged one's; None for any other key."""
    match = re.fullmatch(r".*/(?:receipts|staged)/([0-9]{5})\.json", key)
    return int(match[1]) if match else None


def values_key(generation: GenerationId, rank: int) -> str:
    return f"{generation_prefix(generation)}values/{rank:05d}.json"


def index_key(generation: GenerationId, what: str, digest: str) -> str:
    """`what` is a component's name, or `roster`'s own prefix (see `roster_key`)."""
    return f"{generation_prefix(generation)}index/{what}-{digest_name(digest)}.json"


def roster_key(generation: GenerationId, digest: str) -> str:
    return f"{generation_prefix(generation)}roster-{digest_name(digest)}.json"


def state_prefix(generation: GenerationId) -> str:
    return f"{generation_prefix(generation)}state/"


def database_prefix(generation: GenerationId, rank: int, nonce: str) -> str:
    return f"{state_prefix(generation)}ranks/{rank:05d}-{nonce}/"


def notes_prefix(generation: GenerationId) -> str:
    return f"{NOTES}{generation}/"


def note_key(generation: GenerationId, name: str) -> str:
    return f"{notes_prefix(generation)}{check_key(name)}.json"


def attempt_key(attempt: int, what: str) -> str:
    """`what` is `plan`, `resumed` or `end`. Raises `CallError` for a number that no attempt has."""
    if not 1 <= attempt <= MAX_ATTEMPT:
        raise CallError(f"attempt {attempt} is outside 1..{MAX_ATTEMPT}")
    return f"{SUPERVISION}{attempt:08d}/{what}.json"


def parse_attempt_key(key: str) -> tuple[int, str] | None:
    """`(attempt, "plan" | "resumed" | "end")`, or None for any other key."""
    match = _ATTEMPT.fullmatch(key)
    return (int(match[1]), match[2]) if match and int(match[1]) > 0 else None


def attempt_nodes_prefix(attempt: int) -> str:
    """Where supervisors of nodes announce themselves for an attempt. Raises `CallError` for a number that no attempt has."""
    return attempt_key(attempt, "plan").removesuffix("plan.json") + "nodes/"


def attempt_node_key(attempt: int, nonce: str) -> str:
    """Where the supervisor with that nonce does."""
    return f"{attempt_nodes_prefix(attempt)}{nonce}.json"


def parse_attempt_node_key(key: str) -> tuple[int, str] | None:
    """`(attempt, nonce)`, or None for any other key."""
    match = _NODE.fullmatch(key)
    return (int(match[1]), match[2]) if match and int(match[1]) > 0 else None


def digest_name(digest: str) -> str:
    """A digest as part of a file name: `blake3:ab…` → `blake3-ab…`."""
    return digest.replace(":", "-")


def array_name(component: str, path: Path) -> str:
    r"""The dotted name of a leaf: component and path elements joined by `.` (Orbax's convention).

    `%`, `/`, `\` and control characters are percent-encoded, so that a name is one segment.
    """
    if not path:
        return component
    return f"{component}.{_SPECIAL.sub(_escaped, '.'.join([str(value) for _, value in path]))}"


def rank_array_name(rank: int, name: str) -> str:
    """The stored name of a rank-scoped leaf."""
    return f"{RANK_STATE}.{rank}.{name}"


def show_path(component: str, path: Path) -> str:
    """A path for people: `params['Dense_0']['kernel']`, `optimizer[0].mu`."""
    parts = [component]
    for kind, value in path:
        parts.append(f".{value}" if kind == "attr" else f"[{value!r}]")
    return "".join(parts)


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
