"""Tests under the check: each has the findings of its own operations, from its setup to its teardown."""
from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from xlogmem._base.texts import printable
from xlogmem.check import audit, ignored, start
from xlogmem.check.findings import Finding, by_places, from_json, joined
from xlogmem.check.report import as_entry, summary

__all__ = ["Checks"]


class Checks:
    """The plugin."""

    def __init__(self) -> None:
        self.front_end = start.watch()
        self.total: list[Finding] = []
        self.omissions: list[dict[str, Any]] = []
        self.left_out = 0
        self.cut_short: set[str] = set()                # tests of which a part did not run
        self.of_workers: list[dict[str, Any]] = []      # of pytest-xdist's

    @pytest.fixture
    def no_races(self) -> None:
        """Fail the test if anything is found for certain, under ``--races=report`` too."""

    def taken(self) -> list[Finding]:
        """Return the findings since they were last cleared, without the ignored ones, and clear them."""
        report = self.front_end.report()
        self.omissions += audit.entries(report.omissions)
        found, count = ignored.left_out(start.found(report))
        self.left_out += count
        self.front_end.clear()
        found = joined(found)
        self.total += found
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        self.front_end.clear()                          # work between tests belongs to none
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]
                                  ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when != "teardown":
            if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
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

    def as_json(self) -> dict[str, Any]:
        """What this process has found in all its tests."""
        return {"findings": [one.as_json() for one in self.total], "left_out": self.left_out,
                "omissions": self.omissions, "cut_short": sorted(self.cut_short), "ignored": ignored.as_json(),
                "notes": self.front_end.report().notes}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        sent = getattr(session.config, "workeroutput", None)
        if sent is not None:                            # this is a worker
            sent["xlogmem_check"] = json.dumps(self.as_json())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        sent = getattr(node, "workeroutput", {}).get("xlogmem_check")
        if sent:                                        # none, of a worker that has crashed
            self.of_workers.append(json.loads(sent))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        def say(text: str) -> None:
            terminalreporter.write_line(printable(f"xlogmem check: {text}"))

        documents = [self.as_json(), *self.of_workers]
        if omissions := audit.merged(documents):
            terminalreporter.write_line("\n\n".join(audit.as_texts(omissions)) + "\n")
        for block in ignored.merged(documents):
            if not block["used"]:
                say(f"nothing to ignore at {block['place']} ({block['reason']})")
        for note in dict.fromkeys(note for document in documents for note in document["notes"]):
            say(note)
        cut_short = {test for document in documents for test in document["cut_short"]}
        if cut_short:
            failed = "1 test failed, and was" if len(cut_short) == 1 else f"{len(cut_short)} tests failed, and were"
            say(f"{failed} checked only up to the failure")
        found = [from_json(one) for document in documents for one in document["findings"]]
        left_out = sum(document["left_out"] for document in documents)
        say(f"{summary(found, left_out, len(omissions))}, on {self.front_end.name}")
