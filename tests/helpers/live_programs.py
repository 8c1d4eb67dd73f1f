"""Programs that `xlogmem top` looks at: they say when they are ready, and end when they are allowed to."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from c_table import ENVIRONMENT

HOLDS = """
import sys
import xlogmem
runtime = xlogmem.get_runtime()
kept = [runtime.allocate(1 << 20, tag="left"), runtime.allocate(3 << 20, tag="right"), runtime.allocate(100)]
with xlogmem.use(runtime.default_stream, read=kept):
    pass
"""
WAITS = """
import sys
print("ready", flush=True)
sys.stdin.read()
sys.exit(7)
"""


@contextmanager
def running(program: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has come as far as its `WAITS`; it may end at the end of the block."""
    command = [sys.executable, "-c", program + WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=os.environ | ENVIRONMENT | environment) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.stdin.close()
            process.wait(60)
