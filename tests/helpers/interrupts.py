"""Interrupts (Ctrl-C) at every place of a call where the interpreter looks for signals."""
from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")             # after these instructions it looks for signals


@cache
def places(code: CodeType) -> dict[int, tuple[bool, object]]:
    """Whether the interpreter looks for signals after the instruction at an offset, and what handles an exception."""
    table = dis._parse_exception_table(code)            # type: ignore[attr-defined]
    return {one.offset: (one.opname.startswith(LOOKS), next((entry.target for entry in table
                                                             if entry.start <= one.offset < entry.end), None))
            for one in dis.get_instructions(code)}


class Interrupt:
    """Raises KeyboardInterrupt at the nth such place, in whatever Python code the call consists of."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.last: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes = True
        if event == "opcode":
            here = places(frame.f_code)
            looks, handler = here.get(self.last.get(frame, -1), (False, None))
            self.last[frame] = frame.f_lasti
            if looks and here[frame.f_lasti][1] == handler:     # else the exception would be raised elsewhere
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
        return self.trace


def interrupted(call: Callable[[], object]) -> Iterator[int]:
    """Make the call with an interrupt at its first place, its second, ...: yields after each that was interrupted."""
    for nth in range(1, 10_000):
        interrupt = Interrupt(nth)
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True          # CPython 3.12 heeds it only if set before
        sys.settrace(interrupt.trace)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            interrupt.last.clear()                      # frames hold what they name
        if interrupt.left > 0:                          # the call has fewer places
            assert nth > 1, "the call has no place where it could be interrupted"
            return
        yield nth


def in_another_thread(call: Callable[[], object]) -> object:
    """What it returns; a lock that the interrupted thread has kept is noticed there."""
    answer: list[object] = []
    thread = threading.Thread(target=lambda: answer.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "a lock was kept"
    return answer[0]
