"""How nvdisasm is found and called; a script takes its place."""
from __future__ import annotations

import io
import os
import shutil
import sys

import pytest

from xlogmem.check import disassembler


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program in the place of nvdisasm: it prints its arguments, the file, and what it should not have."""
    path = tmp_path / "nvdisasm"
    path.write_text('''#!/bin/sh
[ "$2" = "$ONLY" ] || exit 1
echo "$1 $2 $LD_PRELOAD$CUDA_INJECTION64_PATH"; cat "$3"
''')
    path.chmod(0o700)
    monkeypatch.setenv(disassembler.VARIABLE, str(path))
    disassembler.find.cache_clear()
    yield path
    disassembler.find.cache_clear()


@pytest.mark.parametrize(("sm", "only"), [(90, "SM90"), (103, "SM100"), (110, "SM101"), (121, "SM120"), (75, "SM75")])
def test_nvdisasm_is_called_for_the_chip(fake, monkeypatch, sm, only):
    monkeypatch.setenv("ONLY", only)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "injected")
    assert disassembler.find() == str(fake)
    assert disassembler.listing(b"code", sm) == f"-b {only} \ncode"
    assert disassembler.listing(b"", sm) is None


class Written(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal


def test_how_far_it_is_is_shown_on_a_terminal_alone(fake, monkeypatch):
    monkeypatch.setenv("ONLY", "SM90")
    monkeypatch.setattr(disassembler.os, "cpu_count", lambda: 2)
    for terminal in (True, False):
        monkeypatch.setattr(sys, "stderr", written := Written(terminal))
        assert len(disassembler.listings([(b"code", 90)] * 3)) == 3
        parts = [f"reading the code of kernels, {done} of 3" for done in (0, 2)]
        assert written.getvalue() == ("".join(f"\r\x1b[Kxlogmem check: {part}" for part in parts) + "\r\x1b[K"
                                      if terminal else "")
    written.close()
    monkeypatch.setattr(sys, "stderr", written)
    assert disassembler.listings([(b"code", 90)]) != [None]


def test_nvdisasm_fails(fake, monkeypatch):
    assert disassembler.listing(b"code", 90) is None
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(disassembler, "SECONDS", 0.05)
    assert disassembler.listing(b"code", 90) is None
    fake.write_text("not a program")
    assert disassembler.listing(b"code", 90) is None


def test_where_nvdisasm_is_looked_for(fake, monkeypatch, tmp_path):
    monkeypatch.setenv(disassembler.VARIABLE, str(tmp_path / "missing"))
    disassembler.find.cache_clear()
    assert disassembler.find() is None
    assert disassembler.listing(b"code", 90) is None
    monkeypatch.delenv(disassembler.VARIABLE)
    for place in ("home", "cuda"):
        (tmp_path / place / "bin").mkdir(parents=True)
        shutil.copy(fake, tmp_path / place / "bin/nvdisasm")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    places = list(disassembler._places())
    wanted = [str(tmp_path / "home/bin/nvdisasm"), str(tmp_path / "cuda/bin/nvdisasm"), str(fake)]
    assert [place for place in places if place in wanted] == wanted
