"""The protocol model: what the checker concludes from spin's answers, and that the model says what the documents say."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SPEC = Path(__file__).parents[2] / "spec"
MODEL = SPEC / "v1" / "model"
sys.path.insert(0, str(MODEL))
check: Any = importlib.import_module("check")
cases: Any = importlib.import_module("model_cases")

EVERY = [*cases.CORRECT, *cases.VARIANTS, *cases.LARGE]
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted(MODEL.glob("*.pml"))}
CLAUSE = re.compile(r"\b([ACDEGHKLNOPRSTV]-\d+)\b")
MAKE = shutil.which("make")
needs_spin = pytest.mark.skipif(bool(check.missing_tools()), reason="spin and gcc are needed: apt-get install spin gcc")

HOLDS = """
Full statespace search for:
	assertion violations	+

State-vector 72 byte, depth reached 100, errors: 0
     4692 states, stored
  134.024	total actual memory usage

unreached in proctype Rank
	model.pml:86, state 7, "x = 0"
	model.pml:90, state 9, "-end-"
	(2 of 34 states)
unreached in init
	(0 of 3 states)
"""
BROKEN = "pan:1: assertion violated (P54_kept||((obj[0]>1))) (at depth 78)\nWarning: Search not completed\n" + HOLDS.replace(
    "errors: 0", "errors: 1"
)
TABLE = """STEP 3 Rank
	state   7 -(tr 474)-> state   9  [id   0 tp   2] [A-e-G] model.pml:86 => x = 0
	state   9 -(tr 475)-> state   0  [id   1 tp   2] [----L] model.pml:90 => -end-
STEP 3 :init:
	state   1 -(tr 5)-> state   2  [id   3 tp   2] [----L] model.pml:95 => (run Rank(1,0))
