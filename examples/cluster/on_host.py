"""What leaves the process is a use: of the host, since UCX, MPI, sockets and files know no streams.  And what the
examples here share: their options, and the result.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import xlogmem


@contextlib.contextmanager
def on_host(stream: xlogmem.Stream, **what: Any) -> Iterator[None]:
    """Hand memory to what knows no streams, until the end of the block.

        with on_host(stream, read=block):
            request = endpoint.tag_send(block)          # all that was queued on `block` before is complete
            while not request.completed:                # a launch of another thread that writes it waits
                worker.progress()

    Give each of those that run at a time a stream of its own, on which nothing is queued: two uses on one stream do
    not conflict.  ``read``, ``write`` and ``read_write`` are those of `xlogmem.use`.
    """
    with xlogmem.use(stream, **what):
        stream.synchronize()                            # waits for what `block` waits for, and for nothing else
        yield


@contextlib.asynccontextmanager
async def use_awaited(stream: xlogmem.Stream, **what: Any) -> AsyncIterator[None]:
    """`xlogmem.use` in a coroutine: the event loop may have to end what it conflicts with, so it does not wait."""
    use = xlogmem.use(stream, **what)
    await asyncio.to_thread(use.preflight)
    try:
        yield
    finally:
        use.commit()


@contextlib.asynccontextmanager
async def on_host_awaited(stream: xlogmem.Stream, **what: Any) -> AsyncIterator[None]:
    """`on_host` in a coroutine: its block may await the request."""
    async with use_awaited(stream, **what):
        await asyncio.to_thread(stream.synchronize)
        yield


# ---------------------------------------------------------------------------------------------- a program
def needed(library: str) -> Any:
    """A module that the example cannot do without."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library.partition(".")[0]:
            raise
        sys.exit(f"this example needs {error.name}: pip install {error.name}-cu13, or {error.name}-cu12")


def main(description: str, run: Callable[[argparse.Namespace], dict[str, int]],
         add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None, mib: float = 16) -> None:
    """Parse, run, report.  `run` returns the number of wrong rounds, by what was wrong with them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--mib", type=float, default=mib, help="of the memory that is sent")
    parser.add_argument("--without", action="store_true", help="leave the uses out, which goes wrong")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_options(parser)
    options = parser.parse_args()
    started = time.perf_counter()
    seen = run(options)
    wrong = sum(seen.values())
    counters = xlogmem.get_runtime().counters()
    result = {"example": sys.argv[0].rpartition("/")[2], **vars(options), "wrong": wrong, **seen,
              "seconds": round(time.perf_counter() - started, 2), "counters": counters}
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in seen.items() if count)
    print(json.dumps(result) if options.json else
          f"{wrong} of {options.rounds} rounds were wrong {'without' if options.without else 'with'} uses"
          + (f": {kinds}" if kinds else ""))
    sys.exit(3 if wrong else 0)
