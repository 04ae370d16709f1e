"""The exceptions of the project, grouped by what a handler would do.

```
CheckpointError
├── CallError               fix the call
│   ├── StructureMismatch     the checkpoint and the target differ; every difference is listed
│   ├── UnsupportedLeaf       a leaf has no place in the format
│   ├── GuaranteeError        the promise asked for cannot be kept
│   ├── StagingLimit          `max_staging_bytes` is smaller than the snapshot
│   ├── ForkRequired          a weights-only checkpoint cannot continue a run
│   └── NotFound              no such run, generation or step
├── StoreError              fix the store, or try again
│   ├── StoreUnavailable      transient: time-out, 5xx, I/O error
│   ├── StoreFull             no room left
│   └── UnsafeStore           the store breaks a rule the protocol needs
├── DamageError             choose another checkpoint
│   ├── Damaged               bytes are missing, short or differ from their digest
│   ├── InvalidRecord         a record is malformed
│   ├── UnsupportedFormat     a version or feature this reader does not know
│   ├── ForeignRecord         a record that belongs to another run or generation
│   └── Retired               retention has taken the checkpoint away
├── SaveError               the outcome of one save
│   ├── SaveAborted           decided: this generation will never be a checkpoint
│   ├── SaveFailed            this rank could not write its part
│   └── CommitUnknown         no decision is visible yet; it may still commit
├── DeadlineExceeded        a wait ended; the message names what is missing
├── Superseded              a newer incarnation owns the run: stop
└── ProtocolViolation       two different records for one decision: call for help

SystemExit
└── Preempted               the job was told to stop, and has saved
```
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_SHOWN = 30
"""The most differences that the message of a `StructureMismatch` shows: a wrong name makes one of every leaf."""


class CheckpointError(Exception):
    """Base of every error the project raises on purpose.

    `kind` is a stable machine-readable word; the conformance adapters report it.
    """

    kind = "error"


class CallError(CheckpointError):
    """The call cannot be served as made."""

    kind = "call"


class StructureMismatch(CallError):
    """The checkpoint and the target differ. `differences` lists all of them; the message shows the first `MOST_SHOWN`."""

    kind = "structure-mismatch"
    differences: tuple[str, ...] = ()
    """Empty when the error is that of another rank, which passed on its message alone."""

    def __init__(self, summary: str, differences: Sequence[str] = ()) -> None:
        self.differences = tuple(differences)
        unshown = len(self.differences) - MOST_SHOWN
        more = [f"… and {unshown} more"] if unshown > 0 else []
        super().__init__("\n  - ".join([summary, *self.differences[:MOST_SHOWN], *more]))


class UnsupportedLeaf(CallError):
    """A leaf has no place in the format; the message names its path and type."""

    kind = "unsupported-leaf"


class GuaranteeError(CallError):
    """The components at hand cannot keep the promise that is asked for."""

    kind = "guarantee"


class StagingLimit(CallError):
    """The snapshot needs more bytes than `max_staging_bytes` allows."""

    kind = "staging-limit"


class ForkRequired(CallError):
    """A weights-only checkpoint starts a new run; it never continues one."""

    kind = "fork-required"


class NotFound(CallError):
    """There is no such run, generation or step."""

    kind = "not-found"


class StoreError(CheckpointError):
    """The store did not do what was asked of it."""

    kind = "store"


class StoreUnavailable(StoreError):
    """A transient failure: nothing may be concluded from it, the call may be repeated."""

    kind = "store-unavailable"


class StoreFull(StoreError):
    """The store has no room left."""

    kind = "store-full"


class UnsafeStore(StoreError):
    """The store breaks a rule the commit protocol rests on."""

    kind = "unsafe-store"


class DamageError(CheckpointError):
    """This checkpoint cannot be used; another one may."""

    kind = "damage"


class Damaged(DamageError):
    """Stored bytes are missing, short, or differ from the digest that certifies them."""

    kind = "damaged"


class InvalidRecord(DamageError):
    """A record is not what the specification says."""

    kind = "invalid-record"


class UnsupportedFormat(DamageError):
    """A record needs a format version or a feature that this reader does not know."""

    kind = "unsupported-format"


class ForeignRecord(DamageError):
    """A record belongs to another run, generation or rank than its place says."""

    kind = "foreign-record"


class Retired(DamageError):
    """Retention has retired this checkpoint; its data may be gone."""

    kind = "retired"


class SaveError(CheckpointError):
    """A save did not become a checkpoint, or is not known to have become one."""

    kind = "save"


class SaveAborted(SaveError):
    """The ledger says abort: this generation will never be a checkpoint.

    `missing` lists the ranks that delivered no receipt.
    """

    kind = "save-aborted"
    missing: tuple[int, ...] = ()

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        self.missing = tuple(missing)
        super().__init__(message)


class SaveFailed(SaveError):
    """This rank could not write its part; the cause is chained."""

    kind = "save-failed"


class CommitUnknown(SaveError):
    """No decision is visible yet. The generation may still commit; ask the ledger again."""

    kind = "commit-unknown"


class DeadlineExceeded(CheckpointError):
    """A wait reached its deadline; the message names what did not arrive."""

    kind = "deadline"


class Superseded(CheckpointError):
    """A newer incarnation owns the run; this job must stop."""

    kind = "superseded"


class Preempted(SystemExit):
    """The job was asked to stop, and its last state is saved.

    Not a `CheckpointError`: nothing failed. Uncaught, it ends the process with status 143, which
    schedulers know as the answer to SIGTERM.
    """

    kind = "preempted"

    def __init__(self, message: str) -> None:
        super().__init__(143)
        self.message = message

    def __str__(self) -> str:
        return self.message


class ProtocolViolation(CheckpointError):
    """Two different records exist for one decision. Nothing was overwritten."""

    kind = "protocol-violation"
