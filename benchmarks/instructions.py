"""How many of xlogmem's instructions the hottest paths take: repeatable, on any machine, without a GPU.

    python benchmarks/instructions.py            # compare with benchmarks/instructions.json
    python benchmarks/instructions.py --update   # write that file

Valgrind's callgrind runs the loops of the benchmarks on the simulated driver and counts the instructions in xlogmem's
modules, without the loops and the simulated driver.  Each path runs twice, for different numbers of rounds: the
difference is the rounds, and nothing else.  Counts depend on the compiler, on Cython and on Python, so those of another
toolchain are shown and not compared.  Without valgrind nothing is counted; a line says so, and the exit code is 0.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("instructions.json")
TOLERANCE = .01
FEW, MANY = 200, 1200
FIRST = 2500                # rounds: by then what the path keeps is allocated, and its locks have a favourite
PATHS = ("allocate + free, C table, trivial resource", "allocate + free, C table, pool", "use of 1 block",
         "use of 16 blocks", "use of 64 blocks", "lookup by address, 10,000 live", "allocate + free, Python, pool",
         "use of 1 block, Python", "use of 16 blocks, Python", "hand-over, Python", "4 blocks of another stream, read",
         "for the host: allocate + free, C table", "for the host: allocate + free, Python",
         "access by the host, Python", "1 of 1,000 columns, C table, pool", "1 of 1,000 columns, Python, pool",
         "1 of 1,000 sizes, C table, pool", "unowned stream: allocate + free, C table, pool",
         "unowned stream: allocate + free, Python, pool", "graph launch of 16 blocks, C table",
         "graph launch of 16 blocks, Python", "use of a buffer, Python", "use of a range of it, Python",
         "DLPack exchange: export + release", "DLPack exchange: stream to work on",
         "export by __dlpack__, Python", "import by DLPack, Python", "import by the CUDA array interface, Python",
         "use of an array of another library, Python")


def paths() -> dict[str, Callable[[int], object]]:
    """The loops, in the process that valgrind runs."""
    from cuda.bindings import driver as cuda
    from xlogmem_bench import _loops

    import xlogmem
    from xlogmem import sim
    from xlogmem.interop.devices import DeviceState
    from xlogmem.sim.kernels import check

    sim.install()
    xlogmem.DeviceRuntime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    nothing = _loops.Allocator.nothing()
    trivial = xlogmem.DeviceRuntime(resource=xlogmem.ForeignMemoryResource(nothing.capsule))
    pool = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(initial_pool_size=1 << 24))
    tables = {runtime: _loops.Allocator.table(runtime) for runtime in (trivial, pool)}
    held = [trivial.allocate(256, trivial.acquire_stream()) for _ in range(16)]         # the index is not empty
    used = xlogmem.DeviceRuntime(resource=xlogmem.ForeignMemoryResource(nothing.capsule))
    stream = used.acquire_stream()
    blocks = [used.allocate(256, stream) for _ in range(64)]
    adopted = xlogmem.DeviceRuntime()
    own = adopted.acquire_stream()
    memory = int(check(cuda.cuMemAlloc(512 * 10_000)))
    bases = [memory + 512 * number for number in range(10_000)]
    kept = [adopted.adopt(base, 512, own) for base in bases]
    wanted = _loops.Addresses([bases[number * 7919 % len(bases)] for number in range(FIRST)])

    def table(runtime: xlogmem.DeviceRuntime) -> Callable[[int], object]:
        return lambda rounds: held and tables[runtime].pairs(1 << 16, [0], rounds)

    def uses(count: int) -> Callable[[int], object]:
        return _loops.Uses([(0, [(block, 3) for block in range(count)])], [stream], blocks).run

    def look_up(rounds: int) -> object:
        return kept and _loops.lookups(adopted, wanted, rounds)

    columns = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(initial_pool_size=1 << 28))
    of_columns = _loops.Allocator.table(columns)
    column_stream = columns.acquire_stream()

    def batches(sizes: list[int]) -> Callable[[int], object]:
        return lambda rounds: of_columns.batches(sizes, 0, rounds // len(sizes))

    def python_batches(rounds: int) -> None:
        for _ in range(rounds // 1000):
            columns.deallocate_many(columns.allocate_many([1 << 12] * 1000, column_stream))

    pool_stream = pool.acquire_stream()

    def allocate_and_free(rounds: int) -> None:
        for _ in range(rounds):
            pool.allocate(1 << 16, pool_stream).free()

    def python_uses(*rounds_of: tuple[xlogmem.Stream, dict[str, Any]]) -> Callable[[int], object]:
        def run(rounds: int) -> None:
            for _ in range(rounds):
                for on, arguments in rounds_of:
                    with xlogmem.use(on, **arguments):
                        pass

        return run

    bare = int(check(cuda.cuStreamCreate(1)))
    of_bare = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(initial_pool_size=1 << 24))
    table_of_bare = _loops.Allocator.table(of_bare)

    def allocate_on_bare(rounds: int) -> None:
        for _ in range(rounds):
            of_bare.allocate(1 << 16, bare).free()

    host_memory = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
    on_host = xlogmem.DeviceRuntime(resource=host_memory)
    for_host, accessed = _loops.Allocator.table(on_host), on_host.allocate(256, xlogmem.host)

    def allocate_for_host(rounds: int) -> None:
        for _ in range(rounds):
            on_host.allocate(1 << 16, xlogmem.host).free()

    captured = xlogmem.DeviceRuntime()
    of_graph = captured.acquire_stream()
    in_graph = [captured.allocate(256, of_graph) for _ in range(16)]
    with xlogmem.capture(of_graph) as graph, xlogmem.use(of_graph, write=in_graph):
        pass
    native = _loops.GraphLaunches(captured, graph, of_graph.handle)

    def launch(rounds: int) -> None:
        for _ in range(rounds):
            graph.launch(of_graph)

    called_on = captured.acquire_stream()
    state = DeviceState(captured)
    array = state.full((8, 32), 1.0, "float32", called_on)
    exchanges = _loops.Exchanges(array)
    whole, cut = (state.full((8, 32), 1.0, "float32", called_on) for _ in range(2))
    ranges = [cut[number] for number in range(8)]

    def inside(run: Callable[[int], object]) -> Callable[[int], None]:
        def use(rounds: int, state: DeviceState = state) -> None:
            with xlogmem.use(called_on, read_write=array):
                run(rounds)

        return use

    return dict(zip(PATHS, (
        table(trivial), table(pool), uses(1), uses(16), uses(64), look_up, allocate_and_free,
        python_uses((stream, {"read_write": blocks[0]})), python_uses((stream, {"read_write": blocks[:16]})),
        python_uses((stream, {"write": blocks[1]}), (used.acquire_stream(), {"read": blocks[1]})),
        _loops.Uses([(0, [(block, 1) for block in range(4)])], [used.acquire_stream()], blocks).run,
        lambda rounds: for_host.pairs(1 << 16, [_loops.HOST], rounds), allocate_for_host,
        python_uses((xlogmem.host, {"write": accessed})),
        batches([1 << 12] * 1000), python_batches, batches([256 * size for size in range(1, 1001)]),
        lambda rounds: table_of_bare.pairs(1 << 16, [bare], rounds), allocate_on_bare,
        lambda rounds: in_graph and native.run(rounds), launch,
        python_uses((called_on, {"read_write": whole})), python_uses((called_on, {"read_write": ranges[3]})),
        inside(exchanges.exported), inside(exchanges.streams), *with_libraries(state)), strict=True))


class Array:
    """An array of another library, with the CUDA array interface."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"version": 3, "shape": (8, 32), "typestr": "<f4", "data": (address, False),
                                         "strides": None, "stream": 1}


