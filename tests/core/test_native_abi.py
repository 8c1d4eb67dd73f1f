"""Extensions and cores of different ages: what was built before the table had uses runs on this core, and what needs
uses is refused by a core without them, before any call."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import variables
from native_calls import compile_module
from places import HELPERS, ROOT

import xlogmem

pytestmark = pytest.mark.simulator
CLIENT = "client_without_uses"


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, env=variables(XLOGMEM_SIMULATE=1), timeout=100)


def test_an_extension_from_before_runs(tmp_path):
    compile_module(HELPERS / f"{CLIENT}.cpp", tmp_path / f"{CLIENT}.so", "-Werror")
    done = run("""
import sys
sys.path.insert(0, sys.argv[1])
import client_without_uses, xlogmem
from xlogmem.sim import simulator
runtime = xlogmem.get_runtime()
load, work = runtime.acquire_stream(), runtime.acquire_stream()
client_without_uses.work(runtime, 1000, load.handle, work.handle)
runtime.reap_pending()
print(runtime.peak_bytes, runtime.live_bytes, simulator().races())
""", tmp_path)
    assert (done.stdout, done.stderr) == ("1000 0 []\n", "")


def test_it_was_built_with_the_smaller_table(tmp_path):
    """Else the test before this one shows nothing."""
    text = Path(HELPERS / f"{CLIENT}.cpp").read_text()
    assert '"xlogmem_without_uses.h"' in text
    assert '"xlogmem.h"' not in text
    header = (HELPERS / "xlogmem_without_uses.h").read_text()
    now = Path(xlogmem.get_include(), "xlogmem.h").read_text()
    assert "runtime_for" not in header
    assert "runtime_for" in now


@pytest.mark.parametrize(("size", "version", "imports"), [("own", 1, True), (64, 1, False), ("own", 2, False)])
def test_an_extension_is_imported_by_a_core_that_has_what_it_needs(library, size, version, imports):
    """The functions of the table are copies of the core's where it is imported; of the others none can be called."""
    done = run("""
import sys
from ctypes import POINTER, addressof, memmove, sizeof
sys.path.insert(0, "tests/helpers")
import xlogmem._table
from c_table import NEW_CAPSULE, Table, functions
from native_calls import Library, NativeRuntime, Thrown
path, size, version = sys.argv[1:]
other = Table()
if size == "own" and version == "1":
    memmove(addressof(other), addressof(functions), sizeof(Table))
other.size, other.version = sizeof(Table) if size == "own" else int(size), int(version)
name = b"xlogmem._table.table"
xlogmem._table.table = NEW_CAPSULE(addressof(other), name, None)
try:
    library = Library(path)
    library.import_table()
    NativeRuntime.of(library, xlogmem.get_runtime()).delete()
    print("imported")
except Thrown as error:
    print(error.name, error)
""", library.path, size, version)
    assert done.stderr == ""
    expected = "imported" if imports else (
        "python_error ImportError: the installed xlogmem is too old for this extension, or too new")
    assert done.stdout == f"{expected}\n"


def test_sizes_say_what_a_client_needs(tmp_path):
    (tmp_path / "sizes.c").write_text(r"""
#include <stdio.h>
#include "xlogmem.h"
int main(void) {
    printf("%d %d %d %d\n", (int)XLOGMEM_SIZE_WITHOUT_USES, (int)XLOGMEM_SIZE_WITH_USES, (int)sizeof(xlogmem_table),
           (int)sizeof(xlogmem_access));
}
""")
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{xlogmem.get_include()}",
                    tmp_path / "sizes.c", "-o", tmp_path / "sizes"], check=True)
    without, with_uses, table, access = map(int, subprocess.check_output([tmp_path / "sizes"]).split())
    assert (without, access) == (64, 24)
    assert without < with_uses <= table
