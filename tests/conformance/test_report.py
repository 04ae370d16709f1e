from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from ckpt_conformance.report import summary
from ckpt_conformance.report.junit import junit
from ckpt_conformance.report.page import page
from ckpt_conformance.report.terminal import table
from ckpt_conformance.report.text import by_rank, clean, clip, cut, pretty, ranges, short, tail
from ckpt_conformance.results import Run, StepResult
from tests.conformance import fake_run

VOID = {"meta", "wbr", "br", "input", "img", "link", "hr"}


class Outline(HTMLParser):
    """What a page consists of: tags, IDs, link targets; every tag must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        found = {name: value or "" for name, value in attrs}
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert not found.open
    return found


@pytest.fixture(scope="module")
def run() -> Run:
    return fake_run.fake_run()


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return page(run)


class TestText:
    def test_what_xml_forbids_is_replaced(self) -> None:
        assert clean("a\x00b\x1b[31mc\x1b[0m\ud800\n\té😀") == "a\ufffdbc\ufffd\n\té😀"

    def test_generations_are_shortened(self) -> None:
        assert short("ledger/000002-000000000012-3.json and 12-34-5") == "ledger/2/12/3.json and 12-34-5"

    def test_long_texts_are_cut(self) -> None:
        assert clip("abcdef", 6) == "abcdef"
        assert clip("abcdefgh", 4) == "ab\n… 4 characters left out …\ngh"
        assert tail("abcdefgh", 3) == "… 5 characters left out …\nfgh"

    def test_messages_are_cut_with_an_ellipsis(self) -> None:
        assert [cut("abcd", limit) for limit in (4, 3)] == ["abcd", "ab…"]

    def test_json_stays_on_one_line_where_it_fits(self) -> None:
        assert pretty({"a": [1, 2]}) == '{"a": [1, 2]}'
        assert pretty({"a": 1, "b": [1, 2]}, width=12) == '{"a": 1,\n "b": [1, 2]}'

    def test_numbers_are_joined_to_ranges(self) -> None:
        assert ranges([3, 0, 1, 5, 6, 7]) == "0–1, 3, 5–7"

    def test_ranks_that_found_the_same_share_an_entry(self) -> None:
        found = [{"rank": 0, "exit": "done"}, {"rank": 1, "exit": "killed"}, {"rank": 2, "exit": "done"}]
        assert by_rank(found) == [("ranks 0, 2", {"exit": "done"}), ("rank 1", {"exit": "killed"})]
        assert by_rank(None) == []


class TestSummary:
    def test_counts(self, run: Run) -> None:
        assert sum(summary.counts(run.results).values()) == len(run.results) == 364
        assert summary.headline(run) == (
            "364 cells: 348 passed, 6 failed, 1 error, 1 passed unexpectedly, 1 failed as expected, 7 not offered"
        )

    def test_a_cell_can_be_run_again(self, run: Run) -> None:
        run = dataclasses.replace(run, options={"store": "s3://bucket", "endpoint": "http://localhost:9"})
        pair = next(result for result in run.results if result.column == "torch→jax")
        assert summary.rerun(run, pair) == (
            "python -m ckpt_conformance run --adapter torch --cross jax --store s3://bucket --endpoint http://localhost:9 "
            f"--only {pair.case}"
        )

    def test_the_command_of_an_adapter_is_quoted(self, run: Run) -> None:
        columns = [dataclasses.replace(run.columns[0], command="./my adapter; rm -rf /")]
        assert "--adapter './my adapter; rm -rf /' --only" in summary.rerun(
            dataclasses.replace(run, columns=columns), run.results[0]
        )


def not_offered(run: Run, *columns: str) -> Run:
    """The run, with nothing offered in these columns."""
    results = [
        dataclasses.replace(result, outcome="not-offered") if result.column in columns else result for result in run.results
    ]
    return dataclasses.replace(run, results=results)


class TestRemarks:
    def test_a_whole_run_has_none(self, run: Run) -> None:
        assert summary.remarks(run) == summary.remarks(dataclasses.replace(run, cells=364)) == []

    def test_an_interrupted_run(self, run: Run) -> None:
        run = dataclasses.replace(run, cells=400, interrupted=True)
        assert summary.remarks(run) == ["interrupted after 364 of 400 cells"]
        assert table(run).endswith("\n! interrupted after 364 of 400 cells\n")
        assert '<p class="verdict failed">Interrupted after 364 of 400 cells</p>' in page(run)

    def test_results_that_are_missing(self, run: Run) -> None:
        assert summary.remarks(dataclasses.replace(run, cells=365)) == ["1 of 365 cells have no result"]

    def test_a_column_in_which_nothing_was_tested(self, run: Run) -> None:
        remark = "nothing was tested in the column torch: what is not offered is not run"
        assert summary.remarks(not_offered(run, "torch")) == [remark]
        assert summary.remarks(not_offered(run, "jax→torch")) == [remark.replace("torch", "jax→torch")]

    def test_nothing_was_tested_at_all(self, run: Run) -> None:
        assert summary.remarks(not_offered(run, "jax", "torch", "jax→torch", "torch→jax")) == [
            "nothing was tested: what is not offered is not run"
        ]

    def test_who_does_not_save_cannot_write_for_another(self, run: Run) -> None:
        columns = [
            dataclasses.replace(column, describe={**column.describe, "verbs": ["save"] if column.name == "jax" else ["latest"]})
            for column in run.columns
        ]
        run = dataclasses.replace(run, columns=columns)
        assert summary.remarks(not_offered(run, "torch→jax")) == []
        assert len(summary.remarks(not_offered(run, "jax→torch"))) == 1
        assert len(summary.remarks(not_offered(run, "torch"))) == 1

    def test_they_are_errors_of_the_run(self, run: Run) -> None:
        root = ET.fromstring(junit(dataclasses.replace(run, cells=400, interrupted=True)))  # noqa: S314
        assert (root.get("tests"), root.get("errors")) == ("365", "2")
        suite = root[-1]
        assert (suite.get("name"), suite.get("tests"), suite.get("errors")) == ("run", "1", "1")
        error = suite.find("testcase/error")
        assert error is not None
        assert error.get("message") == "interrupted after 364 of 400 cells"


class TestTerminal:
    def test_the_last_words_of_a_process_without_an_answer(self, run: Run) -> None:
        log = "--- rank 0, process 5\nfine\n--- rank 1, process 6\nTraceback …\nRuntimeError: no idea\n\n"
        found = [{"rank": 0, "exit": "done", "answer": {}}, {"rank": 1, "exit": "exit status 1", "answer": None}]
        step = StepResult(title="save", found=found, problems=["rank 1: expected done"], log=log)
        bad = dataclasses.replace(run.bad[0], steps=[step])
        text = table(dataclasses.replace(run, results=[bad]))
        assert "    rank 1 wrote last: RuntimeError: no idea\n" in text
        assert "rank 0 wrote last" not in text

    def test_where_a_failed_cell_is_kept(self, run: Run) -> None:
        assert "kept in" not in table(run)
        assert "With --dir DIR" in table(run)
        kept = table(dataclasses.replace(run, options={"dir": "kept"}), kept=lambda result: f"kept/{result.family}")
        assert f"  kept in: kept/{run.bad[0].family}\n" in kept
        assert "With --dir DIR" not in kept

    def test_counts_by_family_and_column(self, run: Run) -> None:
        lines = table(run).splitlines()
        assert lines[0].split() == ["jax", "torch", "jax→torch", "torch→jax"]
        assert lines[2].split() == ["crash", "23✓", "1✗", "21✓", "1✗", "1!", "1–"]

    def test_every_failure_with_its_reason_and_command(self, run: Run) -> None:
        text = table(run)
        for bad in run.bad:
            assert f"{bad.case}  [{bad.column}]" in text
            assert f"rerun: {summary.rerun(run, bad)}" in text
        assert "step 4: recover\n    - base is 1/1/1, not 2/2/1\n    expected:\n" in text
        assert text.count("rerun:") == len(run.bad)

    def test_colors_are_asked_for(self, run: Run) -> None:
        assert "\x1b" not in table(run)
        assert clean(table(run, color=True)) == table(run)
        assert "\x1b[32m23✓\x1b[0m" in table(run, color=True)

    def test_hostile_texts_do_not_reach_the_terminal(self) -> None:
        text = table(fake_run.hostile_run())
        assert text == clean(text)


class TestJunit:
    def test_suites_are_families(self, run: Run) -> None:
        root = ET.fromstring(junit(run))  # noqa: S314  # made by the code under test
        assert {suite.get("name"): suite.get("tests") for suite in root} == {
            family: str(2 * cases) for family, cases in fake_run.FAMILIES.items()
        }
        assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("364", "7", "1", "8")

    def test_a_test_case_for_each_cell(self, run: Run) -> None:
        root = ET.fromstring(junit(run))  # noqa: S314
        cases = {case.get("name"): case for case in root.iter("testcase")}
        assert len(cases) == len(run.results)
        for result in run.results:
            tags = {element.tag for element in cases[f"{result.case}[{result.column}]"]} - {"properties", "system-err"}
            expected = {"passed": set(), "failed": {"failure"}, "unexpected-pass": {"failure"}, "error": {"error"}}
            assert tags == expected.get(result.outcome, {"skipped"})

    def test_hostile_texts_are_escaped(self) -> None:
        root = ET.fromstring(junit(fake_run.hostile_run()))  # noqa: S314
        failure = root.find(".//failure")
        assert failure is not None
        assert failure.get("message") == clean(fake_run.HOSTILE)


class TestPage:
    def test_it_is_small_and_needs_nothing_else(self, html: str) -> None:
        assert len(html.encode()) < 3_000_000
        assert not re.search(r"""(src|href)=["'](?!#)""", html)
        assert "@import" not in html
        assert "url(" not in html

    def test_it_is_well_formed_and_every_link_has_a_target(self, html: str) -> None:
        found = outline(html)
        assert len(found.ids) == len(set(found.ids))
        assert {link.removeprefix("#") for link in found.links} <= set(found.ids)

    def test_every_cell_leads_to_its_detail(self, run: Run, html: str) -> None:
        cells = re.findall(r'class="cell (\S+)" href="#([^"]+)"', html)
        assert len(cells) == len({link for _, link in cells}) == len(run.results)
        assert sorted(outcome for outcome, _ in cells) == sorted(result.outcome for result in run.results)

    def test_failed_steps_are_open_and_have_their_log(self, run: Run) -> None:
        bad = dataclasses.replace(run, results=[result for result in run.results if result.outcome == "failed"][:1])
        text = page(bad)
        assert text.count("<details open>") == 1
        assert "cpu_client.cc" in text
        good = dataclasses.replace(run, results=[result for result in run.results if result.outcome == "passed"][:1])
        assert "<details open>" not in page(good)
        assert "cpu_client.cc" not in page(good)

    def test_the_store_is_a_table(self, run: Run) -> None:
        text = page(dataclasses.replace(run, results=run.results[:1]))
        assert '<tr><th scope="row">2/2/1</th><td>none</td><td>0, 1</td><td>whole</td><td>none</td></tr>' in text
        assert "The store held the same as after the step before." in text

    def test_every_run_of_a_case_is_shown(self, run: Run) -> None:
        result = run.results[0]
        step = dataclasses.replace(
            result.steps[0], store={"main": fake_run.survey(committed=True), "fork": fake_run.survey(committed=False)}
        )
        text = page(dataclasses.replace(run, results=[dataclasses.replace(result, steps=[step])]))
        assert "<h4>Run main held</h4>" in text
        assert text.index("<h4>Run fork held</h4>") < text.index("<td>none</td>")

    def test_code_in_a_sentence(self, run: Run) -> None:
        text = page(dataclasses.replace(run, results=[dataclasses.replace(run.results[0], why="`exact` < `coverage`")]))
        assert "<p><code>exact</code> &lt; <code>coverage</code></p>" in text

    def test_the_options_that_matter_are_shown(self, run: Run) -> None:
        options = {"store": "s3://bucket", "only": ["crash", "order/x"], "quick": True, "json": "/secret/place", "region": None}
        text = page(dataclasses.replace(run, options=options))
        assert "<dt>Only</dt><dd>crash, order/x</dd>" in text
        assert "<dt>Quick</dt><dd>yes</dd>" in text
        assert "/secret" not in text
        assert "Region" not in text

    def test_many_failures_stay_small(self, run: Run) -> None:
        bad = [
            dataclasses.replace(result, outcome="failed", steps=fake_run.steps(wrong=True, log="x" * 20_000))
            for result in run.results
        ]
        assert len(page(dataclasses.replace(run, results=bad)).encode()) < 5_000_000

    def test_hostile_texts_are_escaped(self) -> None:
        text = page(fake_run.hostile_run())
        found = outline(text)
        assert text.count("<script>") == text.count("</script>") == 1
        assert "img" not in found.tags
        assert "onerror" not in found.attributes
        assert text == clean(text)

    def test_a_run_of_nothing(self, run: Run) -> None:
        text = page(dataclasses.replace(run, results=[], columns=[]))
        outline(text)
        assert "nothing was run" in text
