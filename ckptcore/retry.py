"""Repeating a call that failed for a passing reason, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ckptcore.clock import Clock
from ckptcore.errors import StoreError, StoreUnavailable

ATTEMPTS = 5
FIRST_DELAY = 0.05
"""Seconds before the second attempt; it doubles with each further one."""

Result = TypeVar("Result")


def retry(call: Callable[[], Result], *, what: str, timeout: float, clock: Clock) -> Result:
    """Return `call()`, repeated while it raises `StoreUnavailable`.

    At most `ATTEMPTS` times and not beyond `timeout` seconds; the last failure is chained
    to a `StoreUnavailable` that starts with `what`. `call` must be idempotent. What else a store says is passed on from
    the first attempt only: that a later one finds no room, or is refused, does not tell what became of those before.
    """
    deadline = clock.monotonic() + timeout
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except StoreUnavailable as error:
            delay = clock.varied(FIRST_DELAY * 2 ** (attempt - 1))
            if attempt == ATTEMPTS or clock.monotonic() + delay > deadline:
                raise StoreUnavailable(
                    f"{what}: failed {attempt} time(s), the last time with: {error}. "
                    "The outcome is unknown; try again when the store answers"
                ) from error
        except StoreError as error:
            if attempt == 1:
                raise
            raise StoreUnavailable(f"{what}: {error}. An earlier try may have been done, or may still be") from error
        clock.sleep(delay)
    raise StoreUnavailable(f"{what}: not attempted")
