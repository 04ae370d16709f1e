"""What is checked: the configurations in which nothing may break, and the variants that must each break an invariant.

A configuration is a set of macros for `protocol.pml` and the processes that run. Every search is exhaustive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# The invariants, as invariants.pml calls them.
K17 = "K17_lost_data_was_retired"
P11 = "P11_complete_is_rolled_forward"
P12 = "P12_abort_needs_a_proof"
P32 = "P32_told_complete_means_taken"
P40 = "P40_two_manifests_differ"
P41 = "P41_unknown_is_not_failure"
P44 = "P44_acknowledged_is_durable"
P50 = "P50_readable_commit_verifies"
P51 = "P51_one_decision_that_never_changes"
P52 = "P52_captured_at_its_step_by_its_writer"
P53 = "P53_head_goes_back_only_by_a_base"
P54 = "P54_what_is_needed_is_not_deleted"
P55 = "P55_decided"
P56 = "P56_superseded_commits_nothing"
P58 = "P58_abort_is_for_the_job_or_a_newer_one"
N5 = "N5_receipt_vouches_for_data"
N6 = "N6_whole_on_the_nodes_is_committed"
N8 = "N8_nothing_rests_on_nodes_only"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One search. `breaks`: the invariant that has to be found broken; None: nothing may be."""

    name: str
    what: str
    start: str
    defines: Mapping[str, int]
    breaks: str | None = None
    optimize: bool = False
    """Whether the search is long enough to pay for an optimizing compiler."""

    @property
    def liveness(self) -> bool:
        """Whether a temporal formula is checked, and not assertions."""
        return "LIVENESS" in self.defines


def _case(name: str, what: str, start: str, *, optimize: bool = False, **defines: int) -> Case:
    processes = "; ".join(f"run {process}" for process in start.split(" + "))
    return Case(name=name, what=what, start=processes, defines=defines, optimize=optimize)


def _variant(of: Case, macro: str, breaks: str, what: str, **defines: int) -> Case:
    """`of` with one thing done wrongly, which `macro` selects."""
    name = macro.lower().replace("_", "-")
    return replace(of, name=name, what=what, breaks=breaks, defines={**of.defines, **defines, macro: 1}, optimize=False)


