"""Fixtures of the tests of the core."""
from __future__ import annotations

import pytest
from c_table import Hold
from cuda.bindings import driver as cuda
from graphs_by_hand import used_blocks
from native_calls import Library, NativeRuntime, build, planted_programs
from two_devices import Devices

from xlogmem import (
    MAX_DEVICES,
    runtime,
)
from xlogmem.sim.kernels import check


@pytest.fixture
def _cold(monkeypatch):
    """As if none of the process's runtimes had been made yet."""
    monkeypatch.setattr(runtime, "_runtimes", [None] * MAX_DEVICES)


@pytest.fixture
def four_and_hold(four, foreign):
    """The hold may promise to keep foreign streams, so it is closed before they are destroyed."""
    b = four()
    hold = Hold(b.runtime)
    yield b, hold
    hold.close()


@pytest.fixture
def foreign():
    """Makes streams outside xlogmem, as handles."""
    made = []

    def make() -> int:
        made.append(check(cuda.cuStreamCreate(1)))
        return int(made[-1])

    yield make
    for stream in made:
        check(cuda.cuStreamDestroy(stream))


@pytest.fixture
def blocks(x):
    """Three blocks of `x`, whose contents are filed."""
    made = used_blocks(x, 3)
    yield made
    while made:                                     # pytest keeps the list, which must not keep the runtime
        made.pop().close()


@pytest.fixture
def devices():
    """Makes `Devices`, which are closed at the end."""
    made = []

    def make(*arguments, **options) -> Devices:
        made.append(Devices(*arguments, **options))
        return made[-1]

    yield make
    for x in made:
        x.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Library:
    """xlogmem.hpp, compiled."""
    planted = planted_programs()
    built = Library(planted / "native_calls.so") if planted else build(tmp_path_factory.mktemp("native"))
    built.import_table()
    return built


@pytest.fixture
def native(four, library, foreign):
    """Makes a runtime with four streams, and one of xlogmem.hpp of it, which ends before foreign streams do."""
    opened = []

    def make(**options):
        b = four(**options)
        opened.append(NativeRuntime.of(library, b.runtime))
        return b, opened[-1]

    yield make
    for one in opened:
        one.delete()