def with_libraries(state: Any) -> tuple[Callable[[int], object], ...]:
    """Exports to other libraries, imports of their arrays, and a use that names one."""
    from cuda.bindings import driver as cuda
    from xlogmem_bench import _loops

    import xlogmem
    from xlogmem.sim.kernels import check

    producer, stream = state.runtime.acquire_stream(), state.runtime.acquire_stream()
    buffer = state.full((8, 32), 1.0, "float32", producer)
    exporter, array, adopted = (kind(int(check(cuda.cuMemAlloc(1024)))) for kind in (
        lambda address: _loops.Exporter(address, (8, 32)), Array, Array))
    kept = state.runtime.adopt(adopted, stream=producer)

    def exported(rounds: int) -> None:
        for _ in range(rounds):
            buffer.__dlpack__(stream=producer.handle, max_version=(1, 0))

    def imported(rounds: int) -> None:
        for _ in range(rounds):
            xlogmem.from_dlpack(exporter, producer=producer, state=state)

    def imported_by_interface(rounds: int) -> None:
        for _ in range(rounds):
            xlogmem.from_cuda_array(array, producer=producer, state=state)

    def used(rounds: int) -> object:
        for _ in range(rounds):
            with xlogmem.use(stream, read=adopted):
                pass
        return kept

    return exported, imported, imported_by_interface, used


