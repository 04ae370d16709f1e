"""Running `ckpt` inside the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from ckptcli.app import main


@dataclass(frozen=True)
class Told:
    """What one command printed, and its exit status."""

    status: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        """The document that `--json` printed: one line, and nothing else."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Ckpt:
    """The command, with what it prints captured."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object, status: int = 0) -> Told:
        """Run it. Its exit status has to be `status`."""
        self._capture.readouterr()
        found = main([str(argument) for argument in arguments])
        printed = self._capture.readouterr()
        assert found == status, f"status {found}: {printed.out}{printed.err}"
        assert "Traceback" not in printed.err
        return Told(found, printed.out, printed.err)

    def refused(self, *arguments: object, status: int) -> str:
        """Run it, with an error of one line; returns the line."""
        told = self(*arguments, status=status)
        assert told.out == ""
        assert told.error.count("\n") == 1, told.error
        return told.error.strip()
