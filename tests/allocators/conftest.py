"""Stand-ins for the libraries, and a runtime that is the process's own for a test."""
from __future__ import annotations

import gc
import sys

import allocator_stand_ins as stand_ins
import pytest
from four_streams import FourStreams

import xlogmem
from xlogmem import allocators
from xlogmem import runtime as runtimes

MODULES = ("cuda_core", "cupy", "numba", "rmm")


def forget(monkeypatch):
    """The next import of a module here imports its library again."""
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"xlogmem.allocators.{name}", raising=False)
        monkeypatch.delattr(allocators, name, raising=False)


@pytest.fixture
def clean(monkeypatch):
    """Nothing is enabled, no runtime was made, and no library is imported."""
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(allocators, "_enabled", {})
    monkeypatch.setattr(runtimes, "_options", None)
    forget(monkeypatch)
    yield
    for name in MODULES:
        module = sys.modules.pop(f"xlogmem.allocators.{name}", None)
        if hasattr(module, "_streams"):
            module._streams._known.clear()              # pytest keeps the stand-ins, which must not keep the runtime
        vars(allocators).pop(name, None)
    allocators._enabled.clear()
    runtimes._runtimes[:] = [None] * runtimes.MAX_DEVICES
    gc.collect()


def installed(monkeypatch, modules):
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return next(iter(modules.values()))


@pytest.fixture
def cupy(clean, monkeypatch):
    return installed(monkeypatch, stand_ins.cupy())


@pytest.fixture
def numba(clean, monkeypatch):
    """Numba's module of the driver, which has all that matters."""
    installed(monkeypatch, stand_ins.numba())
    return sys.modules["numba.cuda.cudadrv.driver"]


@pytest.fixture
def core(clean, monkeypatch):
    return installed(monkeypatch, stand_ins.cuda_core())


@pytest.fixture
def x(clean, four) -> FourStreams:
    """Four streams of the process's own runtime."""
    made = four()
    runtimes._runtimes[0] = made.runtime
    assert xlogmem.get_runtime() is made.runtime
    return made