SAVE = _case(
    "save",
    "a live save; two answers lost, delayed, or errors",
    "Rank(1, 0) + Rank(1, 1) + Coordinator(1) + Network()",
    INCS=1,
    FAULTS=2,
)
DUPLICATE = _case(
    "duplicate",
    "rank 1 was started twice",
    "Rank(1, 0) + Rank(1, 1) + Rank(1, 2) + Coordinator(1)",
    INCS=1,
    WRITERS=3,
)
TAKEOVER = _case(
    "takeover",
    "a newer incarnation settles while the older one still saves; one lost or delayed answer, or error",
    "AtOnce(1, 0) + Rank(1, 1) + Coordinator(1) + Opener(2, 0) + Network()",
    INCS=2,
    FAULTS=1,
)
NEXT_SAVE = _case(
    "next-save",
    "the newer incarnation saves too, while the older one is a zombie",
    "AtOnce(1, 0) + AtOnce(1, 1) + Coordinator(1) + Opener(2, 0)",
    INCS=2,
    GEN_INCS=2,
)
TWO_STARTS = _case(
    "two-starts",
    "two newer incarnations are claimed at once, against a save that is late",
    "AtOnce(1, 0) + AtOnce(1, 1) + Coordinator(1) + Opener(2, 0) + Opener(3, 0)",
    optimize=True,
    INCS=3,
)
ROLLBACK = _case(
    "rollback",
    "a rollback by hand, two starts of the job, and a lost or delayed answer",
    "Opener(2, AT(0)) + Opener(3, 0) + Opener(4, 0) + Network()",
    INCS=3,
    SAVES=2,
    HISTORY=2,
    FAULTS=1,
)
COLLECT = _case(
    "collect",
    "the job's own collector, against a zombie of the incarnation before",
    "AtOnce(1, 0) + Rank(1, 1) + Coordinator(1) + Opener(2, 0)",
    INCS=2,
    JOB_COLLECTS=1,
    COLLECTOR=1,
)
BY_HAND = _case(
    "collect-by-hand",
    "a collector without an incarnation, against a settle and a zombie",
    "AtOnce(1, 0) + AtOnce(1, 1) + Coordinator(1) + Opener(2, 0) + Collector(BY_HAND)",
    INCS=2,
    COLLECTOR=1,
)
DEAD_CLAIM = _case(
    "dead-claim",
    "a start that dies after its claim, the next one, and a zombie",
    "AtOnce(1, 0) + AtOnce(1, 1) + Coordinator(1) + DeadOpener(2) + Opener(3, 0)",
    INCS=3,
)
RETIRE = _case(
    "retire",
    "two collectors, a rollback to what they retire, and another start",
    "Collector(BY_HAND) + Collector(BY_HAND) + Opener(2, AT(0)) + Opener(3, 0)",
    INCS=3,
    SAVES=2,
    HISTORY=2,
    COLLECTOR=1,
)
READ = _case(
    "read",
    "a reader and a pin, against a collector whose puts are lost or delayed",
    "Collector(BY_HAND) + Reader(0) + Pinner(0) + Network()",
    INCS=2,
    SAVES=2,
    HISTORY=2,
    FAULTS=1,
    COLLECTOR=1,
    READER=1,
)
REFERENCE = _case(
    "reference",
    "a save refers to a component of an older commit, which is retired meanwhile; a reader of it",
    "AtOnce(1, 0) + Rank(1, 1) + Coordinator(1) + Collector(BY_HAND) + Reader(2)",
    INCS=2,
    SAVES=3,
    HISTORY=2,
    REFERRING=2,
    COLLECTOR=1,
    READER=1,
)
SOURCE_OF_BASE = _case(
    "source-of-base",
    "a rollback to a commit that refers to an older one, while both are expendable",
    "Collector(BY_HAND) + Opener(2, AT(1))",
    INCS=2,
    SAVES=3,
    HISTORY=3,
    REFERRING=1,
    COLLECTOR=1,
)
POWER = _case(
    "power",
    "the page cache is lost while a rank delivers and rank 0 decides; then a new start",
    "Rank(1, 1) + Coordinator(1) + Power()",
    optimize=True,
    INCS=2,
    POWER=1,
    RANK0_DELIVERED=1,
)
POWER_SETTLE = _case(
    "power-settle",
    "the page cache is lost while two coordinators decide",
    "Coordinator(1) + Opener(2, 0) + Power()",
    INCS=2,
    NO_REBOOT=1,
    POWER=1,
    DELIVERED_BEFORE=1,
)
POWER_COLLECT = _case(
    "power-collect",
    "the page cache is lost while two collectors retire and delete; then a new start",
    "Collector(BY_HAND) + Collector(BY_HAND) + Power()",
    INCS=2,
    SAVES=2,
    HISTORY=2,
    POWER=1,
    COLLECTOR=1,
)
LIVE = _case(
    "live",
    "answers are lost until the trouble ends; ranks may die: the coordinator decides",
    "Rank(1, 0) + Rank(1, 1) + Coordinator(1) + Calm() + Network()",
    INCS=1,
    LIVENESS=1,
)
LIVE_SETTLE = _case(
    "live-settle",
    "the coordinator may die at any step; the next start decides",
    "AtOnce(1, 0) + AtOnce(1, 1) + Coordinator(1) + Opener(2, 0) + Calm() + Killer()",
    INCS=2,
    LIVENESS=1,
)
ANYBODY = _case(
    "anybody",
    "somebody without an incarnation finishes what is complete, beside the job, a settle and a zombie",
    "AtOnce(1, 0) + Rank(1, 1) + Coordinator(1) + Opener(2, 0) + Anybody()",
    INCS=2,
    ANYBODY=1,
)
NODES = _case(
    "nodes",
    "a save by way of the nodes, of which one may be lost; one lost or delayed answer, or error",
    "NodeRank(1, 0, 1) + NodeRank(1, 1, 0) + Coordinator(1) + Loss(1) + Network()",
    INCS=1,
    FAULTS=1,
    NODES=1,
    STAGED_BEFORE=1,
)
NODES_TAKEOVER = _case(
    "nodes-takeover",
    "a start, which may find the nodes, while the older job uploads; a node may be lost",
    "NodeRank(1, 1, 1) + Coordinator(1) + Opener(2, 0) + Loss(1)",
    INCS=2,
    NODES=1,
    STAGED_BEFORE=2,
)
TWO_FINISH = _case(
    "two-finish",
    "two starts finish an upload at once, while the older job goes on with it and the node may be tidied",
    "NodeRank(1, 1, 1) + Opener(2, 0) + Opener(3, 0) + Tidy(1)",
    INCS=3,
    NODES=1,
    STAGED_BEFORE=3,
)
NODES_COLLECT = _case(
    "nodes-collect",
    "the new job's collector, while the older job goes on to upload what was aborted",
    "NodeRank(1, 1, 1) + Opener(2, 0) + Tidy(0)",
    INCS=2,
    NODES=1,
    STAGED_BEFORE=3,
    JOB_COLLECTS=1,
    COLLECTOR=1,
)
JOB_DIES = _case(
    "job-dies",
    "all processes of the job die at any step of the save, all nodes live; the next start",
    "NodeRank(1, 1, 0) + Coordinator(1) + Opener(2, 0) + Death()",
    INCS=2,
    NODES=1,
    DEATH=1,
    STAGED_BEFORE=1,
)
FINISH = _case(
    "finish",
    "… and two starts at once",
    "NodeRank(1, 1, 1) + Opener(2, 0) + Opener(3, 0) + Death()",
    INCS=3,
    NODES=1,
    DEATH=1,
    STAGED_BEFORE=3,
)
LOST_NODE = _case(
    "lost-node",
    "… a node may be lost, come back with other bytes, or be tidied; one lost or delayed answer, or error",
    "NodeRank(1, 1, 1) + Opener(2, 0) + Death() + Loss(0) + Rot(1) + Tidy(1) + Network()",
    INCS=2,
    FAULTS=1,
    NODES=1,
    DEATH=1,
    STAGED_BEFORE=3,
)
POWER_FINISH = _case(
    "power-finish",
    "the page cache is lost while a start and the older job upload",
    "NodeRank(1, 0, 1) + NodeRank(1, 1, 1) + Opener(2, 0) + Power()",
    INCS=2,
    POWER=1,
    NO_REBOOT=1,
    NODES=1,
    STAGED_BEFORE=3,
)
LIVE_FINISH = _case(
    "live-finish",
    "the job dies at any step; what was whole on the nodes is committed",
    "NodeRank(1, 1, 1) + Coordinator(1) + Opener(2, 0) + Calm() + Killer()",
    INCS=2,
    LIVENESS=1,
    NODES=1,
    STAGED_BEFORE=3,
)

