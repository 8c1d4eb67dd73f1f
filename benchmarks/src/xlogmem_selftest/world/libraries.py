"""The libraries of a world: their streams, which are registered here, and their own memory for copies."""
from __future__ import annotations

from contextlib import ExitStack
from random import Random
from typing import Any

from xlogmem_selftest.libraries import Handed, Library, enabled
from xlogmem_selftest.programs import Kind
from xlogmem_selftest.world.calls import NothingToDo
from xlogmem_selftest.world.claims import Claims
from xlogmem_selftest.world.models import ProgramStream

__all__ = ["Libraries"]


class Libraries(Claims):
    """The layer that knows other libraries.  In half of the programs one that can allocate from xlogmem does so."""

    sizes: tuple[int, ...]

    def __init__(self, kind: Kind, simulator: Any, protect: bool, threads: int, devices: int = 1) -> None:
        super().__init__(kind, simulator, protect, threads, devices)
        self.libraries: dict[str, Library] = {}
        self.streams_of: dict[str, list[ProgramStream]] = {}
        self.enabled: set[str] = set()      # their names
        self.own_memory: dict[tuple[Library, int], Any] = {}    # by the stream's handle
        self.leaving = ExitStack()

    def add_libraries(self, rng: Random, libraries: dict[str, Library]) -> None:
        self.libraries = libraries
        self.enabled = {name for name, library in libraries.items() if library.enables and rng.random() < .5}
        for name, library in libraries.items():
            self.streams_of[name] = [self.add_stream_of(rng, name, library, made) for made in library.streams]
        names = [library.enables for name, library in libraries.items() if library.enables and name in self.enabled]
        if names:
            self.leaving.enter_context(enabled(self.runtime, names))
            self.say(f"xlogmem.enable({', '.join(map(repr, names))})")

    def add_stream_of(self, rng: Random, name: str, library: Library, made: Any) -> ProgramStream:
        """Add a stream of a library, which is opaque if the library allocates from xlogmem."""
        discipline = "opaque" if name in self.enabled else rng.choice(["ordinary", "opaque"])
        stream = self.add_stream("object", made, library.handle_of(made), discipline)
        self.runtime.register_stream(made, discipline=discipline)
        self.say(f"{stream} = a stream of {name}, {discipline}")
        return stream

    def empty(self, name: str, stream: ProgramStream, nbytes: int) -> Any:
        """An array from the library's allocator, which may have no room where that is xlogmem's."""
        try:
            return self.libraries[name].empty(nbytes, stream.argument)
        except Exception as error:                      # each library has an error of its own
            if name in self.enabled and self.limited and "memory" in f"{type(error).__name__} {error}".lower():
                raise NothingToDo from None
            raise

    def handed(self, name: str, array: Any, stream: ProgramStream, through: Any = None) -> Handed:
        """An array as the library works on it; `through` is its object for a stream that is not its own."""
        library = self.libraries[name]
        if (library, stream.handle) not in self.own_memory:
            self.own_memory[library, stream.handle] = self.empty(name, stream, max(self.sizes))
            self.synchronize()              # it is used on this stream alone, wherever it was allocated
        through = stream.argument if through is None else through
        return Handed(library, array, through, self.own_memory[library, stream.handle])

    def release_libraries(self) -> None:
        """Drop the memory of their own."""
        if self.libraries:
            self.synchronize()
            self.own_memory.clear()

    def close_libraries(self) -> None:
        """Restore their allocators."""
        self.leaving.close()
        for library in self.libraries.values():
            library.finish()
        self.libraries = {}
        self.streams_of.clear()
