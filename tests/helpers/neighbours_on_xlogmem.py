"""Other libraries' own tests of memory: with their allocators and with ours, compared.

    python tests/helpers/neighbours_on_xlogmem.py cupy FOLDER [FILE ...] [-k EXPRESSION] [--json OUT]

FOLDER is `tests` of cupy/cupy, `cuda_core/tests` of NVIDIA/cuda-python (with `cuda_python_test_helpers` beside
`cuda_core`) or `test` of pytorch/pytorch, each at the release that is installed.  For numba it is `-`: its wheel has
the tests.  FILE: others than those of `neighbour_suites.py`, which says for each library what is replaced, and why a
test may fail with us.

The tests run twice, in processes of their own: without xlogmem, and with our allocator enabled before each test.  A
test *reaches* xlogmem if a runtime allocated between its set-up and its end, or if it passes without xlogmem and fails
with it.  Of those that pass without xlogmem and reach it, 95 % have to pass.  The exit status is 1 if fewer do, if none
reaches xlogmem, if a test fails with it for a reason that is not in the table, or if a file was not imported; the text
of such an error is printed in full.  On the simulated driver (``XLOGMEM_SIMULATE=1``) kernels compute nothing, so many
tests fail without xlogmem, too.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from neighbour_suites import SUITES, Suite, counted

LEAST = 0.95                                            # of those that reach us
RESTARTS = 5                                            # after a test that ended the process
COMPLETE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
CHILD, RESULTS = "XLOGMEM_NEIGHBOURS", "XLOGMEM_NEIGHBOURS_RESULTS"


# ---------------------------------------------------------------------------------------------- where the tests run
class Recorder:
    """The pytest plugin: a row for each start, end and failed import.  Tests that have rows already are left out."""

    def __init__(self, suite: Suite, results: Path, ours: bool) -> None:
        self.suite, self.results, self.ours = suite, results, ours
        self.reports: list[pytest.TestReport] = []

    def write(self, **row: Any) -> None:
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(file=report.nodeid, error=report.longreprtext)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = Run.read(self.results).tests
        items[:] = [item for item in items if item.nodeid not in known]
        self.suite.collected(items, self.ours)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.reports.clear()
        self.write(test=item.nodeid)
        before = counted("allocations")
        result = yield
        outcomes = {report.outcome for report in self.reports}
        outcome = next((name for name in ("failed", "skipped") if name in outcomes), "passed")
        error = next((error_of(report) for report in self.reports if report.failed), "")
        self.write(test=item.nodeid, outcome=outcome, reached=counted("allocations") > before, error=error)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.ours:
            self.suite.before(item)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write(ended=int(exitstatus))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    @pytest.fixture(scope="class")
    def initialize_from_pytest_config(self, request: pytest.FixtureRequest) -> None:
        """What Numba's own conftest has, which is not in its wheel."""
        request.cls._dump_failed_filechecks = False


def error_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text: str = crash.message if crash is not None else report.longreprtext
    return " ".join(text.split())[:400]


def run_tests(suite: Suite, options: argparse.Namespace) -> int:
    """In the child.  Modules beside this file do not hide those of the suites; processes that tests start find them."""
    here = str(Path(__file__).parent)
    sys.path[:] = [*(entry for entry in sys.path if entry != here), here]
    ours, results = os.environ[CHILD] == "with", Path(os.environ[RESULTS])
    folder = suite.find(options.folder, results.parent)
    if ours:
        suite.prepare()
    recorder = Recorder(suite, results, ours)
    recorder.write(version=suite.version())
    arguments = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "-c", os.devnull, "--rootdir", str(folder),
                 "--continue-on-collection-errors", "--tb=native", *(["-k", options.k] if options.k else [])]
    files = [str(folder / file) for file in options.files or suite.files]
    return pytest.main([*arguments, *files], plugins=[recorder])


# ---------------------------------------------------------------------------------------------- the two runs
@dataclass
class Run:
    """What the rows of a run say."""

    tests: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)     # that were not imported: the error
    version: str = "?"
    ended: int | None = None                                # pytest's status

    @classmethod
    def read(cls, results: Path) -> Run:
        run = cls()
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        for row in map(json.loads, lines):
            if "test" in row:                               # without an outcome: the process ended in this test
                run.tests[row["test"]] = {"outcome": "failed", "reached": False, "error": "the process ended", **row}
            elif "file" in row:
                run.files[row["file"]] = row["error"]
            elif "ended" in row:
                run.ended = row["ended"]
            else:
                run.version, run.ended = row["version"], None
        return run

    def outcome(self, test: str) -> str:
        return str(self.tests[test]["outcome"]) if test in self.tests else "failed"

    def error(self, test: str) -> str:
        return str(self.tests[test]["error"]) if test in self.tests else "it did not run"

    def passed(self) -> list[str]:
        return [test for test in self.tests if self.outcome(test) == "passed"]