def work() -> None:
    from xlogmem_bench import _loops

    made = paths()
    gc.collect()
    gc.freeze()                                         # a collection in a path does not visit what is kept for others
    for run in made.values():
        run(FIRST)
        _loops.mark()
        run(FEW)
        _loops.mark()
        run(MANY)
        _loops.mark()


def counted(dump: Path) -> int:
    """The instructions of one part of a run in xlogmem's own modules."""
    names: dict[str, str] = {}
    ours = skip = False
    total = 0
    for line in dump.read_text().splitlines():
        if named := re.match(r"(c?ob)=\((\d+)\)(?: (.*))?$", line):
            kind, number, name = named.groups()
            if name:
                names[number] = name
            if kind == "ob":
                path = names[number]
                ours = ("/xlogmem/" in path and path.endswith(".so")
                        and not re.search(r"/xlogmem/sim/|/xlogmem_bench/", path))
        elif line.startswith("calls="):
            skip = True                                 # the next line is the callee's cost, which is counted there
        elif re.match(r"[+\-*\d]", line):
            if ours and not skip:
                total += int(line.split()[1])
            skip = False
    return total


def record(folder: Path) -> list[Path]:
    """Run all paths under callgrind.  Of each there are three dumps: until its first mark, the few rounds, the many."""
    out = folder / "out"
    subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", "--dump-before=xlogmem_bench_mark",
         sys.executable, str(Path(__file__).resolve()), "--work"],
        check=True, env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc", "PYTHONDONTWRITEBYTECODE": "1",
                                      "XLOGMEM_SIM": f"quiet,arena={1 << 32},memory={1 << 31}"}, timeout=580)
    return [Path(f"{out}.{number}") for number in range(1, 3 * len(PATHS) + 1)]


def count() -> dict[str, float]:
    """Instructions for one round of each path."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [counted(dump) for dump in record(Path(folder))]
    return {name: round((parts[3 * place + 2] - parts[3 * place + 1]) / (MANY - FEW), 1)
            for place, name in enumerate(PATHS)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help=f"write {RECORDED.name}")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    if shutil.which("valgrind") is None:
        print("INSTRUCTIONS NOT COUNTED: valgrind is not installed")
        return 0
    from xlogmem_bench import _loops

    from xlogmem import _driver

    toolchain = f"{_loops.COMPILER}, {_driver.BUILD}, Python {sys.version_info[0]}.{sys.version_info[1]}"
    seen = count()
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"toolchain": None, "instructions": {}}
    comparable = recorded["toolchain"] == toolchain
    wrong = 0
    for name, instructions in seen.items():
        before = recorded["instructions"].get(name)
        change = instructions / before - 1 if before else 0
        off = comparable and (before is None or abs(change) > TOLERANCE)
        wrong += off
        print(f"{name:45}{instructions:9,.1f}" + (f"{before:9,.1f}{100 * change:+7.1f} %" if before else "")
              + ("   <- NOT AS RECORDED" if off else ""))
    if options.update:
        RECORDED.write_text(json.dumps({"toolchain": toolchain, "instructions": seen}, indent=1) + "\n")
        print(f"wrote {RECORDED}")
        return 0
    if not comparable:
        print(f"INSTRUCTIONS NOT COMPARED: recorded with {recorded['toolchain']}, these modules were built with "
              f"{toolchain}")
    elif wrong:
        print(f"{wrong} of {len(seen)} differ by more than {100 * TOLERANCE:.0f} %. If that is meant, run "
              "`python benchmarks/instructions.py --update` and commit benchmarks/instructions.json with the reason.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
