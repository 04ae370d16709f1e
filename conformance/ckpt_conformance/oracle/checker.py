"""The oracle: reads what an implementation left in a store, from the spec alone, and says what is wrong with it.

Records are judged by themselves (`records`), then against each other; every commit that is not retired is proven anew from its
receipts (P-35), its manifest is derived anew and compared (R-60), and every byte of it is read and compared with its digest.
What a retired or aborted generation has left of its data is not looked at here (see `wanting`), but the records that are there
have to be right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from blake3 import blake3

from ckpt_conformance.oracle import digests, keys, retention, staged, supervision
from ckpt_conformance.oracle.arrays import Databases
from ckpt_conformance.oracle.commits import faults, outcome, same
from ckpt_conformance.oracle.keys import Generation
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.oracle.retention import Kept, retired_too_much
from ckpt_conformance.oracle.run import Run, Value
from ckpt_conformance.oracle.survey import Facts, Survey, survey
from ckpt_conformance.place import Place

__all__ = ["Facts", "Kept", "Problem", "Survey", "check", "decisive", "kept", "retired_too_much", "survey", "wanting"]


def check(place: Place, *, damaged: Collection[str] = ()) -> list[Problem]:
    """Everything that is wrong with the run at `place`, sorted; nothing if there is no run.

    `damaged` names the keys of objects that were damaged from outside: they are excused, and nothing is concluded from them. What
    follows from the damage elsewhere, such as a cell that cannot be read any more, is a problem like any other.
    """
    run = Run(place, damaged)
    found = {*_records(run), *_identity(run), *_incarnations(run), *_ledger(run), *_notes(run), *supervision.faults(run)}
    databases = Databases(place)
    for generation in run.generations:
        found.update(faults(run, databases, generation))
        found.update(staged.faults(run, generation))
    return sorted(_excusing(run, found))


def kept(place: Place, *, damaged: Collection[str] = (), vouched: Collection[int] = ()) -> Kept:
    """What a collection may not take from the run at `place`; `vouched` as in `retention.kept`."""
    return retention.kept(Run(place, damaged), vouched)


def wanting(place: Place, generation: str, *, damaged: Collection[str] = ()) -> list[Problem]:
    """What is wrong with the data of a commit, though it is retired."""
    run = Run(place, damaged)
    return sorted(_excusing(run, {*faults(run, Databases(place), generation, is_kept=True)}))


def decisive(place: Place) -> dict[str, bytes]:
    """The objects that never change nor go (L-5): `run.json`, and everything under `incarnations/` and `ledger/`."""
    found = [key for key in place.keys("") if key == "run.json" or key.startswith(("incarnations/", "ledger/"))]
    contents = {key: place.read(key) for key in found}
    return {key: content for key, content in contents.items() if content is not None}


def _excusing(run: Run, found: Collection[Problem]) -> list[Problem]:
    return [problem for problem in found if problem.key not in run.damaged]


def _records(run: Run) -> Iterator[Problem]:
    """Each record by itself, and against its key."""
    for key, judged in run.judged.items():
        yield from (Problem(key, clause, text) for clause, text in judged.faults)
        if judged.value is not None:
            yield from _against_key(run, key, judged.value)


def _against_key(run: Run, key: str, value: Value) -> Iterator[Problem]:
    parts = run.named[key].parts
    for field in ("generation", "component"):
        if field in parts and field in value and value[field] != parts[field]:
            yield Problem(key, "R-12", f"its {field} is {value[field]!r}")
    for field in ("incarnation", "rank", "attempt"):
        if field in parts and value[field] != int(parts[field]):
            yield Problem(key, "R-12", f"its {field} is {value[field]}")
    if "nonce" in parts and value["supervisor"]["nonce"] != parts["nonce"]:
        yield Problem(key, "R-12", f"its supervisor's nonce is {value['supervisor']['nonce']}")
    content = run.content[key]
    if "digest" in parts and keys.in_key(digests.digest(content)) != parts["digest"]:
        yield Problem(key, "L-14", f"its bytes have the digest {digests.digest(content)}")


def _identity(run: Run) -> Iterator[Problem]:
    """One run, and only one, has all the records (P-5, R-12)."""
    if all(key.startswith(supervision.FOLDER) for key in run.content):
        return  # a supervisor begins before the run does (U-8)
    if "run.json" not in run.content:
        yield Problem("run.json", "P-5", "is not there, though other records are")
    for key, judged in run.judged.items():
        nameless = key.startswith(supervision.FOLDER) and judged.value is not None and judged.value["run_id"] is None
        if nameless or judged.value is None or run.run_id is None:
            continue
        if judged.value.get("run_id", run.run_id) != run.run_id:
            yield Problem(key, "R-12", f"is of the run {judged.value['run_id']}")


def _incarnations(run: Run) -> Iterator[Problem]:
    """Claims are contiguous, nothing comes without its claim and base, and bases fit what they name."""
    bearing = {Generation.parse(generation).incarnation for generation in run.generations}
    for incarnation in range(1, max({0, *run.claims, *run.bases, *bearing}) + 1):
        key = keys.claim(incarnation)
        if incarnation not in run.claims:
            yield Problem(key, "P-8", "is not there, though its number or a greater one is used")
        if incarnation in bearing and incarnation not in run.bases:
            yield Problem(keys.base(incarnation), "P-20", "is not there, though the incarnation has saved")
    for incarnation, key in run.bases.items():
        base = run.value(key)
        if base is not None:
            yield from _base(run, incarnation, key, base)


def _base(run: Run, incarnation: int, key: str, base: Value) -> Iterator[Problem]:
    claim = run.claim(incarnation)
    if claim is not None and base["nonce"] != claim["nonce"]:
        yield Problem(key, "R-30", "its nonce is not that of the claim")
    generation = base["generation"]
    if (base["reason"] == "new") != (generation is None):
        yield Problem(key, "P-28", f"its reason is {base['reason']!r}, its generation {generation!r}")
    if generation is not None:
        yield from _start(run, incarnation, key, base)
    settled = {entry["generation"]: entry["decision"] for entry in base.get("settled", [])}
    if base["reason"] == "rolled-forward" and settled.get(generation) != "commit":
        yield Problem(key, "P-28", f"{generation} was not committed by this settle")
    if list(settled) != sorted(settled, key=Generation.parse):
        yield Problem(key, "R-30", "`settled` is not in order, oldest first")
    for other, decision in settled.items():
        yield from _settled(run, incarnation, key, other, decision)


def _start(run: Run, incarnation: int, key: str, base: Value) -> Iterator[Problem]:
    """The generation that an incarnation starts from."""
    generation = base["generation"]
    if Generation.parse(generation).incarnation >= incarnation:
        yield Problem(key, "R-31", f"{generation} is not of an older incarnation")
    yield from same(run, key, "R-30", generation, base["manifest"])
    manifest = run.manifest(generation)
    if manifest is not None and manifest["guarantee"]["level"] == "weights":
        yield Problem(key, "O-18", f"{generation} is no resume point: its guarantee is `weights`")


def _settled(run: Run, incarnation: int, key: str, generation: str, decision: str) -> Iterator[Problem]:
    if Generation.parse(generation).incarnation >= incarnation:
        yield Problem(key, "P-10", f"{generation} was settled, which is not of an older incarnation")
    if outcome(run, generation) not in (decision, "unknown"):
        yield Problem(
            key, "P-10", f"{generation} is said to be settled by {decision}, and the ledger has {outcome(run, generation)}"
        )


def _ledger(run: Run) -> Iterator[Problem]:
    """Decisions and retirements against each other, and the newest commits, which are never retired."""
    for generation in run.decided:
        abort = run.value(keys.decision(generation), "abort")
        if abort is not None:
            yield from _abort(run, keys.decision(generation), abort)
    for key in [key for key, named in run.named.items() if named.kind == "retired"]:
        value = run.value(key)
        if value is not None:
            yield from same(run, key, "R-68", value["generation"], value["manifest"])
    commits = [(generation, value) for generation in run.decided if (value := run.manifest(generation)) is not None]
    resumable = [(generation, value) for generation, value in commits if value["guarantee"]["level"] != "weights"]
    for newest in {generation for group in (commits, resumable) for generation, _ in group[-1:]}:
        if run.is_retired(newest) and not any(outcome(run, other) == "unknown" for other in run.decided):
            yield Problem(keys.retired(newest), "K-2", "retires the newest commit, or the newest resumable one")


def _abort(run: Run, key: str, abort: Value) -> Iterator[Problem]:
    by = abort["decided_by"]
    claimed = by in run.claims or keys.claim(by) in run.damaged
    if not claimed or by < Generation.parse(abort["generation"]).incarnation:
        yield Problem(key, "R-65", f"incarnation {by}, which is said to have decided it, could not")


def _notes(run: Run) -> Iterator[Problem]:
    """Names of notes follow from their content (R-72)."""
    for key in [key for key, named in run.named.items() if named.kind == "note"]:
        value = run.value(key)
        if value is not None and run.named[key].parts["name"] not in _names(value, run.content[key]):
            yield Problem(key, "R-72", f"is no name of a note of kind {value['kind']!r}")


def _names(note: Value, content: bytes) -> set[str]:
    if note["kind"] == "quarantine":
        return {"quarantine"}
    if note["kind"] == "tag":
        return {f"tag-{note['tag']}"}
    name = f"{note['kind']}-{blake3(content).hexdigest()[:12]}"
    return {name, "pin"} if note["kind"] == "pin" else {name}