"""


def case(**changes: Any) -> Any:
    return replace(cases.CORRECT[0], **changes)


# What the checker concludes


def test_a_full_search_that_finds_nothing_holds() -> None:
    found = check.read_search(HOLDS)
    assert (found.states, found.depth, found.megabytes) == (4692, 100, 134.024)
    assert found.unreached == {("Rank", 7), ("Rank", 9)}
    assert check.judge(case(), found) is None


def test_an_uncaught_variant_is_reported() -> None:
    assert check.judge(case(breaks="P54_kept"), check.read_search(HOLDS)) == "not caught"


def test_a_variant_has_to_break_the_invariant_that_is_named() -> None:
    found = check.read_search(BROKEN)
    assert check.judge(case(breaks="P54_kept"), found) is None
    assert check.judge(case(breaks="P50_verifies"), found) == "caught by P54_kept, expected P50_verifies"
    assert check.judge(case(), found) == "breaks P54_kept"


@pytest.mark.parametrize(
    ("line", "invariant"),
    [
        ("pan:1: acceptance cycle (at depth 86)", "P55_decided"),
        ("pan:1: invalid end state (at depth 9)", "P2_nobody_waits_for_ever"),
    ],
)
def test_what_is_no_assertion_has_a_name_too(line: str, invariant: str) -> None:
    assert check.read_search(f"{line}\n{BROKEN.partition(chr(10))[2]}").broken == invariant


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("error: max search depth too small\n" + HOLDS, "max search depth too small"),
        ("pan: out of memory\n" + HOLDS, "out of memory"),
        ("pan: reached -DMEMLIM bound\n" + HOLDS, "reached -DMEMLIM bound"),
        (HOLDS.replace("Full statespace", "Bit statespace"), "it was no full search"),
        (HOLDS.replace("Full statespace", "Hash-Compact 4"), "it was no full search"),
        ("Warning: Search not completed\n" + HOLDS, "it was not completed"),
        (HOLDS.replace("errors: 0", "errors: 1"), "it was not completed"),
        (HOLDS.partition("State-vector")[0], "it did not end"),
        ("", "it was no full search"),
    ],
)
def test_a_search_that_was_cut_short_proves_nothing(output: str, reason: str) -> None:
    found = check.read_search(output)
    assert check.judge(case(), found) == f"proves nothing: {reason}"
    assert check.judge(case(breaks="P54_kept"), found) == f"proves nothing: {reason}"


def test_lines_that_no_configuration_executes_are_named() -> None:
    table = check.read_table(TABLE)
    assert table == {("Rank", 7): 86, ("Rank", 9): 90, ("init", 1): 95}
    search = check.read_search(HOLDS)
    once = check.Result(case=case(), search=search, lines={"a:1": True, "a:2": False, "a:3": False})
    again = check.Result(case=case(), search=search, lines={"a:1": False, "a:2": False, "a:3": True})
    variant = check.Result(case=case(breaks="P54_kept"), search=search, lines={"a:2": True})
    assert check.dead_lines([once, again, variant]) == ["a:2: a:2"]
    assert check.dead_lines([once, again, variant], allowed={"a:2": "for a reason"}) == []


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, MODEL / "check.py"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == check.MISSING_TOOL == 77
    assert done.stderr == "The model was not checked: spin and gcc not found. On Debian: apt-get install spin gcc\n"
    assert done.stdout == ""


def test_a_name_that_no_case_has_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "missing_tools", list)
    with pytest.raises(SystemExit) as refused:
        check.main(["--only", "sav"])
    assert refused.value.code == 2
    assert "no case is called sav" in capsys.readouterr().err


def test_the_list_is_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--list"]) == 0
    groups = [group.splitlines() for group in capsys.readouterr().out.split("\n\n")]
    assert [group[0].split()[0] for group in groups] == ["Configurations:", "Variants:", "Larger"]
    assert [line.split()[0] for group in groups for line in group[1:]] == [each.name for each in EVERY]


@pytest.mark.skipif(MAKE is None, reason="make is needed")
@pytest.mark.parametrize(("status", "made"), [(0, 0), (1, 2), (77, 0)])
def test_make_takes_a_missing_tool_for_no_failure(status: int, made: int, tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\nexit {status}\n")
    stand_in.chmod(0o755)
    done = subprocess.run([str(MAKE), "model", f"PYTHON={stand_in}"], cwd=SPEC.parent, capture_output=True, check=False)
    assert done.returncode == made


# What the model and its documents say


def test_names_are_unique() -> None:
    names = [each.name for each in EVERY]
    assert sorted(names) == sorted(set(names))
    assert all(each.breaks is None for each in [*cases.CORRECT, *cases.LARGE])
    assert len(cases.CORRECT) >= 15


@pytest.mark.parametrize("variant", cases.VARIANTS, ids=lambda each: each.name)
def test_a_variant_is_a_correct_configuration_with_something_wrong(variant: Any) -> None:
    of = next(each for each in cases.CORRECT if each.start == variant.start and each.defines.items() <= variant.defines.items())
    macros = set(variant.defines) - set(of.defines)
    assert macros
    assert all(re.search(rf"^#(?:if|elif).*\b{macro}\b", "\n".join(SOURCES.values()), re.MULTILINE) for macro in macros)


def test_every_invariant_is_broken_by_a_variant() -> None:
    declared = set(re.findall(r"^hidden byte (\w+);", SOURCES["invariants.pml"], re.MULTILINE)) | {"P55_decided"}
    assert {each.breaks for each in cases.VARIANTS} == declared


def test_every_macro_of_a_variant_is_off_in_every_correct_configuration() -> None:
    wrong = {each.name.upper().replace("-", "_") for each in cases.VARIANTS}
    assert not wrong & {macro for each in [*cases.CORRECT, *cases.LARGE] for macro in each.defines}


def test_clauses_that_the_model_names_exist() -> None:
    documents = "\n".join(path.read_text(encoding="utf-8") for path in (SPEC / "v1").glob("*.md"))
    clauses = set(re.findall(r"^(?:- |\d+\. )?\*\*([A-Z]-\d+)\*\*", documents, re.MULTILINE))
    texts = {**SOURCES, "README.md": (MODEL / "README.md").read_text(encoding="utf-8")}
    cited = {clause for text in texts.values() for clause in CLAUSE.findall(text)}
    assert len(cited) > 50
    assert cited - clauses == set()


def test_the_readme_has_every_case_and_every_invariant() -> None:
    text = (MODEL / "README.md").read_text(encoding="utf-8")
    assert [each.name for each in EVERY if f"`{each.name}`" not in text] == []
    assert [
        name for name in re.findall(r"^hidden byte (\w+);", SOURCES["invariants.pml"], re.MULTILINE) if name not in text
    ] == []


def test_includes_are_expanded_and_lines_keep_their_origin() -> None:
    text = check.source(cases.CORRECT[0])
    assert not any(line.startswith("#include") for line in text.lines)
    number = text.lines.index("proctype Coordinator(byte n)") + 1
    name, _, line = text.where(number).partition(":")
    assert name == "coordinator.pml"
    assert SOURCES[name].splitlines()[int(line) - 1] == text.lines[number - 1]


# Spin itself


def run(*names: str, trail: bool = False) -> list[Any]:
    return [check.search(each, with_trail=trail) for each in EVERY if each.name in names]


@needs_spin
def test_spin_finds_the_counterexample_of_a_variant() -> None:
    (result,) = run("manifest-first", trail=True)
    assert result.problem is None
    assert any(step.startswith("Coordinator#") and "→ LEDGER(0) = 2" in step for step in result.trail)


@needs_spin
def test_a_variant_with_nothing_wrong_is_not_caught() -> None:
    harmless = replace(next(each for each in EVERY if each.name == "manifest-first"), defines={"INCS": 1, "FAULTS": 0})
    assert check.search(harmless).problem == "not caught"


@needs_spin
@pytest.mark.slow
def test_a_search_that_is_not_deep_enough_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "DEPTH", 20)
    (result,) = run("save")
    assert result.problem == "proves nothing: max search depth too small"


@needs_spin
@pytest.mark.slow
def test_small_configurations_hold_and_their_variants_are_caught(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["save", "one-read", "source-of-base", "kept-base-loses-sources", "live", "no-deadline"]
    assert check.main(["--only", *names]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(names)} searches, 0 not as expected, 0 lines that nothing executes"


@needs_spin
@pytest.mark.slow
def test_the_command_fails_if_a_variant_is_not_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = replace(next(each for each in EVERY if each.name == "manifest-first"), defines={"INCS": 1, "FAULTS": 0})
    monkeypatch.setattr(cases, "VARIANTS", [harmless])
    assert check.main(["--only", "manifest-first"]) == 1
    assert "FAIL not caught" in capsys.readouterr().out
