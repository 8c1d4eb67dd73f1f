"""Programs in C and C++ under `xlogmem check`, without Python: both lines, of sources that were compiled with -g."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checked_libraries import line_with
from engine_traces import compiler
from fabricated import folder_of
from page_guard import NEEDED
from places import ROOT

import xlogmem.check.cudart
from xlogmem import sim
from xlogmem.check import native
from xlogmem.check.frames import Frame, place_in

CUDA = folder_of("cuda.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
CRT = folder_of("crt/host_defines.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt")
pytestmark = [pytest.mark.simulator, *NEEDED,
              pytest.mark.skipif(compiler() is None, reason="no C++ compiler here"),
              pytest.mark.skipif(None in (CUDA, CRT), reason="the headers of CUDA are not installed")]
DRIVER = """
#include <cuda.h>
#include <stdio.h>
#include <string.h>

static void upload(CUdeviceptr to, const char* from, CUstream stream) {
    cuMemcpyHtoDAsync(to, from, 4096, stream);  // first
}

int main(int count, char** words) {
    int right = count > 1;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory;
    char* buffer;
    cuInit(0);
    cuDeviceGet(&device, 0);
    cuDevicePrimaryCtxRetain(&context, device);
    cuCtxSetCurrent(context);
    cuStreamCreate(&stream, 1);
    cuMemAlloc(&memory, 4096);
    cuMemHostAlloc((void**)&buffer, 4096, 0);
    for (int i = 0; i < 3; i++) {
        memset(buffer, i, 4096);  // then
        upload(memory, buffer, stream);
        if (right) cuStreamSynchronize(stream);
    }
    cuStreamSynchronize(stream);
    return 0;
}
"""
RUNTIME = """
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <string>
#include <thread>

int main(int count, char** words) {
    std::string how = count > 1 ? words[1] : "";
    if (how == "fork" && fork()) {
        int status;
        wait(&status);
        return status;
    }
    float *device, *host, sum = 0;
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc(&device, 1 << 20);
    cudaMallocHost(&host, 1 << 20);
    cudaMemcpyAsync(host, device, 1 << 20, cudaMemcpyDeviceToHost, stream);  // first
    if (how == "right") cudaStreamSynchronize(stream);
    auto add = [&] {
        for (int i = 0; i < 1000; i++) sum += host[i];  // then
    };
    if (how == "thread")
        std::thread(add).join();
    else
        add();
    cudaStreamQuery(stream);
    if (how == "exit") exit(5);
    if (how == "_exit") _exit(0);
    if (how == "abort") abort();
    if (how == "crash") *(volatile int*)8 = 1;
    return sum > 0;
}
"""


@pytest.fixture
def built(tmp_path):
    """Compiles a program, and returns its path."""
    def build(text: str, *options: str) -> Path:
        source, program = tmp_path / "program.cpp", tmp_path / "program"
        source.write_text(text)
        runtime = sorted(Path(xlogmem.check.cudart.__file__).parent.glob("_cudart12*.so"))[0]
        subprocess.run([compiler() or "g++", "-std=c++17", "-pthread", *options, f"-I{CUDA}", f"-I{CRT}", source,
                        runtime, sim.library_path(), "-o", program], check=True)
        return program

    return build


@pytest.fixture
def check(tmp_path, clean_environment):
    def run(*command: object):
        out = tmp_path / "out.json"
        done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--json", str(out), "--",
                               *map(str, command)], capture_output=True, text=True, cwd=tmp_path, timeout=100,
                              env=clean_environment)
        done.notes = json.loads(out.read_text())
        done.findings = done.notes["findings"]
        return done

    return run


def places(done, text: str) -> list[tuple[str, int, int]]:
    """The pair and the two lines of each certain finding."""
    def line(access: dict) -> int:
        return next(frame["line"] for frame in access["stack"] if frame["file"].endswith("program.cpp"))

    return [(one["pair"], line(one["first"]), line(one["second"])) for one in done.findings if one["certain"]]


def lines(text: str) -> tuple[int, int]:
    return line_with(text, "// first"), line_with(text, "// then")


@pytest.mark.parametrize("options", [("-g",), ("-g", "-O2")], ids=" ".join)
def test_a_program_of_the_driver(built, check, options):
    program = built(DRIVER, *options)
    done = check(program)
    assert (done.returncode, places(done, DRIVER)) == (1, [("read/write", *lines(DRIVER))]), done.stderr
    done = check(program, "right")
    assert (done.returncode, done.findings) == (0, []), done.stderr


@pytest.mark.parametrize("how", ["", "thread", "fork", "exit", "_exit", "abort", "crash"])
def test_a_program_of_the_runtime_however_it_ends(built, check, how):
    done = check(built(RUNTIME, "-g", "-O2"), how)
    assert (done.returncode, places(done, RUNTIME)) == (1, [("write/read", *lines(RUNTIME))]), done.stderr
    ended = {"exit": "ended with status 5", "abort": "was ended by SIGABRT", "crash": "was ended by SIGSEGV"}
    assert ended.get(how, "") in done.stderr
    assert ("ended by a signal" in done.stderr) == (how in ("_exit", "abort", "crash"))
    assert ("after its last call" in done.stderr) == (how in ("_exit", "abort", "crash"))


def test_the_repaired_program_is_silent(built, check):
    done = check(built(RUNTIME, "-g", "-O2"), "right")
    assert (done.returncode, done.findings, done.notes["notes"]) == (0, [], {}), done.stderr


def test_a_shell_starts_it(built, check):
    done = check("sh", "-c", f"{built(RUNTIME, '-g')} && true")
    assert places(done, RUNTIME) == [("write/read", *lines(RUNTIME))], done.stderr


def test_a_program_without_lines_has_functions(built, check):
    done = check(built(RUNTIME, "-rdynamic"))
    assert "program, in main: cuMemcpyDtoHAsync (write)" in done.stderr


CALLS = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstring>

int main(int count, char** words) {
    CUuuid id = {};
    const void* table;
    cuInit(0);
    if (!strcmp(words[1], "tables")) return cuGetExportTable(&table, &id) ? 3 : 0;
    if (!strcmp(words[1], "cache")) return cudaCtxResetPersistingL2Cache() ? 4 : 0;
}
"""


