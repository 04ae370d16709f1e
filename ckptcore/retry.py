"""Repeating a call that failed for a passing reason, within bounds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ckptcore.errors import StoreUnavailable

ATTEMPTS = 5
FIRST_DELAY = 0.05
"""Seconds before the second attempt; it doubles with each further one."""

Result = TypeVar("Result")


def retry(call: Callable[[], Result], *, what: str, timeout: float) -> Result:
    """Return `call()`, repeated while it raises `StoreUnavailable`.

    At most `ATTEMPTS` times and not beyond `timeout` seconds; the last failure is chained
    to a `StoreUnavailable` that starts with `what`. `call` must be idempotent.
    """
    deadline = time.monotonic() + timeout
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except StoreUnavailable as error:
            # Jitter keeps a thousand ranks from coming back at the same moment.
            delay = FIRST_DELAY * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
            if attempt == ATTEMPTS or time.monotonic() + delay > deadline:
                raise StoreUnavailable(
                    f"{what}: failed {attempt} time(s), the last time with: {error}. "
                    "The outcome is unknown; try again when the store answers"
                ) from error
        time.sleep(delay)
    raise StoreUnavailable(f"{what}: not attempted")
