"""Every code block of README, the pages of docs/ and the other pages runs, or says why not."""
from __future__ import annotations

import ast
import textwrap

import pytest
from checked_libraries import is_here
from places import ROOT

pytest.importorskip("sybil", reason="needs Sybil")

from doc_blocks import RUN, Block, blocks, pages

BLOCKS = [block for page in pages() for block in blocks(page, str(page.relative_to(ROOT)))]
NEEDS = {"distributed": "needs distributed", "prometheus_client": "needs prometheus_client"}

pytestmark = pytest.mark.simulator


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.fragment is None and block.session is None
                                   and block.language != "text"], ids=str)
def test_a_block_runs(block, tmp_path):
    for library in sorted(block.libraries()):
        if not is_here(library):
            pytest.skip(NEEDS.get(library, f"needs a checked library: {library}"))
    RUN[block.language](block, tmp_path)


def test_a_fragment_is_of_its_language():
    """A program still parses; nothing else than programs and commands is left out."""
    fragments = [block for block in BLOCKS if block.fragment is not None]
    for block in fragments:
        if block.language == "python":
            ast.parse(textwrap.dedent(block.text))
    assert {block.language for block in fragments} == {"python", "bash"}


@pytest.mark.parametrize(("page", "error"), [
    ("```\nx = 1\n```\n", "not ''"),
    ("```ruby\nx = 1\n```\n", "not 'ruby'"),
    ("Code:\n\n    x = 1\n", "not ''"),
    ("```text\npip install xlogmem\n```\n", "looks like a program"),
    ("```text\nimport xlogmem\n```\n", "looks like a program"),
    ("<!-- fragment: -->\n```python\nx\n```\n", "needs its reason"),
    ("<!-- fragment: a reason -->\n\n```python\nx\n```\n", "no block follows the mark in line 1"),
])
def test_a_block_that_is_not_marked_is_an_error(page, error, tmp_path):
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(ValueError, match=error):
        blocks(tmp_path / "page.md", "page.md")


@pytest.mark.parametrize(("language", "text"), [
    ("python", "xlogmem.enable('cupy')\n"),
    ("python", "import warnings\nwarnings.warn('of a program')\n"),
    ("bash", "xlogmem trace no.xlog\n"),
    ("bash", "xlogmem chek program.py\nxlogmem info\n"),
    ("console", "$ xlogmem info\nanother text\n"),
    ("toml", "a = 1\na = 2\n"),
    ("cpp", '#include "xlogmem.hpp"\nvoid work(cudaStream_t stream) { xlogmem::launch use{stream}; }\n'),
])
def test_a_wrong_block_fails(language, text, tmp_path):
    with pytest.raises((AssertionError, ValueError)):
        RUN[language](Block("page.md", 1, language, text, None), tmp_path)
