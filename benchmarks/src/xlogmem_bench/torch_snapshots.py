"""PyTorch's memory snapshots as logs: the traces of `torch.cuda.memory._dump_snapshot`, which is a pickle.

https://docs.pytorch.org/docs/stable/torch_cuda_memory.html.  A pickle can name any function to call.  So its
instructions are looked at first, and only those that make numbers, texts and containers are carried out.
"""
from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any, NoReturn

from xlogmem._base.units import counted

__all__ = ["SnapshotError", "is_snapshot", "trace_of"]

MAKES_DATA = {
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET", "GET",
    "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
}
ACTIONS = {"alloc": "allocate", "free_completed": "free", "oom": "allocate failure"}


class SnapshotError(ValueError):
    """The file is not a snapshot, or has more in it than data."""


class DataOnly(pickle.Unpickler):
    """Imports nothing, whatever the instructions say."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(f"the pickle names {module}.{name}: a snapshot has data alone")


def is_snapshot(start: bytes) -> bool:
    """True if a file that starts like this may be a pickle, of protocol 2 or later."""
    return len(start) > 1 and start[0] == 0x80 and 2 <= start[1] <= pickle.HIGHEST_PROTOCOL


def data_of(content: bytes) -> Any:
    """The value of a pickle that has numbers, texts and containers alone."""
    try:
        for code, argument, place in pickletools.genops(content):
            if code.name not in MAKES_DATA:
                raise SnapshotError(f"byte {place} of the pickle is {code.name}, which calls something: a snapshot has "
                                    "data alone")
            if code.name.endswith("PUT") and not 0 <= int(argument or 0) <= len(content):
                raise SnapshotError(f"byte {place} of the pickle numbers a value {argument}: it is damaged")
        return DataOnly(io.BytesIO(content)).load()
    except SnapshotError:
        raise
    except Exception as error:                          # what a damaged pickle raises has no end
        raise SnapshotError(f"the pickle is damaged: {type(error).__name__}: {error}") from error


def trace_of(content: bytes, device: int | None) -> tuple[list[tuple[int, str, int, int, int]], list[str]]:
    """The calls of a snapshot, each with its number, action, address, bytes and stream, and notes about them.

    Parameters
    ----------
    content
        Of the file.
    device
        The device; None: the one with the most calls.

    Raises
    ------
    SnapshotError
        It is not a snapshot, or has no such device.
    """
    snapshot = data_of(content)
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise SnapshotError("the pickle is not a snapshot of PyTorch: it has no device_traces")
    calls = [list(calls_in(trace)) for trace in traces]
    if not any(calls):
        raise SnapshotError("the snapshot has no trace: call torch.cuda.memory._record_memory_history() before")
    if device is None:
        device = max(range(len(calls)), key=lambda number: len(calls[number]))
    elif not 0 <= device < len(calls) or not calls[device]:
        having = ", ".join(str(number) for number, one in enumerate(calls) if one)
        raise SnapshotError(f"the snapshot has no calls of device {device}: it has those of {having}")
    others = [f"{number} ({counted(len(one), 'call')})" for number, one in enumerate(calls) if one and number != device]
    notes = [f"device {device} is replayed; --device replays {', '.join(others)}"] if others else []
    return calls[device], notes


def calls_in(trace: list[Any]) -> Iterator[tuple[int, str, int, int, int]]:
    for number, event in enumerate(trace, 1):
        if not isinstance(event, dict) or event.get("action") not in ACTIONS:
            continue
        numbers = [event.get("addr", 0), event.get("size", 0), event.get("stream", 0)]
        if not all(type(one) is int for one in numbers):
            raise SnapshotError(f"call {number} of the trace is damaged: {numbers}")
        ptr, nbytes, stream = numbers
        action = ACTIONS[event["action"]]
        yield number, action, 0 if action == "allocate failure" else ptr, nbytes, stream
