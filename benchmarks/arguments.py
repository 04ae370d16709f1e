"""What options take, checked when they are parsed: a mistake is told before anything is measured.

Each function is an argparse `type` and raises `argparse.ArgumentTypeError`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path


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
