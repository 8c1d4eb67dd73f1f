"""What the programs of `fault_programs` work with: `World` makes their operations, and remembers what they leave."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from c_table import Refused
from capsules import Taken
from cuda.bindings import driver as cuda

from xlogmem import Buffer, DeviceRuntime, Stream, XlogmemError, use
from xlogmem.sim.kernels import Kernels

__all__ = ["NBYTES", "Ended", "World", "mine"]

DOCUMENTED = (XlogmemError, Refused)        # Refused: the C table's answer, made an exception by its helper
NBYTES = 512


def mine(function: Callable[..., Any], *arguments: Any) -> Any:
    """A driver call of the program itself: made again where it was the one that failed."""
    for _ in range(2):
        code, *values = function(*arguments)
        if not int(code):
            return values[0] if values else None
    return None


class World:
    """What a program works with, and what it leaves."""

    def __init__(self, kernels: Kernels, scratch: int, again: bool = True) -> None:
        self.kernels, self.scratch, self.again = kernels, scratch, again
        self.runtimes: list[DeviceRuntime] = []
        self.kept: list[Any] = []
        self.exports: list[Taken] = []
        self.endings: list[Callable[[], object]] = []
        self.errors: list[str] = []
        self.broken: list[str] = []
        self.lost = False
        self.reads = 0

    # ------------------------------------------------------------------------------------------ operations
    def do(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Make an operation; again if a driver call failed under it, which then has to go well."""
        return self._make(self.again, operation, arguments, options)

    def must(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """An operation that a right program makes again in any case."""
        return self._make(True, operation, arguments, options)

    def _make(self, again: bool, operation: Callable[..., Any], arguments: Any, options: Any) -> Any:
        for turn in range(2):
            try:
                return operation(*arguments, **options)
            except DOCUMENTED as error:
                self.errors.append(str(error))          # the exception refers to frames, and these to the runtime
                if turn and not self.lost:
                    self.broken.append(f"failed twice: {error}")
                if turn or self.lost or not again:
                    raise Ended from None
        return None

    def runtime(self, **parts: Any) -> DeviceRuntime:
        made = self.do(DeviceRuntime, **parts)
        self.runtimes.append(made)
        return made

    def streams(self, runtime: DeviceRuntime, *disciplines: str) -> list[Stream]:
        return [self.do(runtime.acquire_stream, discipline=discipline) for discipline in disciplines]

    def two(self, **parts: Any) -> tuple[DeviceRuntime, Stream, Stream]:
        """A runtime with two ordinary streams."""
        runtime = self.runtime(**parts)
        return runtime, *self.streams(runtime, "ordinary", "ordinary")

    def keep(self, what: Any) -> Any:
        self.kept.append(what)
        return what

    def hold(self, capsule: Any) -> Taken:
        """An export, which is released at the end at the latest."""
        self.exports.append(Taken(capsule))
        return self.exports[-1]

    def release(self, export: Taken) -> None:
        self.exports.remove(export)
        export.delete()

    def at_end(self, what: Callable[[], object]) -> None:
        self.endings.append(what)

    # ------------------------------------------------------------------------------------------ launches
    def write(self, stream: Any, ptr: int) -> None:
        self.kernels.fill(int(getattr(stream, "handle", stream)), ptr, 1, 16)

    def read(self, stream: Any, ptr: int) -> None:
        self.reads += 1                                 # each counts into a word of its own
        self.kernels.count_unequal(int(getattr(stream, "handle", stream)), self.scratch + 4 * self.reads, ptr, 1, 16)

    def launch(self, stream: Any, **uses: Any) -> None:
        """``read=`` and ``write=`` blocks or buffers; again if the use fails before the launch."""
        def once() -> None:
            with use(stream, **uses, runtime=self.runtimes[-1]):
                for access, what in uses.items():
                    for one in what if isinstance(what, list) else [what]:
                        (self.read if access == "read" else self.write)(stream, one.access().ptr if isinstance(
                            one, Buffer) else one.ptr)
        self.do(once)

    def foreign_stream(self) -> Any:
        stream = self._made(mine(cuda.cuStreamCreate, 1))
        self.at_end(lambda: mine(cuda.cuStreamDestroy, stream))
        return stream

    def foreign_memory(self) -> int:
        ptr = int(self._made(mine(cuda.cuMemAlloc, NBYTES)))
        self.at_end(lambda: mine(cuda.cuCtxSynchronize) or mine(cuda.cuMemFree, ptr))
        return ptr

    def page_locked_memory(self) -> int:
        ptr = int(self._made(mine(cuda.cuMemHostAlloc, NBYTES, 0)))
        self.at_end(lambda: mine(cuda.cuCtxSynchronize) or mine(cuda.cuMemFreeHost, ptr))
        return ptr

    def _made(self, what: Any) -> Any:
        if what is None:                                    # the device is lost
            raise Ended
        return what


class Ended(Exception):
    """The program cannot go on."""
