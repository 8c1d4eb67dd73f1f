"""The headers compile alone, without a warning, and are where builds look for them."""
from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from fabricated import folder_of
from native_calls import CCCL, SYSTEM, WARNINGS, build_resource, compiler, planted_programs
from places import HELPERS

import xlogmem
from xlogmem import AsyncMemoryResource, DeviceMemoryResource, DeviceRuntime

INCLUDE = Path(xlogmem.get_include())
LEGACY = 1                                              # the handle of the legacy default stream
needs_cccl = pytest.mark.skipif(None in CCCL, reason="needs RMM: its headers, and those of CUDA")


def compile_text(text: str, folder: Path, *options: str, name: str = "alone.cpp") -> subprocess.CompletedProcess[str]:
    source = folder / name
    source.write_text(text)
    return subprocess.run([compiler(), "-c", *options, f"-I{INCLUDE}", source, "-o", source.with_suffix(".o")],
                          capture_output=True, text=True)


@pytest.mark.parametrize("options", [["-std=c++17", "-O0"], ["-std=c++20", "-O3"]], ids="".join)
def test_headers_compile_alone_without_a_warning(tmp_path, options):
    """And twice.  No header of CUDA or Python is found."""
    for header in ("xlogmem.hpp", "xlogmem_cudf.hpp", "xlogmem_graph.hpp"):
        done = compile_text(f'#include "{header}"\n' * 2 + "int main() {}\n", tmp_path, *options, *WARNINGS)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_header_for_c_is_c(tmp_path):
    done = compile_text('#include "xlogmem.h"\nint unused;\n', tmp_path, "-xc", "-std=c11", "-Wall", "-Wextra",
                        "-Wpedantic", "-Werror", name="alone.c")
    assert (done.returncode, done.stderr) == (0, "")


def test_two_files_of_one_program_include_it(tmp_path):
    for name in ("one", "two"):
        text = f'#include "xlogmem.hpp"\nauto* {name} = &xlogmem::table;\n'
        assert compile_text(text, tmp_path, "-std=c++17", "-fPIC", name=f"{name}.cpp").returncode == 0
    subprocess.run([compiler(), "-shared", *(tmp_path / f"{name}.o" for name in ("one", "two")), "-o",
                    tmp_path / "both.so"], check=True)


REFUSED = {"a number as a stream": "launch use{runtime, 0, reads(pointer)};",
           "nullptr as a stream": "launch use{runtime, nullptr, reads(pointer)};",
           "memory as a stream": "launch use{runtime, pointer, reads(pointer)};",
           "a count as an address": "launch use{runtime, stream, reads(pointer, 100)};",
           "a type that nothing describes": "struct {} it; launch use{runtime, stream, reads(it)};",
           "a copy of a launch": "launch use{runtime, stream, reads(pointer)}; launch copy{use};",
           "a copy of a runtime": "xlogmem::runtime copy{runtime};",
           "a launch that ends at once": "launch{runtime, stream, reads(pointer)};"}


@pytest.mark.parametrize("statement", ["launch use{runtime, stream, reads(pointer)};", *REFUSED.values()],
                         ids=["right", *REFUSED])
def test_what_is_wrong_does_not_compile(tmp_path, statement):
    done = compile_text(f'''#include "xlogmem.hpp"
using namespace xlogmem;
void work(xlogmem::runtime& runtime, CUstream_st* stream, float* pointer) {{ {statement} }}
''', tmp_path, "-std=c++17", *WARNINGS, "-Wno-unused-parameter")
    assert (done.returncode != 0) == (statement in REFUSED.values()), done.stderr


def compile_with_rmm(*options: object) -> None:
    """By RMM's own flags and more."""
    subprocess.run([compiler(), "-std=c++20", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-Wno-unknown-pragmas",
                    "-DWITH_RMM", f"-I{INCLUDE}", *SYSTEM, HELPERS / "native_resource.cpp", *options], check=True)


@needs_cccl
def test_containers_of_rmm_take_the_resource():
    """They need librmm, which runs on a GPU alone."""
    compile_with_rmm("-fsyntax-only")


@needs_cccl
@pytest.mark.gpu
def test_containers_of_rmm_allocate_from_the_resource(tmp_path):
    library = tmp_path / "containers.so"
    rmm, logger = (folder_of(header, *wheels).parent / "lib64" for header, *wheels in (
        ("rmm/resource_ref.hpp", "librmm-cu12", "librmm-cu13"), ("rapids_logger/logger.hpp", "rapids-logger")))
    cudart = next((CCCL[2].parent / "lib").glob("libcudart.so.1?"))
    compile_with_rmm("-shared", "-fPIC", "-o", library, rmm / "librmm.so", logger / "librapids_logger.so", cudart,
                     *(f"-Wl,-rpath,{folder}" for folder in (rmm, logger, cudart.parent)))
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    assert ctypes.PyDLL(str(library)).containers(ctypes.py_object(runtime), ctypes.c_void_p(stream.handle)) == 0
    stream.synchronize()
    counters = runtime.counters()
    assert (counters["allocations"], counters["uses"], runtime.live_bytes) == (3, 1, 0)


class Noting(DeviceMemoryResource):
    """Notes on which streams memory is freed."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__()
        self.below, self.freed_on = AsyncMemoryResource(), []

    def allocate(self, nbytes, stream):
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.freed_on.append(stream)
        self.below.deallocate(ptr, nbytes, stream)


@needs_cccl
@pytest.mark.simulator
def test_a_resource_of_cccl_allocates_and_frees(tmp_path):
    planted = planted_programs()
    library = planted / "resource.so" if planted else build_resource(tmp_path)
    work = ctypes.PyDLL(str(library)).work
    work.restype = ctypes.c_longlong
    below = Noting()
    runtime = DeviceRuntime(resource=below)
    stream = runtime.acquire_stream()
    live = ctypes.CFUNCTYPE(ctypes.c_longlong)(lambda: runtime.live_bytes)
    assert work(ctypes.py_object(runtime), ctypes.c_void_p(stream.handle), live) == 1024
    assert below.freed_on == [stream.handle, LEGACY]
    assert runtime.live_bytes == 0
    assert runtime.counters()["uses"] == 1


def test_it_reads_as_one_page():
    assert len((INCLUDE / "xlogmem.hpp").read_text().splitlines()) <= 400


# ------------------------------------------------------------------------------------------------ where they are
def test_the_folders_are_those_of_the_package():
    assert Path(xlogmem.__file__).parent / "include" == INCLUDE
    assert sorted(file.name for file in INCLUDE.iterdir()) == [
        "xlogmem.h", "xlogmem.hpp", "xlogmem_cudf.hpp", "xlogmem_graph.hpp", "xlogmem_mr.hpp"]
    folder = Path(xlogmem.get_cmake_dir())
    assert folder.is_absolute()
    assert sorted(file.name for file in folder.iterdir()) == ["xlogmemConfig.cmake", "xlogmemConfigVersion.cmake"]
    assert folder.relative_to(INCLUDE.parent) == Path("share/cmake/xlogmem")       # where CMake searches a prefix
