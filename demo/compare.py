"""Whether two runs are the same, bit for bit, and what one run used of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demo.run_log import Step

MAX_DIFFERENCES = 5


@dataclass(frozen=True)
class Check:
    """A claim about the run, the figures behind it, and whether it held."""

    name: str
    detail: str
    held: bool


def array_differences(reference: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """Every array that differs in name, type, shape or any bit; NaN equals the same NaN, 0.0 is not -0.0."""
    found = [f"{name} is in one run only" for name in sorted(reference.keys() ^ other.keys())]
    for name in sorted(reference.keys() & other.keys()):
        expected, given = reference[name], other[name]
        if (expected.dtype, expected.shape) != (given.dtype, given.shape):
            found.append(f"{name} is {given.dtype}{given.shape}, expected {expected.dtype}{expected.shape}")
        elif expected.tobytes() != given.tobytes():
            bits = _bits(expected) ^ _bits(given)
            found.append(f"{name} differs in {int(np.bitwise_count(bits).sum())} bits")
    return found


def step_differences(reference: Mapping[int, Step], other: Mapping[int, Step]) -> dict[str, list[str]]:
    """Differences in `loss`, `rng` and `samples` over the steps of `other`; a step that `reference` lacks is one."""
    found: dict[str, list[str]] = {"loss": [], "rng": [], "samples": []}
    for number, step in sorted(other.items()):
        expected = reference.get(number)
        for name, differences in found.items():
            if expected is None or getattr(expected, name) != getattr(step, name):
                differences.append(f"step {number}: {getattr(step, name)} instead of {getattr(expected, name, None)}")
    return found


def identical(name: str, differences: Sequence[str], detail: str) -> Check:
    """A check that there are no differences; it shows the first few if there are."""
    shown = "; ".join(differences[:MAX_DIFFERENCES])
    more = f"; and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
    return Check(name, shown + more if differences else detail, held=not differences)


def epoch_problems(batches: Iterable[Sequence[int]], *, samples: int) -> list[str]:
    """What keeps `batches` from being whole epochs in which each sample is used exactly once."""
    used = [sample for batch in batches for sample in batch]
    problems = [f"{len(used)} samples are no whole number of epochs of {samples}"] if len(used) % samples or not used else []
    for epoch in range(len(used) // samples):
        counts = Counter(used[epoch * samples : (epoch + 1) * samples])
        repeated = sorted(sample for sample, count in counts.items() if count > 1)
        missing = sorted(set(range(samples)) - counts.keys())
        foreign = sorted(counts.keys() - set(range(samples)))
        if repeated or missing or foreign:
            problems.append(f"epoch {epoch}: {_few(repeated)} repeated, {_few(missing)} skipped, {_few(foreign)} unknown")
    return problems


def percent(share: float) -> str:
    """A share of 1, for people: 0.98850 is `98.9 %`."""
    return f"{100 * share:.1f} %"


def _few(samples: Sequence[int]) -> str:
    return f"{len(samples)} ({', '.join(map(str, samples[:3]))}, …)" if samples else "none"


def _bits(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)
