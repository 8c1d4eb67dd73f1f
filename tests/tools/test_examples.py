"""Each public function and class that programs call has an example, and the examples are true."""
from __future__ import annotations

import ast
import json

import doc_examples
import pytest
from built_site import public_names
from pasted import run
from places import HELPERS, ROOT


@pytest.mark.simulator
def test_each_name_has_an_example_and_it_is_true(tmp_path):
    """In a process of its own: some import libraries, which then stay."""
    done = run(["python", str(HELPERS / "doc_examples.py")], tmp_path)
    assert done.returncode == 0, done.stdout
    results = json.loads(done.stdout.splitlines()[-1])
    assert [name for name, (count, _) in results.items() if count == 0] == []
    wrong = [said for _, said in results.values() if said]
    assert not wrong, "\n".join(wrong)
    assert len(results) > 90
    assert {"xlogmem.use", "xlogmem.sim.install", "xlogmem.Buffer.to_numpy"} <= set(results)
    assert set(doc_examples.NOT_CALLED).isdisjoint(results)


def test_what_programs_do_not_call_is_public():
    names = public_names()
    for name in doc_examples.NOT_CALLED:
        module, _, one = name.rpartition(".")
        assert one in names[module]


def test_functions_that_need_a_gpu_have_examples_too():
    tree = ast.parse((ROOT / "xlogmem/cudf.py").read_text())
    docs = {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert all("\nExamples\n" in docs[name] for name in ("enable", "view"))


@pytest.mark.parametrize(("text", "count", "wrong"), [
    (">>> 1 + 1\n2\n", 1, False), (">>> 1 + 1\n3\n", 1, True), (">>> gone\n", 1, True), ("No example.", 0, False),
    (">>> import warnings\n>>> warnings.warn('x')\n", 2, True), (">>> gone          # doctest: +SKIP\n", 1, False)])
def test_a_wrong_example_is_found(text, count, wrong):
    """The twin."""
    found, said = doc_examples.run("x", text)
    assert (found, bool(said)) == (count, wrong)
