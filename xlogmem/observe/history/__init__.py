"""The history of runtimes: allocations, uses, waits and frees, with their threads and reasons.

    with xlogmem.record_history("run.xlog", stacks="alloc"):
        ...

`xlogmem trace run.xlog --perfetto out.json` and `--torch out.pickle` convert a history for other viewers, `read`
returns its events.  docs/history.md has the format of the file.
"""
from xlogmem.observe.history.events import Event
from xlogmem.observe.history.files import History, HistoryError, read
from xlogmem.observe.history.reasons import why
from xlogmem.observe.history.recording import Recording, record_history

__all__ = ["Event", "History", "HistoryError", "Recording", "read", "record_history", "why"]
