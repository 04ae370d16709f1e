"""What is made of counted calls: which were those of waiting, the formulas, and the table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import requests
from benchmarks.counting_proxy import Call


def call(method: str, kind: str, status: int = 200, caller: str = "0") -> Call:
    return Call(caller=caller, method=method, kind=kind, key="", status=status, sent=1, received=2, at=0.0)


def test_calls_of_waiting_are_told_apart() -> None:
    claims, receipts = [call("GET", "claim")] * 5, [call("LIST", "list of a generation's receipts")] * 4
    lead = [call("PUT", "receipt"), *claims, *receipts]
    other = [call("PUT", "receipt"), *claims, *[call("GET", "ledger", 404)] * 6, call("GET", "ledger")]
    found = requests.summary([*lead, *(Call(**{**vars(each), "caller": "1"}) for each in other)], 2)
    assert found["rank 0, waiting"] == {"LIST": 3, "GET": 2}
    assert found["rank 0"] == {"GET": 3, "HEAD": 0, "PUT": 1, "LIST": 1, "DELETE": 0}
    assert found["other rank, waiting"] == {"GET": 9, "LIST": 0}
    assert found["other rank"] == {"GET": 3, "HEAD": 0, "PUT": 1, "LIST": 0, "DELETE": 0}
    assert found["refused"] == {"404": 6}


def test_without_a_save_nobody_waits() -> None:
    assert requests.summary([call("GET", "claim")] * 9, 1)["rank 0, waiting"] == {}


def measured(ranks: int, generations: int = 0) -> dict[str, Any]:
    counts = {"GET": 16 + 6 * ranks, "PUT": 15, "LIST": 2 + generations / 50, "DELETE": 0, "HEAD": 0}
    other = dict.fromkeys(counts, 4) if ranks > 1 else {}
    saved = {"rank 0": counts, "other rank": other}
    return {
        "ranks": ranks,
        "arrays": 1,
        "generations": generations,
        "late": 0.0,
        "operations": {"save": saved, "save, keep": saved},
    }


def test_formulas_are_found_and_a_save_is_computed_from_them() -> None:
    fitted = requests.fit([measured(1), measured(2), measured(8), measured(2, 100)])
    found = fitted["save"]["rank 0"]
    assert found["GET"] == pytest.approx({"1": 16, "ranks": 6, "arrays": 0, "generations": 0, "off by": 0}, abs=1e-6)
    assert found["LIST"]["generations"] == pytest.approx(0.02)
    assert requests.per_save(fitted, "save", 1024, 100)["PUT"] == 15 + 1023 * 4
    result = {"latency": 0.02, "formulas": fitted, "late": [], "per_hour": {"8": requests.hourly(8)}, "prices": {"PUT": 5.0}}
    result["per_save"] = [{"ranks": 8, "operation": "save", "requests": requests.per_save(fitted, "save", 8, 1)}]
    shown = requests.table(result)
    assert "| save | rank 0 | 16 + 6 R | 15 | 2 + 0.02 G | 0 | 0 |" in shown
    assert f"| 8 | save | {16 + 48 + 28} | 28 | 43 | 30 | 28 | 0.2150 |" in shown


def test_a_term_that_no_case_tells_is_left_out() -> None:
    found = requests.fit([measured(2), measured(2)])["save"]["rank 0"]["GET"]
    assert (found["1"], found["ranks"]) == (28, 0)


def test_what_an_hour_of_waiting_costs_at_most() -> None:
    hours = {ranks: requests.hourly(ranks) for ranks in (8, 1024, 16384)}
    assert all(each["rank 0"] < 800 for each in hours.values())
    assert hours[16384]["other rank"] < hours[1024]["other rank"] < hours[8]["other rank"] < 400


def test_what_is_asked_for_is_estimated() -> None:
    fitted = requests.fit([measured(1), measured(2), measured(8), measured(2, 100)])
    one, five = (requests.per_save(fitted, "save", 16, 1, objects=objects) for objects in (1, 5))
    assert {method: five[method] - one[method] for method in one} == {"GET": 64, "PUT": 64, "HEAD": 0, "LIST": 0, "DELETE": 0}
    older = {"per_save": [{"ranks": 16, "operation": "save", "requests": five}], "prices": {}}
    assert requests._costs(older).startswith("One save by all ranks, 100 arrays, one object of data a rank, by the formulas:")
    assert "1,000 arrays, 5 objects of data a rank," in requests._costs(older | {"arrays": 1000, "objects": 5})


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_job_of_ones_own(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    requests.add_arguments(parser)
    given = parser.parse_args(["--ranks", "3,5", "--arrays", "7", "--objects", "2"])
    result = requests.run(argparse.Namespace(smoke=True, dir=tmp_path, **vars(given)))
    assert [row["ranks"] for row in result["per_save"]] == [3, 3, 5, 5]
    assert set(result["per_hour"]) == {"3", "5"}
    assert "7 arrays, 2 objects of data a rank" in requests.table(result)


def test_prices() -> None:
    assert requests._prices("GET=0.4, PUT=5") == {"GET": 0.4, "PUT": 5.0}
    assert requests._prices("") == {}