def test_what_is_missing_on_the_simulated_driver_is_noted(built, check):
    program = built(CALLS)
    done = check(program, "tables")
    assert done.returncode == 3
    assert "xlogmem check: the program has NVIDIA's runtime built in" in done.stderr
    assert "Link the program with -cudart shared" in done.stderr
    done = check(program, "cache")
    assert done.returncode == 3
    assert list(done.notes["notes"]) == [
        "cudaCtxResetPersistingL2Cache is not simulated: the program got an error from it"]
    done = check(program, "nothing")
    assert (done.returncode, done.notes["notes"]) == (0, {}), done.stderr


def test_a_python_program_starts_it(built, check, tmp_path):
    starter = tmp_path / "starter.py"
    starter.write_text("import subprocess, sys\nfrom cuda.bindings import driver\n"
                       "driver.cuInit(0)\nsys.exit(subprocess.run(sys.argv[1:]).returncode)\n")
    done = check(sys.executable, starter, built(RUNTIME, "-g"))
    assert places(done, RUNTIME) == [("write/read", *lines(RUNTIME))], done.stderr


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o707])
def test_a_journal_is_made_in_a_private_folder_only(built, tmp_path, clean_environment, mode):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    (folder / f"{mode}.journal").symlink_to(tmp_path / "elsewhere")
    program = [built(DRIVER), "right"]
    variables = clean_environment | native.environment(tmp_path / "libraries")
    subprocess.run(program, env=variables | {"XLOGMEM_CHECK": str(folder)}, check=True)
    assert len(list(folder.glob("[0-9]*.journal"))) == (2 if mode == 0o700 else 1)
    link = tmp_path / "link"
    link.symlink_to(folder)
    folder.chmod(0o700)
    before = set(folder.iterdir())
    subprocess.run(program, env=variables | {"XLOGMEM_CHECK": str(link)}, check=True)
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("level", [0, 2, 3])
def test_the_preloaded_library_compiles_where_sources_are_fortified(tmp_path, level):
    """Ubuntu's compiler puts checked functions in place of those of <string.h>, which the library defines."""
    done = subprocess.run([compiler(), "-x", "c", "-std=gnu11", "-O2", f"-D_FORTIFY_SOURCE={level}", "-Wall", "-Wextra",
                           "-Werror", f"-I{ROOT / 'cpp'}", "-c", str(ROOT / "cpp/preload/preload.c"), "-o",
                           str(tmp_path / "preload.o")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_launch_is_where_the_kernel_is_called():
    """nvcc makes two functions for that, of which the second seems to be the kernel."""
    stub, kernel, caller = Frame("/tmp/x.cudafe1.stub.c", 3, "stub"), Frame("x.cu", 4, "k"), Frame("x.cu", 9, "main")
    assert native.without_launchers([stub, kernel, caller]) == (caller,)
    assert native.without_launchers([kernel, caller]) == (kernel, caller)


def test_a_place_is_a_line_if_the_program_has_one():
    """CUPTI, the driver and NVIDIA's runtime, which may be linked into the program, are on the stack, too."""
    cupti = Frame("/env/nvidia/lib/libcupti.so.13", 0, "0x7d162")
    driver = Frame("/usr/local/nvidia/lib64/libcuda.so.580.159.04", 0, "cuMemcpyDtoHAsync_v2")
    runtime, main = Frame("/home/user/program", 0, "0x405b0"), Frame("/home/user/program.cu", 26, "main")
    plugin = Frame("/home/user/plugin.cpp", 3, "run")
    assert place_in((cupti, driver, runtime, main)) == main
    assert place_in((cupti, driver, runtime)) == runtime
    assert place_in((cupti, driver, plugin, main)) == plugin
    assert place_in((cupti, driver)) == cupti


def test_what_addr2line_says():
    text = "0x0000000000001139\nf(int)\n/a b/x.cpp:12 (discriminator 3)\nmain\n/a b/y.c:3\n0x10\n??\n??:0\n"
    assert list(native.parsed(text)) == [(0x1139, [Frame("/a b/x.cpp", 12, "f(int)"), Frame("/a b/y.c", 3, "main")]),
                                         (0x10, [])]
