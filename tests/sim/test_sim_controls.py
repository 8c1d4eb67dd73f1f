"""The test controls, the loading rules and the simulated kernels."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading

import numpy as np
import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, event, fill, free, ok, order, stream, sync

from xlogmem import sim

pytestmark = pytest.mark.simulator

# Counting, failing, dropping, hooking ------------------------------------------------------------------


def test_calls_are_counted_by_their_documented_names(simulator):
    a = stream()
    simulator.reset()
    p = alloc(a)
    free(p, a)
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
    assert code(driver.cuMemFreeAsync(12345, a)) == 1  # failed calls count
    expected = {"cuMemAllocAsync": 1, "cuMemFreeAsync": 2, "cuMemAlloc": 1, "cuMemFree": 1}
    assert simulator.all_calls() == expected
    assert simulator.calls("cuMemFreeAsync") == 2
    assert simulator.calls("cuEventRecord") == simulator.calls("no such function") == 0


def test_fail(simulator):
    a = stream()
    before = simulator.live_bytes()
    simulator.fail("cuMemAllocAsync", nth=2)
    simulator.fail("cuMemAllocAsync", nth=4, code=999)
    assert [cu.try_alloc(a) for _ in range(5)] == [0, 2, 0, 999, 0]
    assert simulator.live_bytes() == before + 3 * 64
    simulator.fail("cuEventCreate")
    simulator.reset()
    ok(driver.cuEventDestroy(event()))  # the reset took the failure back


def test_a_dropped_wait_is_found(scheduled):
    a, b = stream(), stream()
    p = alloc(a)
    order(b, a)
    fill(p, 1, b)
    assert scheduled.races() == []
    scheduled.drop("cuStreamWaitEvent")
    order(a, b)
    free(p, a)
    assert [report.split(":")[0] for report in scheduled.races()] == ["RACE write/free"]
    scheduled.clear_races()
    assert scheduled.races() == []


def test_a_dropped_record_leaves_the_event_as_it_was(simulator):
    simulator.reset("min")
    a, b, e = stream(), stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    fill(p, 1, a)
    simulator.drop("cuEventRecord")
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuStreamWaitEvent(b, e, 0))
    fill(p, 2, b)  # ordered after the allocation only
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/write"]


@pytest.mark.parametrize("name", ["cuStreamSynchronize", "cuEventSynchronize"])
def test_a_dropped_synchronize_teaches_the_host_nothing(simulator, name):
    simulator.reset("min")
    a, b, e = stream(), stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    simulator.drop(name)
    ok(driver.cuStreamSynchronize(a) if name == "cuStreamSynchronize" else driver.cuEventSynchronize(e))
    assert simulator.pending_operations() == 2
    fill(p, 1, b)
    assert len(simulator.races()) == 1


def test_only_harmless_calls_can_be_dropped(simulator):
    with pytest.raises(ValueError, match="cuMemAllocAsync cannot be dropped"):
        simulator.drop("cuMemAllocAsync")
    with pytest.raises(ValueError, match="nth counts from 1"):
        simulator.fail("cuMemAllocAsync", nth=0)
    with pytest.raises(ValueError, match="unknown policy 'fast'"):
        simulator.reset("fast")


def test_hooks_run_on_the_thread_without_a_lock(simulator):
    a, b = stream(), stream()
    seen = []

    def hook():
        seen.append((threading.get_ident(), simulator.calls("cuEventRecord")))
        p = alloc(b)  # any CUDA call is allowed, also from another thread
        thread = threading.Thread(target=lambda: seen.append(simulator.peek(p, 1)))
        thread.start()
        thread.join()
        free(p, b)

    e = event()
    simulator.on_call("cuEventRecord", hook, nth=2)
    ok(driver.cuEventRecord(e, a))
    assert seen == []
    ok(driver.cuEventRecord(e, a))
    assert seen == [(threading.get_ident(), 2), b"\xcd"]
    ok(driver.cuEventRecord(e, a))
    assert len(seen) == 2  # once


def test_hooks_run_before_and_after(simulator):
    p = alloc(0)
    before, after = [], []
    simulator.on_call("cuMemFreeAsync", lambda: after.append(simulator.live_bytes()), when="after")
    simulator.on_call("cuMemFreeAsync", lambda: before.append(simulator.live_bytes()))
    free(p, 0)
    assert before[0] == after[0] + 64
    with pytest.raises(ValueError, match="before"):
        simulator.on_call("cuMemFreeAsync", lambda: None, when="never")


def test_what_a_hook_raises_is_raised_later(simulator):
    def hook():
        raise KeyError("from the hook")

    simulator.on_call("cuStreamQuery", hook)
    assert code(driver.cuStreamQuery(0)) == 0
    with pytest.raises(KeyError, match="from the hook"):
        simulator.races()
    assert simulator.races() == []


def test_hook_makes_an_interleaving(simulator):
    """Between a record and the wait somebody else uses the block: only the hook can show it on one thread."""
    a, b, c = stream(), stream(), stream()
    p = alloc(a)
    order(b, a)
    order(c, a)
    simulator.on_call("cuStreamWaitEvent", lambda: fill(p, 3, c))
    order(b, a)
    free(p, b)
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/free"]


def test_a_call_is_held_up_without_the_gil(simulator):
    """Once, the nth, and with nothing that others need; it goes on when it is let go."""
    a, e = stream(), event()
    hold = simulator.hold("cuEventRecord", nth=2)
    ok(driver.cuEventRecord(e, a))
    assert not hold.reached(0)
    thread = threading.Thread(target=lambda: ok(driver.cuEventRecord(e, a)))
    thread.start()
    assert hold.reached()
    ok(driver.cuEventRecord(event(), a))
    assert thread.is_alive()
    assert hold.let_go()
    thread.join()


@pytest.mark.parametrize("gil", [False, True])
def test_a_held_call_loses_patience(simulator, gil):
    """A caller that keeps the GIL in the driver stops the thread that would let it go: the hold says so."""
    library = (ctypes.PyDLL if gil else ctypes.CDLL)(sim._library_path())
    hold = simulator.hold("cuCtxSynchronize", patience=0.3 if gil else 30)
    thread = threading.Thread(target=library.cuCtxSynchronize)
    thread.start()
    assert hold.reached()
    assert hold.let_go() == (not gil)
    thread.join()


def test_sticky_error(simulator):
    simulator.sticky_error(700)
    assert code(driver.cuStreamQuery(0)) == code(driver.cuMemAllocAsync(64, 0)) == 700
    simulator.sticky_error(0)
    assert code(driver.cuStreamQuery(0)) == 0


def test_reset_keeps_what_is_alive(simulator):
    simulator.reset("min")
    a, e = stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    fill(p, 1, a)
    streams, events, live = simulator.live_streams(), simulator.live_events(), simulator.live_bytes()
    simulator.reset("max")
    assert simulator.pending_operations() == 0
    assert simulator.peek(p, 64) == b"\x01" * 64
    assert (streams, events, live) == (simulator.live_streams(), simulator.live_events(),
                                       simulator.live_bytes())
    b = stream()
    fill(p, 2, b)  # ordered after everything before the reset
    ok(driver.cuStreamWaitEvent(b, e, 0))
    free(p, b)
    assert simulator.races() == []


def test_peek_refuses_what_is_not_device_memory(simulator):
    with pytest.raises(ValueError, match="not device memory"):
        simulator.peek(0x1234, 4)


# Kernels -----------------------------------------------------------------------------------------------


U32, U64 = ctypes.c_uint32, ctypes.c_uint64


def test_kernels_compute(scheduled):
    a = stream()
    x, y, result = alloc(a, 400), alloc(a, 400), alloc(a, 4)
    ok(cu.launch(cu.kernel("xlogmem_delay"), a, [1000], [U64]))
    ok(cu.launch(cu.kernel("xlogmem_fill_u32"), a, [x, 7, 100], [U64, U32, U32]))
    ok(cu.launch(cu.kernel("xlogmem_add_u32"), a, [x, 5, 50], [U64, U32, U32]))
    ok(cu.launch(cu.kernel("xlogmem_copy_u32"), a, [y, x, 100], [U64, U64, U32]))
    fill(result, 0, a, 4)
    count = cu.kernel("xlogmem_count_unequal_u32")
    ok(cu.launch(count, a, [result, y, 12, 100], [U64, U64, U32, U32]))
    ok(cu.launch(count, a, [result, y, 0, 100], [U64, U64, U32, U32]))
    sync(a)
    values = np.frombuffer(scheduled.peek(y, 400), np.uint32)
    assert values.tolist() == [12] * 50 + [7] * 50
    assert int.from_bytes(scheduled.peek(result, 4), "little") == 150
    assert scheduled.races() == []


@pytest.mark.parametrize("wrong", [False, True])
def test_kernels_are_checked(scheduled, wrong):
    a, b = stream(), stream()
    x, y = alloc(a), alloc(a)
    ok(cu.launch(cu.kernel("xlogmem_fill_u32"), a, [x, 7, 16], [U64, U32, U32]))
    if not wrong:
        order(b, a)
    ok(cu.launch(cu.kernel("xlogmem_copy_u32"), b, [y, x, 16], [U64, U64, U32]))
    kinds = {report.split(":")[0] for report in scheduled.races()}
    assert kinds == ({"RACE write/read", "RACE alloc/use"} if wrong else set())


def test_an_unknown_kernel_loads_and_is_refused(simulator, capfd):
    function = cu.kernel("unknown_to_the_simulator")
    assert code(cu.launch(function, 0, [0], [U64])) == 801
    assert "unknown_to_the_simulator" in capfd.readouterr().err


def test_bad_launches(simulator, capfd):
    fill_kernel = cu.kernel("xlogmem_fill_u32")
    p = alloc(0)
    assert code(cu.launch(fill_kernel, 0, [p, 1, 17], [U64, U32, U32])) == 1
    assert code(cu.launch(fill_kernel, 0, [p, 1, 16], [U64, U32, U32], grid=(0, 1, 1))) == 1
    module = ok(driver.cuModuleLoadData(cu.PTX))
    assert code(driver.cuModuleGetFunction(module, b"not_there")) == 500
    assert code(driver.cuModuleLoadData(b"neither PTX nor cubin\0")) == 200
    free(p, 0)


def test_libraries(simulator):
    library = ok(driver.cuLibraryLoadData(cu.PTX, [], [], 0, [], [], 0))
    function = ok(driver.cuKernelGetFunction(ok(driver.cuLibraryGetKernel(library, b"xlogmem_fill_u32"))))
    p = alloc(0)
    ok(cu.launch(function, 0, [p, 9, 16], [U64, U32, U32]))
    sync(0)
    assert simulator.peek(p, 4) == b"\x09\0\0\0"
    free(p, 0)
    ok(driver.cuLibraryUnload(library))


# Threads -----------------------------------------------------------------------------------------------


def test_many_threads(scheduled):
    context = ok(driver.cuCtxGetCurrent())
    wrong = []

    def work(number):
        ok(driver.cuCtxSetCurrent(context))
        a, b, out = stream(), stream(), cu.Pinned()
        for i in range(50):
            value = (number * 50 + i) % 251
            p = alloc(a)
            fill(p, value, a)
            order(b, a)
            out.read_from(p, b)
            order(a, b)
            free(p, a)
            sync(b)
            if out.bytes() != bytes([value]) * 64:
                wrong.append((number, i))
        ok(driver.cuStreamDestroy(a))
        ok(driver.cuStreamDestroy(b))
        out.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert scheduled.races() == []


# Processes ---------------------------------------------------------------------------------------------


def run(program, **environment):
    return cu.python("-c", program, **environment)


def test_a_device_pointer_cannot_be_used_by_the_host(simulator):
    done = run("import sim_support as cu, ctypes; cu.install(); cu.retain(); p = cu.alloc(0);"
               "print('allocated', flush=True); ctypes.string_at(p, 1)", PYTHONPATH=support_path())
    assert done.stdout == "allocated\n"
    assert done.returncode == -signal.SIGSEGV


def support_path():
    return os.pathsep.join([os.path.dirname(cu.__file__), str(cu.Path(sim.__file__).parents[2])])


def test_install_is_loud_and_idempotent():
    done = run("from xlogmem import sim; print(sim.installed()); s = sim.install();"
               "assert s is sim.install() is sim.simulator(); print(sim.installed())", XLOGMEM_SIM_QUIET="")
    assert done.stdout == "False\nTrue\n"
    assert done.stderr == ("xlogmem: SIMULATED CUDA driver in use: no GPU is involved, "
                           "results say nothing about speed\n")


def test_nothing_is_simulated_unasked():
    done = run("from xlogmem import sim; sim.simulator()")
    assert "the simulated CUDA driver is not installed" in done.stderr
    assert done.returncode == 1


def test_a_real_driver_is_not_replaced(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    source, library = tmp_path / "real.c", tmp_path / "libcuda.so.1"
    source.write_text("int cuInit(unsigned flags) { return flags; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source),
                    "-o", str(library)], check=True, env={**os.environ, "LD_PRELOAD": ""})      # of a sanitizer
    done = run(f"import ctypes; ctypes.CDLL({str(library)!r}); from xlogmem import sim;"
               "print(sim.installed()); sim.install()")
    assert done.stdout == "False\n"
    assert "RuntimeError: a real libcuda.so.1 is already loaded" in done.stderr


def test_preloaded(simulator):
    done = run("from cuda.bindings import driver; print(driver.cuInit(0)[0].name);"
               "from xlogmem import sim; print(sim.installed()); sim.simulator().reset('min')",
               LD_PRELOAD=":".join(filter(None, (os.environ.get("LD_PRELOAD"), sim._library_path()))))
    assert done.stdout == "CUDA_SUCCESS\nTrue\n", done.stderr


@pytest.mark.parametrize(("version", "found"), [(12000, False), (13000, True)])
def test_an_old_driver_lacks_the_newer_entry_points(version, found):
    done = run("import ctypes; from xlogmem import sim; lib = sim.install()._library; p = ctypes.c_void_p();"
               "print(lib.cuGetProcAddress_v2(b'cuEventElapsedTime', ctypes.byref(p), 12080,"
               " ctypes.c_uint64(0), None), p.value is not None);"
               "print(lib.cuGetProcAddress_v2(b'cuEventElapsedTime', ctypes.byref(p), 2000,"
               " ctypes.c_uint64(0), None), p.value is not None)", XLOGMEM_SIM_VERSION=str(version))
    assert done.stdout == f"{0 if found else 500} {found}\n0 True\n", done.stderr


def test_per_thread_default_stream_flag():
    done = run("import sim_support as cu; cu.install(); cu.retain(); from cuda.bindings import driver;"
               "print(cu.stream_id(0) == cu.stream_id(2), cu.stream_id(0) == cu.stream_id(1))",
               CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1", PYTHONPATH=support_path())
    assert done.stdout == "True False\n", done.stderr


def test_environment():
    done = run("import sim_support as cu; s = cu.install(); from cuda.bindings import driver; cu.retain();"
               "print(driver.cuDeviceGetCount()[1], driver.cuDriverGetVersion()[1]); a = cu.stream();"
               "p = cu.alloc(a); cu.fill(p, 1, cu.stream()); print(s.pending_operations(), s.races())",
               XLOGMEM_SIM_DEVICES="3", XLOGMEM_SIM_VERSION="12090", XLOGMEM_SIM_POLICY="max",
               XLOGMEM_SIM_RACES="0", PYTHONPATH=support_path())
    assert done.stdout == "3 12090\n2 []\n", done.stderr


def test_no_device():
    done = run("from xlogmem import sim; sim.install(); from cuda.bindings import driver;"
               "print(driver.cuInit(0)[0].name, driver.cuDeviceGetCount()[0].name)", XLOGMEM_SIM_DEVICES="0")
    assert done.stdout == "CUDA_ERROR_NO_DEVICE CUDA_ERROR_NOT_INITIALIZED\n", done.stderr


def test_a_forked_child_has_no_driver():
    """As on an H200: calls give NOT_INITIALIZED, but cuMemAllocAsync says that all is well."""
    done = run("import os, sys, sim_support as cu; cu.install(); cu.retain()\n"
               "from cuda.bindings import driver\n"
               "if os.fork() == 0:\n"
               "    print(int(driver.cuCtxSynchronize()[0]), int(driver.cuMemAllocAsync(64, 0)[0]))\n"
               "    sys.stdout.flush(); os._exit(0)\n"
               "os.wait(); print(int(driver.cuCtxSynchronize()[0]))", PYTHONPATH=support_path())
    assert done.stdout == "3 0\n0\n", done.stderr


def test_the_watchdog_ends_a_deadlock():
    done = run("import threading, ctypes, sim_support as cu, test_sim_driver as t; cu.install(); cu.retain();"
               "keep = t.launch_host(0, threading.Event().wait); cu.sync(0)",
               XLOGMEM_SIM_DEADLOCK_S="0.3", PYTHONPATH=support_path())
    assert done.returncode == -signal.SIGABRT
    assert "deadlock" in done.stderr
