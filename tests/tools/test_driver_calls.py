"""benchmarks/driver_calls.py counts the calls of the driver that CUPTI reports, here a stand-in for it."""
from __future__ import annotations

import ctypes
import importlib
import subprocess

import pytest
from engine_traces import compiler
from places import ROOT

STAND_IN = """
#include <initializer_list>
struct Data { int site; const char* name; };
static void (*callback)(void*, int, unsigned, const Data*);
static bool enabled = false;
static int count = 0;
extern "C" {
int cuptiSubscribe(void** subscriber, decltype(callback) given, void*) {
    *subscriber = &enabled;
    callback = given;
    ++count;
    return 0;
}
int cuptiEnableDomain(unsigned on, void*, int domain) { enabled = on; return domain == 1 ? 0 : 1; }
int cuptiUnsubscribe(void* subscriber) {
    enabled = false;
    --count;
    return subscriber == &enabled ? 0 : 1;
}
int subscribers() { return count; }
void call(const char* name) {
    for (int site : {0, 1}) {
        Data data{site, name};
        if (enabled) callback(nullptr, 1, 7, &data);
    }
}
}
"""
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The library, in the place of CUPTI."""
    source, built = tmp_path / "cupti.cpp", tmp_path / "libcupti.so"
    source.write_text(STAND_IN)
    subprocess.run([compiler() or "g++", "-shared", "-fPIC", source, "-o", built], check=True)
    monkeypatch.setenv("XLOGMEM_CHECK_CUPTI", str(built))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return ctypes.CDLL(str(built))


def test_calls_are_counted_once_and_only_meanwhile(stand_in):
    calls = importlib.import_module("driver_calls").DriverCalls()
    stand_in.call(b"cuEventQuery")
    with calls:
        for name in (b"cuEventQuery", b"cuEventQuery", b"cuStreamQuery", b"cuCtxSynchronize", b"cuEventRecord"):
            stand_in.call(name)
    stand_in.call(b"cuEventQuery")
    assert calls.counts == {"cuEventQuery": 2, "cuStreamQuery": 1, "cuCtxSynchronize": 1, "cuEventRecord": 1}
    assert calls.matching("EventQuery", "StreamQuery") == 3
    assert calls.matching("Synchronize") == 1
    assert stand_in.subscribers() == 0


def test_an_error_of_cupti_is_raised(stand_in, monkeypatch):
    module = importlib.import_module("driver_calls")
    monkeypatch.setattr(module, "DRIVER_API", 2)
    with pytest.raises(RuntimeError, match="cuptiEnableDomain failed with CUPTI's error 1"), module.DriverCalls():
        pass
    assert stand_in.subscribers() == 0
