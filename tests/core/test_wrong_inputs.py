"""Each input of tests/wrong_inputs.txt is answered as that table says: nothing wrong is silent, and messages name the
argument, its value, and what to do."""
from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import pickle
import re
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from children import variables
from click.testing import CliRunner
from cuda.bindings import driver as cuda

import xlogmem
import xlogmem.check
from xlogmem import DeviceRuntime, DeviceState, LaunchRecorder, host, runtime, use
from xlogmem.commands.cli import main
from xlogmem.observe.history import recording
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

TABLE = Path(__file__).parents[1] / "wrong_inputs.txt"
# Words of the inside, which no message has for a user: for each there is a word that a user knows.
INSIDE = re.compile(r"preflighted|\bfiled\b|\bwindow\b|\bgeneration\b(?!=)|\brecorder\b|stream-ordered contract")


class Row(NamedTuple):
    """One line of the table."""

    input: str
    kind: str                                           # a class, "fine" or "value"; of a command its status
    parts: list[str]


def areas() -> dict[str, list[Row]]:
    """The rows of each area."""
    found: dict[str, list[Row]] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("== "):
            rows = found.setdefault(line[3:], [])
        elif line and not line.startswith("#"):
            given, _, answer = line.rpartition(" -> ")
            kind, _, parts = answer.partition(": ")
            rows.append(Row(given, kind, parts.split("; ")))
    return found


class Array:
    """An array of another library, at any address."""

    def __init__(self, address: object, nbytes: int = 12, *, shape: object = None, read_only: bool = False) -> None:
        self.__cuda_array_interface__ = {"version": 3, "shape": (nbytes,) if shape is None else shape, "typestr": "|u1",
                                         "data": (address, read_only)}


class Mine:
    """No memory at all."""


class Resolved:
    """An object with a resolver."""


class OfMine(xlogmem.DeviceMemoryResource):
    """A resource written in Python, over memory that xlogmem does not know."""

    order = "host"

    def allocate(self, nbytes: int, stream: int) -> int:
        raise MemoryError

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        pass


# ---------------------------------------------------------------------------------------------- what rows call
def enter(recorder: LaunchRecorder) -> None:
    with recorder:
        pass


def nested(first: LaunchRecorder, second: LaunchRecorder) -> None:
    with first, second:
        pass


def nested_with(first: Any, second: Any) -> None:
    with first, second:
        pass


def enter_twice(recorder: LaunchRecorder) -> None:
    enter(recorder)
    enter(recorder)


def enter_cancelled(recorder: LaunchRecorder) -> None:
    recorder.cancel()
    enter(recorder)


def enter_cancelled_inside(recorder: LaunchRecorder) -> None:
    with recorder:
        recorder.cancel()
    enter(recorder)


def use_cancelled(recorder: LaunchRecorder) -> None:
    recorder.cancel()
    recorder.read(4711)


def cancel_twice(recorder: LaunchRecorder) -> None:
    recorder.cancel()
    recorder.cancel()


def repr_cancelled(recorder: LaunchRecorder) -> str:
    recorder.cancel()
    return repr(recorder)


def use_late(recorder: LaunchRecorder) -> None:
    with recorder:
        recorder.read(4711)


def commit_twice(recorder: LaunchRecorder) -> None:
    enter(recorder)
    recorder.commit()


def async_with(recorder: LaunchRecorder) -> None:
    async def run() -> None:
        async with recorder:        # type: ignore[attr-defined]
            pass

    asyncio.run(run())


def left_elsewhere(recorder: LaunchRecorder) -> None:
    recorder.__enter__()
    thread = threading.Thread(target=recorder.__exit__, args=(None, None, None))
    thread.start()
    thread.join()


def raising_body(recorder: LaunchRecorder) -> None:
    with recorder:
        raise KeyError("mine")


def dropped(recorder: LaunchRecorder) -> None:
    recorder.preflight()
    del recorder
    gc.collect()