CORRECT = [
    SAVE,
    DUPLICATE,
    TAKEOVER,
    NEXT_SAVE,
    TWO_STARTS,
    ROLLBACK,
    COLLECT,
    BY_HAND,
    DEAD_CLAIM,
    RETIRE,
    READ,
    REFERENCE,
    SOURCE_OF_BASE,
    POWER,
    POWER_SETTLE,
    POWER_COLLECT,
    LIVE,
    LIVE_SETTLE,
    ANYBODY,
    NODES,
    NODES_TAKEOVER,
    TWO_FINISH,
    NODES_COLLECT,
    JOB_DIES,
    FINISH,
    LOST_NODE,
    POWER_FINISH,
    LIVE_FINISH,
]

VARIANTS = [
    _variant(TAKEOVER, "OVERWRITE", P51, "a put overwrites"),
    _variant(SAVE, "MANIFEST_FIRST", P50, "the manifest before the receipts"),
    _variant(BY_HAND, "DELETE_FIRST", P50, "deleted before it is aborted"),
    _variant(BY_HAND, "DELETED_TOMBSTONES", P51, "aborts are deleted too"),
    _variant(DEAD_CLAIM, "DELETED_CLAIMS", P56, "claims without a base are deleted"),
    _variant(TAKEOVER, "NO_FENCE", P56, "no fence"),
    _variant(TAKEOVER, "EARLY_FENCE", P56, "the fence before the proof"),
    _variant(TAKEOVER, "STALE_LIST", P56, "the settle's list is stale"),
    _variant(SAVE, "ONE_READ", P41, "an unknown outcome is resolved by one read"),
    _variant(SAVE, "NO_READ_BACK", P41, "a conflict is not read back"),
    _variant(TAKEOVER, "ABORT_ON_TRANSIENT", P12, "an error counts as absent"),
    _variant(TAKEOVER, "SIGNED_MANIFEST", P40, "the manifest says who put it"),
    _variant(TAKEOVER, "FENCED_ABORT", P12, "a fenced coordinator aborts"),
    _variant(DUPLICATE, "SHARED_DATABASE", P52, "both processes of a rank write one database"),
    _variant(DUPLICATE, "DUPLICATE_UNNOTICED", P32, "a rank takes another's receipt for its own"),
    _variant(SAVE, "LATE_CAPTURE", P52, "training goes on before the snapshot"),
    _variant(TAKEOVER, "OVERWRITTEN_INDEX", P50, "the index is written in place"),
    _variant(POWER, "EARLY_RECEIPT", P50, "the receipt before the flush"),
    _variant(POWER_SETTLE, "UNFLUSHED_DECISION", P44, "the decision is reported before it is flushed"),
    _variant(POWER_SETTLE, "NO_SYNC_BY_LOSER", P50, "the loser of a put does not flush"),
    _variant(POWER, "NO_SYNC_BY_READER", P41, "a record is acted upon before it is durable"),
    _variant(TWO_STARTS, "GAP_IN_CLAIMS", P56, "a number is left out"),
    _variant(ROLLBACK, "HEAD_BY_STEP", P53, "the head is the greatest step"),
    _variant(ROLLBACK, "NO_FENCE_AFTER_BASE", P53, "a start that was superseded reports success"),
    _variant(ROLLBACK, "FENCE_BEFORE_BASE", P53, "… or looks before its base is recorded"),
    _variant(RETIRE, "NO_LOOK_AGAIN", P54, "deleted without looking again"),
    _variant(RETIRE, "OPENINGS_UNSEEN", P54, "… looking at bases only, which are not looked at again"),
    _variant(RETIRE, "RECHECK", P54, "… the base is looked at again after it was recorded", OPENINGS_UNSEEN=1),
    _variant(READ, "PINS_UNSEEN", P54, "… without looking for pins"),
    _variant(READ, "RETIRED_READ_FIRST", K17, "a reader looks for the retired record before the data"),
    _variant(REFERENCE, "UNDECIDED_UNSEEN", P54, "… without looking at undecided saves"),
    _variant(SOURCE_OF_BASE, "KEPT_BASE_LOSES_SOURCES", P54, "a kept base does not keep its sources"),
    _variant(BY_HAND, "EAGER_COLLECTOR", P11, "a collector aborts what a settle would commit"),
    _variant(LIVE, "IGNORES_FAILED", P55, "a failed receipt is not noticed"),
    _variant(LIVE, "NO_DEADLINE", P55, "no deadline for receipts"),
    _variant(LIVE_SETTLE, "SETTLES_NOTHING", P55, "a start does not settle"),
    _variant(ANYBODY, "ANYBODY_ABORTS", P58, "anybody aborts what is incomplete"),
    _variant(ANYBODY, "ANYBODY_UNFENCED", P56, "anybody does not fence"),
    _variant(ANYBODY, "ANYBODY_TAKES_OLDER", P53, "anybody takes older incarnations too, fenced by the newest claim"),
    _variant(NODES_TAKEOVER, "STAGED_IS_ENOUGH", P50, "committed from staged receipts, before the upload"),
    _variant(NODES, "RECEIPT_BEFORE_UPLOAD", N5, "the receipt before the files"),
    _variant(NODES_TAKEOVER, "BASE_ON_NODES", N8, "a start goes on from what is whole on the nodes only"),
    _variant(NODES, "LOST_PART_UPLOADED", N5, "a receipt for what the node has lost"),
    _variant(JOB_DIES, "FINISHED_AFTER_THE_SETTLE", N6, "a start claims and settles first, and uploads then"),
    _variant(LOST_NODE, "DELETED_WHILE_UNDECIDED", N6, "deleted from a node while undecided"),
    _variant(LOST_NODE, "CLAIMED_ALL_THE_SAME", N6, "claimed although the store has refused the upload"),
    _variant(LOST_NODE, "UNCOMPARED", P52, "uploaded without comparing digests"),
    _variant(POWER_FINISH, "REPLACED_FILES", P50, "a file that is there is written again, not flushed before it is visible"),
    _variant(POWER_FINISH, "FOUND_FILES_UNFLUSHED", P50, "a file that somebody else uploaded is not flushed"),
    _variant(LIVE_FINISH, "FINISHES_NOTHING", P55, "a start leaves alone what is whole on the nodes"),
]
LARGE = [
    _case(
        "collect-two-starts",
        "a collector without an incarnation, and two starts",
        "AtOnce(1, 0) + AtOnce(1, 1) + Coordinator(1) + Opener(2, 0) + Opener(3, 0) + Collector(BY_HAND)",
        optimize=True,
        INCS=3,
        COLLECTOR=1,
    ),
    _case(
        "save-three",
        "three lost answers",
        "Rank(1, 0) + Rank(1, 1) + Coordinator(1) + Network()",
        optimize=True,
        INCS=1,
        FAULTS=3,
    ),
    _case(
        "takeover-full",
        "both ranks step by step",
        "Rank(1, 0) + Rank(1, 1) + Coordinator(1) + Opener(2, 0) + Network()",
        optimize=True,
        INCS=2,
        FAULTS=1,
    ),
    _case(
        "two-saves",
        "two saves in a row, and a settle",
        "Rank(1, 0) + Rank(1, 1) + Coordinator(1) + Opener(2, 0)",
        optimize=True,
        INCS=2,
        SAVES=2,
    ),
    _case(
        "two-starts-full",
        "a rank step by step",
        "AtOnce(1, 0) + Rank(1, 1) + Coordinator(1) + Opener(2, 0) + Opener(3, 0)",
        optimize=True,
        INCS=3,
    ),
    _case(
        "power-full", "both ranks deliver", "AtOnce(1, 0) + Rank(1, 1) + Coordinator(1) + Power()", optimize=True, INCS=2, POWER=1
    ),
    _case(
        "nodes-takeover-full",
        "… with a lost answer",
        "NodeRank(1, 1, 1) + Coordinator(1) + Opener(2, 0) + Loss(1) + Network()",
        optimize=True,
        INCS=2,
        FAULTS=1,
        NODES=1,
        STAGED_BEFORE=2,
    ),
    _case(
        "two-finish-full",
        "… with the older job's coordinator",
        "NodeRank(1, 1, 1) + Coordinator(1) + Opener(2, 0) + Opener(3, 0) + Tidy(1)",
        optimize=True,
        INCS=3,
        NODES=1,
        STAGED_BEFORE=3,
    ),
    _case(
        "job-dies-full",
        "… while both ranks upload",
        "NodeRank(1, 0, 1) + NodeRank(1, 1, 0) + Coordinator(1) + Opener(2, 0) + Death()",
        optimize=True,
        INCS=2,
        NODES=1,
        DEATH=1,
        STAGED_BEFORE=1,
    ),
]

# Lines of the correct model that no configuration executes, and why they are there.
UNREACHED: dict[str, str] = {}
