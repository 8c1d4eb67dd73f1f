"""Tests under the check: each has the findings of its own operations, from its setup to its teardown."""
from __future__ import annotations

from collections.abc import Generator

import pytest

from xlogmem._base.texts import printable
from xlogmem.check import ignored, start
from xlogmem.check.findings import Finding, by_places, joined
from xlogmem.check.report import as_entry, summary

__all__ = ["Checks"]


class Checks:
    """The plugin."""

    def __init__(self) -> None:
        self.front_end = start.watch()
        self.total: list[Finding] = []
        self.left_out = 0
        self.cut_short: set[str] = set()                # tests of which a part did not run

    @pytest.fixture
    def no_races(self) -> None:
        """Fail the test if anything is found for certain, under ``--races=report`` too."""

    def taken(self) -> list[Finding]:
        """Return the findings since they were last cleared, without the ignored ones, and clear them."""
        found, count = ignored.left_out(start.found(self.front_end.report()))
        self.left_out += count
        self.front_end.clear()
        found = joined(found)
        self.total += found
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        self.front_end.clear()                          # what was done between tests belongs to none
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]
                                  ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when != "teardown":
            if report.failed:
                self.cut_short.add(item.nodeid)
            return report
        found = self.taken()
        if found:
            text = "\n\n".join(map(as_entry, by_places(found)))
            report.sections.append(("xlogmem check", text))
            wanted = "no_races" in getattr(item, "fixturenames", ()) or item.config.getoption("--races") == "fail"
            if wanted and report.passed and any(one.certain for one in found):
                report.outcome = "failed"
                report.longrepr = f"xlogmem check: {summary(found, 0)}"
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for block in ignored.as_json():
            if not block["used"]:
                terminalreporter.write_line(printable(
                    f"xlogmem check: nothing to ignore at {block['place']} ({block['reason']})"))
        for note in self.front_end.report().notes:
            terminalreporter.write_line(printable(f"xlogmem check: {note}"))
        if self.cut_short:
            failed = "1 test failed, and was" if len(self.cut_short) == 1 else (
                f"{len(self.cut_short)} tests failed, and were")
            terminalreporter.write_line(f"xlogmem check: {failed} checked only up to the failure")
        terminalreporter.write_line(
            f"xlogmem check: {summary(self.total, self.left_out)}, on {self.front_end.name}")