def run_child(suite: Suite, options: argparse.Namespace, ours: bool, folder: Path) -> Run:
    """Again after a test that ended the process, as long as there is time."""
    which = "with" if ours else "without"
    results, output = folder / f"{which}.jsonl", folder / f"{which}.txt"
    environment = {**os.environ, CHILD: which, RESULTS: str(results), **(suite.environment if ours else {})}
    end = time.monotonic() + options.seconds
    command = [*simulated(), sys.executable, *sys.argv]
    for _ in range(RESTARTS):
        with output.open("w", encoding="utf-8") as file:
            try:
                status: object = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT,
                                                stdin=subprocess.DEVNULL, check=False,
                                                timeout=max(10, end - time.monotonic())).returncode
            except subprocess.TimeoutExpired:
                status = "no time left"
        run = Run.read(results)
        if run.ended in COMPLETE:
            return run
        print(f"{suite.name}, {which} xlogmem: the process of the tests ended with {status}; the end of its output:")
        print(*output.read_text(encoding="utf-8", errors="replace").splitlines()[-60:], sep="\n")
        if time.monotonic() > end:
            break
    return Run.read(results)


def simulated() -> list[str]:
    """What runs a process with the runtime libraries on the simulated driver, too."""
    if os.environ.get("XLOGMEM_SIMULATE") != "1":
        return []
    return [sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--"]


# ---------------------------------------------------------------------------------------------- what is compared
@dataclass
class Comparison:
    suite: Suite
    without: Run
    ours: Run

    def __post_init__(self) -> None:
        passed = self.without.passed()
        self.reasons = {test: self.suite.reason(test) for test in passed if self.ours.outcome(test) == "failed"}
        self.skipped = [test for test in passed if self.ours.outcome(test) == "skipped"]
        self.kept = [test for test in self.ours.passed() if test in passed and self.ours.tests[test]["reached"]]
        self.reaching = len(self.kept) + len(self.reasons)
        self.share = len(self.kept) / self.reaching if self.reaching else 0.0
        self.not_imported = {**self.without.files, **self.ours.files}
        self.right = self.share >= LEAST and all(self.reasons.values()) and not self.not_imported

    def print(self) -> None:
        for name, error in self.not_imported.items():
            print(f"NOT IMPORTED: {name}\n{error}")
        for test, reason in self.reasons.items():
            print(f"fails with xlogmem: {test}: {reason or 'UNKNOWN REASON: ' + self.ours.error(test)}")
        for test in self.skipped:
            print(f"left out with xlogmem by the library's own rules: {test}")
        print(f"{self.suite.name} {self.without.version}: {len(self.without.tests)} tests, "
              f"{len(self.without.passed())} pass without xlogmem, {len(self.ours.passed())} with it; "
              f"{self.reaching} of the former reach it, of which {len(self.kept)} pass: {self.share:.1%} "
              f"(at least {LEAST:.0%})")

    def as_json(self) -> dict[str, Any]:
        return {"library": self.suite.name, "version": self.without.version, "tests": len(self.without.tests),
                "passed_without": len(self.without.passed()), "passed_with": len(self.ours.passed()),
                "reaching": self.reaching, "reaching_passed": len(self.kept), "share": round(self.share, 4),
                "right": self.right, "reaching_by_file": Counter(test.split("::")[0] for test in self.kept),
                "failing": [{"test": test, "reason": reason, "error": self.ours.error(test)}
                            for test, reason in self.reasons.items()],
                "skipped_with": self.skipped, "not_imported": self.not_imported,
                "failing_without": {test: self.without.error(test) for test in self.without.tests
                                    if self.without.outcome(test) == "failed"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=sorted(SUITES))
    parser.add_argument("folder", type=Path, help="of its tests; - for numba")
    parser.add_argument("files", nargs="*", help="others than the usual ones, in that folder")
    parser.add_argument("-k", help="as pytest has it")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--seconds", type=float, default=280, help="at most, for each of the two runs")
    options = parser.parse_args()
    suite = SUITES[options.library]()
    if CHILD in os.environ:
        return run_tests(suite, options)
    with TemporaryDirectory() as folder:
        runs = [run_child(suite, options, ours, Path(folder)) for ours in (False, True)]
    comparison = Comparison(suite, *runs)
    comparison.print()
    if options.json:
        options.json.write_text(json.dumps(comparison.as_json(), indent=1) + "\n", encoding="utf-8")
    return 0 if comparison.right else 1


if __name__ == "__main__":
    sys.exit(main())
