"""The peak of resident memory of this process in a block of code.

Linux keeps the peak (`VmHWM`) and can be told to forget it (5 to `clear_refs`). Where it cannot, a thread looks at the
resident bytes every few milliseconds, and may miss short peaks.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
SECONDS = 0.002
"""Between two looks, where the kernel's peak cannot be reset."""


def resident() -> int:
    """Resident bytes of this process now."""
    return _status("VmRSS")


class Peak:
    """`with Peak() as peak: …`; then `peak.bytes` are the most resident bytes in the block less those at its start.

    `base`: resident bytes to count from instead, from an earlier `resident()`. `peak.exact` is False where it was sampled.
    """

    def __init__(self, base: int | None = None) -> None:
        self.bytes = 0
        self.exact = True
        self._given, self._base, self._highest = base, 0, 0
        self._over = threading.Event()
        self._sampler: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._base = resident() if self._given is None else self._given
        self.exact = _forget()
        if not self.exact:
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._sampler is not None:
            self._sampler.join()
        highest = _status("VmHWM") if self.exact else max(self._highest, resident())
        self.bytes = max(0, highest - self._base)

    def _sample(self) -> None:
        while not self._over.wait(SECONDS):
            self._highest = max(self._highest, resident())


def _forget() -> bool:
    """Reset the kernel's peak to what is resident now; False where that cannot be done."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status(field: str) -> int:
    """A field of `/proc/self/status`, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
