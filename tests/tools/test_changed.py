"""The parts of .ci/full that have to run again after a change."""
from __future__ import annotations

import importlib.util
import subprocess

import planted
import pytest
from places import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")


@pytest.fixture
def changed():
    spec = importlib.util.spec_from_file_location("changed", ROOT / ".ci/changed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def parts(changed, monkeypatch, tmp_path):
    """Of files that changed, and of those that came or went."""
    passed = tmp_path / "full.passed"
    passed.write_text("0" * 40)
    monkeypatch.setattr(changed, "PASSED", passed)

    def of(*names: str, moved: tuple[str, ...] = ()) -> list[str]:
        monkeypatch.setattr(changed, "changed_since", lambda commit: ([*names, *moved], list(moved)))
        return changed.parts()

    return of


def test_nothing_is_left_out_where_it_is_not_known_what_has_passed(changed, monkeypatch, tmp_path):
    monkeypatch.setattr(changed, "PASSED", tmp_path / "nothing")
    assert changed.parts() == changed.PARTS
    (tmp_path / "nothing").write_text("0" * 40)             # a commit that is not here
    assert changed.parts() == changed.PARTS


def test_a_part_that_has_passed_by_itself_since_has_a_commit_of_its_own(changed, monkeypatch, tmp_path):
    (tmp_path / "passed").write_text("all\nasan later\n")
    monkeypatch.setattr(changed, "PASSED", tmp_path / "passed")
    files = {"all": ["xlogmem/core/export.pxi", "conda/recipe/recipe.yaml"], "later": ["docs/check.md"]}
    monkeypatch.setattr(changed, "changed_since", lambda commit: (files[commit], []))
    assert [part.split()[0] for part in changed.parts()] == ["conda", "defects", "tsan"]


def test_after_a_page_of_the_core_its_defects_and_both_sanitizers(parts):
    names = {defect.name for defect in planted.load() if any(edit.file == "core/export.pxi" for edit in defect.edits)}
    names |= {defect.name for defect in planted.load() if names.intersection(defect.edited_with)}
    asan, defects, tsan = parts("xlogmem/core/export.pxi")
    assert (asan, tsan) == ("asan tests/core", "tsan tests/core")
    assert set(defects.split()[1:]) == names != set()


def test_after_the_oracle_all_defects(parts):
    assert parts("benchmarks/src/xlogmem_selftest/world/ending.py") == ["defects"]


def test_after_a_test_the_defects_that_it_has_to_notice(parts):
    packages, defects = parts("tests/core/test_caches.py")
    assert packages == "packages tests/core/test_caches.py"
    assert set(defects.split()[1:]) == {defect.name for defect in planted.load()
                                        if defect.test == "tests/core/test_caches.py"} != set()


@pytest.mark.parametrize(("name", "expected"), [
    ("cpp/engine/life.cpp", ["asan tests/check", "tsan tests/check"]),
    ("conda/recipe/recipe.yaml", ["conda"]),
    ("MANIFEST.in", ["packages"]),
    ("pyproject.toml", ["packages", "conda"]),
    ("docs/check.md", []), ("xlogmem/check/report.py", []), ("tests/zoo/README.md", []),
])
def test_of_other_files(parts, name, expected):
    assert parts(name) == expected


def test_after_a_file_of_the_package_comes_or_goes_the_packages(parts):
    assert parts(moved=("xlogmem/dask.py",)) == ["packages", "conda"]


def test_a_benchmark_or_its_figures_are_in_no_package(parts):
    assert parts(moved=("benchmarks/pipeline.py", "benchmarks/results/2026-11-29-h200-pipeline/after.json")) == []


def test_every_compiled_file_has_tests(changed):
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    compiled = [name for name in names if changed.COMPILED.match(name)]
    assert len(compiled) > 200
    assert all((ROOT / folder).is_dir() for name in compiled for folder in changed.folders([name]))
    assert all(changed.folders([name]) for name in compiled)
