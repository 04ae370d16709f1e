"""What options take, checked when they are parsed: a mistake is told before anything is measured.

Each function is an argparse `type` and raises `argparse.ArgumentTypeError`.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path


class Refused(Exception):
    """Options that are right each for itself do not go together."""


def output(text: str) -> Path:
    """A file that can be written: it may be there, its folder has to be."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder, expected a file")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def folder(text: str) -> Path:
    """A folder, there or to be made."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def count(text: str) -> int:
    """A number of times, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def counts(text: str) -> list[int]:
    """Several of them, with commas between."""
    return [count(part.strip()) for part in text.split(",")]


def amount(text: str) -> float:
    """A number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 0 or more")
    return value


def as_given(parse: Callable[[str], object]) -> Callable[[str], str]:
    """The text as it is, when `parse` has nothing against it: records have it so."""

    def checked(text: str) -> str:
        parse(text)
        return text

    return checked
