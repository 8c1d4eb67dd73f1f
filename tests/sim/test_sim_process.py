"""The simulated driver and the process: how it is installed, set up, and ended."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
import sim_support as cu

from xlogmem import sim

pytestmark = pytest.mark.simulator


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
               "assert s is sim.install() is sim.simulator(); print(sim.installed())", quiet=False)
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
               LD_PRELOAD=":".join(filter(None, (os.environ.get("LD_PRELOAD"), sim.library_path()))))
    assert done.stdout == "CUDA_SUCCESS\nTrue\n", done.stderr


@pytest.mark.parametrize(("version", "found"), [(12000, False), (13000, True)])
def test_an_old_driver_lacks_the_newer_entry_points(version, found):
    done = run("import ctypes; from xlogmem import sim; lib = sim.install()._library; p = ctypes.c_void_p();"
               "print(lib.cuGetProcAddress_v2(b'cuEventElapsedTime', ctypes.byref(p), 12080,"
               " ctypes.c_uint64(0), None), p.value is not None);"
               "print(lib.cuGetProcAddress_v2(b'cuEventElapsedTime', ctypes.byref(p), 2000,"
               " ctypes.c_uint64(0), None), p.value is not None)", version=version)
    assert done.stdout == f"{0 if found else 500} {found}\n0 True\n", done.stderr


def test_per_thread_default_stream_flag():
    done = run("import sim_support as cu; cu.install(); cu.retain(); from cuda.bindings import driver;"
               "print(cu.stream_id(0) == cu.stream_id(2), cu.stream_id(0) == cu.stream_id(1))",
               CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1", PYTHONPATH=support_path())
    assert done.stdout == "True False\n", done.stderr


def test_several_settings():
    done = run("import sim_support as cu; s = cu.install(); from cuda.bindings import driver; cu.retain();"
               "print(driver.cuDeviceGetCount()[1], driver.cuDriverGetVersion()[1]); a = cu.stream();"
               "p = cu.alloc(a); cu.fill(p, 1, cu.stream()); print(s.pending_operations(), s.races())",
               devices=3, version=12090, policy="max", races=0, PYTHONPATH=support_path())
    assert done.stdout == "3 12090\n2 []\n", done.stderr


def test_no_device():
    done = run("from xlogmem import sim; sim.install(); from cuda.bindings import driver;"
               "print(driver.cuInit(0)[0].name, driver.cuDeviceGetCount()[0].name)", devices=0)
    assert done.stdout == "CUDA_ERROR_NO_DEVICE CUDA_ERROR_NOT_INITIALIZED\n", done.stderr


@pytest.mark.parametrize(("visible", "seen"), [
    ("2,0", [2, 0]), (" 1 , 2", [1, 2]), ("", []), ("-1", []), ("1,7,0", [1]), ("1,1,0", [1]), ("0,x", [0]),
    ("GPU-786c6f67-6d65-6d2d-7369-6d0000000002,0", [2, 0]), ("GPU-78", []), ("0;1", [])])
def test_visible_devices(visible, seen):
    """What comes after an entry that names no device is hidden with it."""
    done = run("from xlogmem import sim; sim.install(); from cuda.bindings import driver as d; d.cuInit(0)\n"
               "error, count = d.cuDeviceGetCount()\n"
               "print([(d.cuDeviceGetUuid(i)[1].bytes[15], int(d.cuDeviceGetPCIBusId(13, i)[1][5:7], 16) - 1)"
               " for i in range(count or 0)])", devices=3, CUDA_VISIBLE_DEVICES=visible)
    assert done.stdout == f"{[(number, number) for number in seen]}\n", done.stderr


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
    done = run("import threading, sim_support as cu; cu.install(); cu.retain();"
               "keep = cu.launch_host(0, threading.Event().wait); cu.sync(0)",
               deadlock_s=0.3, PYTHONPATH=support_path())
    assert done.returncode == -signal.SIGABRT
    assert "deadlock" in done.stderr
