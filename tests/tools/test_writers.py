"""Each place of the package that opens a file for writing, or a socket, with its reason."""
from __future__ import annotations

import re

from places import ROOT

OPENS = re.compile(
    r"""\bos\.open\(|(?<![.\w])open\([^)\n]*,\s*"[wax]|\.write_(?:text|bytes)\(|\.touch\(\)|mkstemp"""
    r"""|TemporaryDirectory\(|socket\.socket\(|\bofstream\b|open\(.*"ab"""
    r"""|(?<![.\w])(?:open|openat|creat|fopen|memfd_create|shm_open|socket)\((?=.*(?:\bO_|CLOEXEC|"w|AF_))""")
REASONS = {
    "xlogmem/_base/private.py": (5, "opens folders, and makes new files in these; reads one"),
    "xlogmem/check/command.py": (1, "makes the folder of a check"),
    "xlogmem/check/disassembler.py": (3, "gives the code of kernels to nvdisasm, in a folder of its own"),
    "xlogmem/check/outputs.py": (1, "writes the files of --json, --sarif and --record"),
    "xlogmem/check/processes.py": (2, "adds a line to the journal of this process, by the folder's descriptor"),
    "xlogmem/commands/trace.py": (1, "writes the files of --html, --perfetto and --torch"),
    "xlogmem/observe/history/files.py": (2, "writes a history"),
    "xlogmem/observe/history/recording.py": (1, "looks whether the history's file can be written"),
    "xlogmem/observe/live/publishing.py": (1, "answers xlogmem top"),
    "xlogmem/observe/live/reading.py": (1, "requests the figures of a process"),
    "xlogmem/observe/snapshots.py": (1, "writes a snapshot's page"),
    "xlogmem/resources/sinks.py": (2, "writes the log of a resource"),
    "cpp/cupti/codes.cpp": (2, "keeps the code of kernels, in a file without a name"),
    "cpp/driver/api_memory.cpp": (1, "has the simulated memory of the host, which it maps twice"),
    "cpp/driver/api_node.cpp": (1, "writes a graph to the file that the program names: cuGraphDebugDotPrint"),
    "cpp/driver/arena.cpp": (1, "has the simulated memory"),
    "cpp/driver/mappings.cpp": (1, "has the simulated virtual memory"),
    "cpp/native/native.cpp": (2, "opens the check's folder, and makes the journal of a process without Python there"),
}


def found() -> dict[str, int]:
    files = [path for folder in (ROOT / "xlogmem", ROOT / "cpp") for path in folder.rglob("*")
             if path.suffix in {".py", ".pyx", ".pxi", ".hpp", ".cpp", ".h"}]
    counts = {str(path.relative_to(ROOT)): len(OPENS.findall(path.read_text())) for path in files}
    return {name: count for name, count in counts.items() if count}


def test_each_place_has_a_reason():
    assert found() == {name: count for name, (count, _) in REASONS.items()}


def test_a_new_place_is_seen():
    for line in ('open(path, "w")', "os.open(name, flags)", 'path.write_text("")', "socket.socket(AF_UNIX)",
                 "open(path, O_CREAT | O_WRONLY)", "std::ofstream file", 'fopen(path, "w")'):
        assert OPENS.search(line), line
    for line in ("open(path)", "shadow.touch(access, clock)", "reopen(path)"):
        assert not OPENS.search(line), line