def free_inside(block: xlogmem.DeviceBlock, recorder: LaunchRecorder) -> None:
    with recorder:
        block.free()


def freed_in_use(block: xlogmem.DeviceBlock, recorder: LaunchRecorder) -> None:
    address = block.ptr
    with recorder:
        block.free()
        assert block.ptr == address
    with pytest.raises(xlogmem.UseAfterFreeError):
        block.ptr  # noqa: B018


def old_address(own: DeviceRuntime) -> int:
    block = own.allocate(64)
    address = block.ptr
    block.free()
    return address


def freed_empty(own: DeviceRuntime) -> xlogmem.DeviceBlock:
    block = own.allocate(0)
    block.free()
    return block


def freed_part(own: DeviceRuntime) -> xlogmem.DeviceBlock:
    block = own.allocate(64)
    part = own.adopt(block)
    block.free()
    return part


def freed_under_history(own: DeviceRuntime, stream: xlogmem.Stream) -> None:
    with xlogmem.record_history(stacks="all"):
        block = own.allocate(64, stream, tag="gone")
        block.free()
        enter(use(stream, read=block))


def of_freed_block(state: DeviceState) -> xlogmem.Buffer:
    buffer = state.empty(3)
    buffer.access().free()
    return buffer


def use_with_resolver(stream: xlogmem.Stream, resolver: Callable[..., Any]) -> None:
    xlogmem.register_resolver(Resolved, resolver)
    try:
        enter(use(stream, read=Resolved()))
    finally:
        xlogmem.register_resolver(Resolved, None)


def outlives(own: DeviceRuntime) -> None:
    block = own.allocate(10)
    del own
    gc.collect()
    block.free()


def freed_memory() -> int:
    address = int(check(cuda.cuMemAlloc(64)))
    check(cuda.cuMemFree(address))
    return address


def pool() -> xlogmem.PoolMemoryResource:
    return xlogmem.PoolMemoryResource()


def limited(limit: str) -> DeviceRuntime:
    return DeviceRuntime(resource=xlogmem.LimitingResourceAdaptor(pool(), limit))


def two_runtimes(resource: xlogmem.PoolMemoryResource) -> tuple[DeviceRuntime, DeviceRuntime]:
    return DeviceRuntime(resource=resource), DeviceRuntime(resource=resource)


def two_recordings() -> None:
    with xlogmem.record_history(), xlogmem.record_history():
        pass


def why_with_history(stream: xlogmem.Stream) -> list[str]:
    with xlogmem.record_history():
        return xlogmem.why(stream)


def assign(buffer: Any, key: object, value: object) -> None:
    buffer[key] = value


CALLED = {function.__name__: function for function in (
    enter, nested, nested_with, enter_twice, enter_cancelled, enter_cancelled_inside, use_cancelled, cancel_twice,
    repr_cancelled, use_late, commit_twice, async_with, left_elsewhere, raising_body, dropped,
    free_inside, freed_in_use, old_address, freed_empty, freed_part, freed_under_history, of_freed_block,
    use_with_resolver, outlives, freed_memory, pool, limited, two_runtimes, two_recordings, why_with_history, assign)}


def world(stack: list[Callable[[], object]]) -> dict[str, Any]:
    """What the rows name, new for each; `stack` gets what ends it."""
    w = SimpleNamespace(rt=DeviceRuntime(), r1=DeviceRuntime(1))
    w.s, w.t, w.s1 = w.rt.acquire_stream(), w.rt.acquire_stream(), w.r1.acquire_stream()
    w.x = w.rt.allocate(1024, w.s, tag="left")
    w.part = w.rt.adopt(w.x)
    w.freed = w.rt.allocate(64, w.s, tag="gone")
    w.freed.free()
    w.b1 = w.r1.allocate(64)
    w.st = DeviceState(w.rt)
    w.buf, w.rel = w.st.empty(16), w.st.empty(4)
    w.rel.release()
    w.host = host
    w.memory, w.host_memory = int(check(cuda.cuMemAlloc(4096))), int(check(cuda.cuMemHostAlloc(64, 0)))
    stack += [lambda: check(cuda.cuMemFree(w.memory)), lambda: check(cuda.cuMemFreeHost(w.host_memory))]
    return vars(w) | CALLED | {
        "xlogmem": xlogmem, "np": np, "pickle": pickle, "copy": copy, "use": use, "LaunchRecorder": LaunchRecorder,
        "array": Array, "Mine": Mine, "OfMine": OfMine, "other_runtime": DeviceRuntime, "__file__": __file__}


