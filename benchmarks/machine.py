"""The machine that figures were measured on, as far as it bears on them, when, and of which commit.

No host names, no paths, no addresses.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UNKNOWN = "unknown"
PACKAGES = (
    *("jaxckpt", "numpy", "tensorstore", "blake3", "msgspec", "jax", "jaxlib", "torch"),
    *("orbax-checkpoint", "torch_checkpointing", "safetensors"),
)


def describe(folder: Path) -> dict[str, Any]:
    """CPU, memory, kernel, the file system and the device below `folder`, and versions; the day (UTC), and the commit."""
    kind, number = mounted(folder)
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "file_system": kind,
        "device": device(number),
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(ROOT),
    }


def commit(folder: Path) -> str:
    """What is checked out there, with `-dirty` where files were changed since; `unknown` where it is no repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of those that are installed."""
    return {name: found for name in packages if (found := _version(name)) is not None}


def sentence(machine: Mapping[str, Any]) -> str:
    """One line for people."""
    installed = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    when = f"; {machine['date']}, commit {machine['commit']}" if "date" in machine else ""  # older records have none
    return f"{hardware(machine)}; {installed}{when}."


def hardware(machine: Mapping[str, Any]) -> str:
    """The part of it that is no version of a library."""
    computer = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']:g} GiB"
    return f"{computer}, {machine['file_system']} on {machine['device']}, {machine['kernel']}, Python {machine['python']}"


def mounted(folder: Path) -> tuple[str, str]:
    """The type of the file system of `folder`, and the number of its device, `major:minor`; `unknown` without `/proc`."""
    table, wanted = Path("/proc/self/mountinfo"), folder.resolve()
    if not table.exists():
        return "unknown", ""
    best = ("", "unknown", "")
    for line in table.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        number, place = fields.split()[2], fields.split()[4].encode().decode("unicode_escape")
        if wanted.is_relative_to(place) and len(place) >= len(best[0]):  # of two on one place the later one is on top
            best = (place, rest.split()[0], number)
    return best[1], best[2]


def device(number: str) -> str:
    """What kind of disk has that number, in words."""
    block = Path("/sys/dev/block") / number
    if not number or not block.exists():
        return "no block device"
    name = block.resolve().name
    if name.startswith(("vd", "xvd")):
        return "a virtual disk"
    if name.startswith("nvme"):
        return "NVMe"
    rotating = next((path for path in (block / "queue/rotational", block / "../queue/rotational") if path.exists()), None)
    return "an unknown disk" if rotating is None else ("a rotating disk" if rotating.read_text().strip() == "1" else "SSD")


def _cpu() -> str:
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor() or "unknown"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
