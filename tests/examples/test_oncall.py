"""What `docs/oncall.md` shows is what the command prints, on runs that are in just that trouble."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcli import app
from ckptcore import errors, names
from ckptcore.channel import Channel
from ckptcore.errors import Damaged, GuaranteeError, SaveFailed, Superseded
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcore.support import checkpointer, memory_directory, run_ranks, state
from tests.examples.guides import DOCS, blocks
from tests.examples.trouble import RUNS, job


def sections() -> dict[str, list[tuple[str, list[str]]]]:
    """By the name of the run, the commands in order, each with the lines that are shown."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for block in blocks("oncall.md", "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            (name,) = re.findall(r"/runs/([a-z-]+)", command)
            found.setdefault(name, []).append((command, shown))
    return found


SECTIONS = sections()


@pytest.fixture(name="runs")
def _runs() -> Iterator[Path]:
    with memory_directory() as folder:
        yield folder


def pattern(shown: list[str]) -> str:
    """`…` in a line stands for any part of it, alone for any lines. How wide a column is depends on what it holds."""
    lines = ["(?:[^\n]*\n)*?" if line == "…" else _line(line) + "\n" for line in shown]
    return "".join(lines)


def _line(shown: str) -> str:
    words = [".*".join(map(re.escape, word.split("…"))) for word in shown.split()]
    return r"[ ]*" + r"[ ]+".join(words) + r"[ ]*"


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_what_is_shown_is_what_is_printed(name: str, runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    RUNS[name](runs / name)
    for command, shown in SECTIONS[name]:
        capfd.readouterr()
        app.main(shlex.split(command.replace("/runs/", f"{runs}/"))[1:])
        printed = capfd.readouterr()
        assert printed.err == ""
        assert re.fullmatch(pattern(shown), printed.out.replace(f"{runs}/", "/runs/")), f"{command}\n{printed.out}"


def test_every_kind_of_trouble_is_shown() -> None:
    assert SECTIONS.keys() == RUNS.keys()
    assert sum(len(commands) for commands in SECTIONS.values()) > 15


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        (["a … c"], "  a b  c\n", True),
        (["a … c"], "a b d\n", False),
        (["…", "b"], "a\nb\n", True),
        (["…", "b"], "a\n", False),
        (["a"], "a\nb\n", False),
    ],
)
def test_the_comparison_can_fail(shown: list[str], printed: str, fits: bool) -> None:  # noqa: FBT001
    assert bool(re.fullmatch(pattern(shown), printed)) is fits


def test_what_a_superseded_job_says(runs: Path) -> None:
    older = job(runs / "run", 10000)
    job(runs / "run")
    with pytest.raises(Superseded) as told:
        older.save(20000)
    shown = re.sub(r"\s+", " ", (DOCS / "oncall.md").read_text())
    said = re.sub(r"000001-\S+:", "…:", str(told.value)).partition(". Stop")[0]
    assert f"`{said}`" in shown


def test_what_a_restore_on_other_hardware_says(runs: Path) -> None:
    with checkpointer(runs / "run") as saver:
        saver.save(10, state(10)).result()

    def resume(link: Channel) -> object:
        with checkpointer(runs / "run", link) as saver:
            return saver.restore_or_init(lambda: state(0), like=state(0, link.rank, 2))

    outcomes = run_ranks(2, resume)
    assert all(isinstance(outcome, GuaranteeError) for outcome in outcomes)
    assert f"{outcomes[0]}\n" in blocks("oncall.md", "text")


def test_what_a_start_does_when_there_is_nothing(runs: Path) -> None:
    """The table: weights alone are a fresh start, damaged or quarantined checkpoints are an error."""
    with checkpointer(runs / "weights") as saver:
        saver.save(10, {"params": state(10)["params"]}, guarantee="weights").result()
    with checkpointer(runs / "weights") as saver:
        assert saver.restore_or_init(lambda: state(0), like=state(0)).step == 0
    with checkpointer(runs / "quarantined") as saver:
        manifest = saver.save(10, state(10)).result()
    open_run(runs / "quarantined").quarantine(manifest, "loss spike")
    with checkpointer(runs / "quarantined") as saver, pytest.raises(Damaged, match="none of the run's checkpoints"):
        saver.restore_or_init(lambda: state(0), like=state(0))


def train(run: Path, code: str) -> None:
    """A loop that saves at steps 10, 20 and 30 by `code`; at step 10 a file lies where a folder has to be made."""
    with checkpointer(run) as ckpt:
        ckpt.restore_or_init(lambda: state(0), like=state(0))
        blocked = run / names.generation_prefix(GenerationId(1, 10, 1)).rstrip("/")
        blocked.parent.mkdir(parents=True)
        blocked.write_bytes(b"in the way")
        for step in range(1, 31):
            log = logging.getLogger("loop")
            exec(code, {"ckpt": ckpt, "step": step, "state": state(step), "errors": errors, "log": log})  # noqa: S102


def committed(run: Path) -> list[int]:
    return [each.step for each in open_run(run).generations() if each.state == "committed"]


def test_the_loop_that_goes_on_when_a_save_fails(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    (code,) = blocks("oncall.md")
    train(runs / "run", code)
    assert committed(runs / "run") == [20, 30]
    (told,) = [each.message for each in caplog.records if each.name == "loop"]
    assert told.startswith("training goes on without that checkpoint: rank 0 could not write its part of 000001-000000000010-1")


def test_a_loop_that_catches_nothing_ends_at_its_next_save(runs: Path) -> None:
    with pytest.raises(SaveFailed):
        train(runs / "run", "if ckpt.should_save(step): ckpt.save(step, state)")
    assert committed(runs / "run") == [20]
