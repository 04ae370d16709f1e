"""What both demos take as options."""

from __future__ import annotations

import argparse
from pathlib import Path


def new_folder(text: str) -> Path:
    """The value of `--dir`: a folder that is new or empty. Raises `ArgumentTypeError` for another."""
    folder = Path(text).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise argparse.ArgumentTypeError(f"{folder} is not empty")
    return folder
