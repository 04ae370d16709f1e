"""A made-up run with every outcome, for the tests of the reports."""

from __future__ import annotations

from typing import Any

from ckpt_conformance.results import Column, Outcome, Result, Run, StepResult

FAMILIES = {"crash": 24, "reshard": 40, "cross": 20, "damage": 36, "order": 30, "layout": 14, "resume": 12, "store": 6}
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\x00\x1b[31mred\x1b[0m \ud800 ]]> \'"'


FIRST, SECOND = "000001-000000000001-1", "000002-000000000002-1"


def column(name: str) -> Column:
    framework = {"jax": "jax", "torch": "torch"}.get(name, "")
    answer = {"contract": 1, "name": name, "version": "0.1.0", "framework": f"{framework} 1.2.3", "format": "1.0"}
    return Column(name=name, command=name, describe=answer if framework else {})


def survey(*, committed: bool) -> dict[str, Any]:
    facts = {"retired": False, "failed": [], "missing": [], "reason": None}
    first = {"decision": "commit", "complete": [0, 1], "data": "whole", "derived": "whole", **facts}
    second = {
        "decision": "commit" if committed else "none",
        "complete": [0, 1],
        "data": "whole",
        "derived": "whole" if committed else "none",
        **facts,
    }
    return {
        "incarnations": {"1": "base", "2": "base"},
        "generations": {FIRST: first, SECOND: second},
    }


def steps(*, wrong: bool = False, log: str = "") -> list[StepResult]:
    leaf = {"dtype": "float32", "boxes": [{"start": [0, 0], "stop": [4, 96], "digest": "blake3:" + "5f" * 32}]}
    saved = {"incarnation": 1, "resumed": None, "saves": [{"generation": FIRST, "outcome": "committed"}]}
    base = {"incarnation": 3, "base": FIRST if wrong else SECOND, "reason": "newest"}
    leaves = {f"params.layer{number}.kernel": leaf for number in range(6)}
    problems = [f"base is {FIRST}, not {SECOND}"] if wrong else []
    before, after = survey(committed=False), survey(committed=not wrong)
    done = [
        StepResult(
            title="save step 1 on 2 processes",
            expected={"exit": "done", "answer": {"saves": [{"outcome": "committed"}]}},
            found=[{"rank": rank, "exit": "done", "answer": saved} for rank in range(2)],
            store=before,
            log=log,
        ),
        StepResult(
            title="save step 2 on 2 processes, rank 0 killed before-index",
            expected={"exit": ["killed", "gone"]},
            found=[{"rank": 0, "exit": "killed"}, {"rank": 1, "exit": "gone", "status": -6}],
            store=before,
            log=log,
        ),
        StepResult(title="what the store holds", expected={SECOND: {"decision": "none", "complete": [0, 1]}}, store=before),
        StepResult(
            title="recover",
            expected={"exit": "done", "answer": {"base": SECOND, "reason": "rolled-forward"}},
            found=[{"rank": 0, "exit": "done", "answer": base}],
            store=after,
            problems=problems,
            log=log,
        ),
    ]
    restored = {"generation": SECOND, "step": 2, "guarantee": None, "leaves": leaves}
    last = StepResult(
        title="restore on 1 process",
        expected={"exit": "done", "step": 2},
        found=[{"rank": 0, "exit": "done", "answer": restored}],
        store=after,
        log=log,
    )
    return done if wrong else [*done, last]


def outcome_of(number: int, name: str) -> Outcome:
    special: dict[tuple[str, int], Outcome] = {
        ("torch", 17): "error",
        ("jax", 33): "unexpected-pass",
        ("torch", 40): "expected-failure",
    }
    if number % 61 == 7:
        return "failed"
    return special.get((name, number)) or ("not-offered" if number % 23 == 5 and name == "torch" else "passed")


def result(family: str, number: int, name: str, outcome: Outcome) -> Result:
    wrong = outcome in ("failed", "error")
    log = "rank 0: " + "I0000 00:00:1732901 cpu_client.cc:466] loaded\n" * (400 if wrong else 20)
    messages = {
        "passed": "",
        "failed": "After step 4, recover: base is 1/1/1, not 2/2/1. A generation with every receipt was thrown away.",
        "error": "The adapter's answer is not JSON: Expecting value, line 1 column 1.",
        "unexpected-pass": "The case is listed in expected/jax.toml, but it passes.",
        "expected-failure": "FSDP2 refuses uneven shards on a second dimension.",
        "not-offered": "torch does not offer the dtype float6_e2m3fn.",
    }
    return Result(
        case=f"{family}/scenario-{number // 4}.variant-{number % 4}",
        family=family,
        column=name,
        outcome=outcome,
        seconds=1.5 + number % 5,
        title=f"The coordinator dies with every receipt in the store, variant {number % 4}",
        why="Everything is there but the word. Whoever comes next proves it and commits.",
        clauses=["P-35", "P-11", "P-44"],
        steps=[] if outcome == "not-offered" else steps(wrong=wrong, log=log),
        message=messages[outcome],
    )


def fake_run() -> Run:
    results, number = [], 0
    for family, size in FAMILIES.items():
        names = ("jax→torch", "torch→jax") if family == "cross" else ("jax", "torch")
        for _ in range(size):
            results += [result(family, number, name, outcome_of(number, name)) for name in names]
            number += 1
    columns = [column(name) for name in ("jax", "torch", "jax→torch", "torch→jax")]
    return Run(
        started="2025-11-29T18:00:00Z",
        seconds=431.2,
        suite="0.1.0",
        columns=columns,
        results=results,
        options={"store": "file", "cross": True},
    )


def hostile_run() -> Run:
    store = {"incarnations": {HOSTILE: HOSTILE}, "generations": {HOSTILE: {HOSTILE: HOSTILE, "failed": [HOSTILE]}}}
    found = [{HOSTILE: HOSTILE}]
    step = StepResult(title=HOSTILE, expected=HOSTILE, found=found, problems=[HOSTILE], log=HOSTILE, store=store)
    bad = Result(
        case="crash/x.y",
        family="crash",
        column="jax",
        outcome="failed",
        seconds=0.1,
        title=HOSTILE,
        why=HOSTILE,
        clauses=[HOSTILE],
        steps=[step],
        message=HOSTILE,
    )
    columns = [Column(name="jax", command=HOSTILE, describe={"framework": HOSTILE})]
    return Run(
        started=HOSTILE, seconds=0.1, suite=HOSTILE, columns=columns, results=[bad], options={"only": [HOSTILE], "store": HOSTILE}
    )
