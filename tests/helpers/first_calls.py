"""Each driver call of a process's first `get_runtime` fails once: the next call of the program makes it after all.

    python tests/helpers/first_calls.py [CODE ...]

Each point is a child of this process, which imports everything and touches no driver.  Prints what is wrong, and at the
end how many points there were.
"""
from __future__ import annotations

import ast
import os
import signal
import sys
import warnings

from xlogmem import XlogmemError, get_device_state, sim, use

PATIENCE = 30                               # seconds for one point


def work() -> None:
    runtime = get_device_state().runtime
    block = runtime.allocate(64)
    with use(block.stream, read=block):
        pass
    with use(runtime.acquire_stream(), write=block):
        pass
    block.free()
    runtime.reap_pending()


def child(call: str, nth: int, code: int) -> str:
    """What is wrong; without `call`, the driver calls."""
    simulator = sim.install()
    if call:
        simulator.fail(call, nth, code)
    warnings.simplefilter("ignore")
    for turn in range(2):
        try:
            work()
            break
        except XlogmemError as error:
            if turn:
                return f"{call} number {nth} fails with {code}: a second time too: {error}"
        except Exception as error:
            return f"{call} number {nth} fails with {code}: undocumented: {error!r}"
    return "" if call else repr(simulator.all_calls())


def run(call: str = "", nth: int = 0, code: int = 0) -> str:
    readable, writable = os.pipe()
    process = os.fork()
    if not process:
        signal.alarm(PATIENCE)
        try:
            os.write(writable, child(call, nth, code).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        said = pipe.read()
    status = os.waitpid(process, 0)[1]
    return f"{call} number {nth} fails with {code}: the process ended with {status}" if status else said


def main() -> int:
    os.environ.update(sim.settings(quiet=True))
    calls = ast.literal_eval(run())
    points = [(call, nth, int(code)) for code in sys.argv[1:] or (2, 400)
              for call, count in calls.items() for nth in range(1, count + 1)]
    wrong = [said for point in points if (said := run(*point))]
    print(*wrong, f"{len(points)} points, {len(wrong)} violations", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
