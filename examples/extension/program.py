"""Use the extension: docs/extensions.md has the commands that build it."""
import sys

sys.path.insert(0, "")                                  # example.so is in the current folder
import example

import xlogmem

runtime = xlogmem.get_runtime()
load, work = runtime.acquire_stream(), runtime.acquire_stream()
example.work(runtime, 1000, load.handle, work.handle)
print(f"{runtime.peak_bytes} bytes were live, {runtime.live_bytes} are")