def answer(given: str) -> tuple[str, str]:
    """The class of the error or warning and its text with notes; ``fine`` and the text of the value."""
    ends: list[Callable[[], object]] = []
    names = world(ends)
    patched = pytest.MonkeyPatch()
    patched.setattr(recording, "_latest", None)         # no row before has recorded a history
    patched.setattr(runtime, "_runtimes", [None] * runtime.MAX_DEVICES)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = str(eval(given, names))
        if caught:
            return caught[0].category.__name__, str(caught[0].message)
        return "fine", value
    except Exception as error:
        return type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])])
    finally:
        patched.undo()
        names.clear()
        gc.collect()
        for end in ends:
            end()


def wrong_rows(rows: list[Row], answers: Callable[[str], tuple[str, str]]) -> list[str]:
    """What is not as the table says."""
    found = []
    for row in rows:
        kind, said = answers(row.input)
        expected = "fine" if row.kind == "value" else row.kind
        lacks = [part for part in row.parts if part not in said] if row.kind != "fine" else []
        if kind != expected or lacks or INSIDE.search(said):
            found.append(f"{row.input}\n    gave {kind}: {said}\n    not {row.kind}: {lacks}")
    return found


AREAS = areas()
COMMANDS = "Command lines"
NEEDS = {"RMM": ("rmm", "needs RMM"), "Dask": ("distributed", "needs distributed")}


@pytest.mark.parametrize("area", [area for area in AREAS if area != COMMANDS])
def test_an_input_is_answered_as_the_table_says(area):
    if area in NEEDS and find_spec(NEEDS[area][0]) is None:
        pytest.skip(NEEDS[area][1])
    wrong = wrong_rows(AREAS[area], answer)
    assert not wrong, f"{len(wrong)} of {len(AREAS[area])}:\n" + "\n".join(wrong)


# ---------------------------------------------------------------------------------------------- command lines
def answer_in_process(given: str) -> tuple[str, str]:
    """The status, and what was printed."""
    done = CliRunner().invoke(main, shlex.split(given.removeprefix("$ xlogmem")), prog_name="xlogmem")
    return str(done.exit_code), done.output


def answer_of_process(given: str) -> tuple[str, str]:
    """The same, of a process of its own."""
    words = shlex.split(given.removeprefix("$$ "))
    given_variables = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
    program, *arguments = words[len(given_variables):]
    command = [sys.executable, *(["-m", "xlogmem"] if program == "xlogmem" else []), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100,
                          env=variables(XLOGMEM_SIMULATE=1) | given_variables)
    return str(done.returncode), done.stdout + done.stderr


def answer_of_command(given: str) -> tuple[str, str]:
    return answer_of_process(given) if given.startswith("$$") else answer_in_process(given)


def test_a_command_line_is_answered_as_the_table_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("there.py").write_text("print('hello')\n")
    wrong = wrong_rows(AREAS[COMMANDS], answer_of_command)
    assert not wrong, f"{len(wrong)} of {len(AREAS[COMMANDS])}:\n" + "\n".join(wrong)


def test_the_table_is_large_enough():
    """As many inputs as were tried when the table was made, and each of them once."""
    inputs = [row.input for rows in AREAS.values() for row in rows]
    assert len(inputs) == len(set(inputs)) >= 300
