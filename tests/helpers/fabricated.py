"""Callbacks as CUPTI makes them, without CUPTI and without a GPU: they are handed to the library by hand.

Parameters are laid out as CUPTI's headers say, so that a test names them as the driver's documentation does.
"""
from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

u64, u32 = ctypes.c_uint64, ctypes.c_uint32

SCALARS = {"int": ctypes.c_int, "CUdevice": ctypes.c_int, "unsigned int": u32, "unsigned char": ctypes.c_uint8,
           "unsigned short": ctypes.c_uint16,
           "unsigned long long": u64, "size_t": u64, "float": ctypes.c_float, "cuuint32_t": u32, "cuuint64_t": u64,
           "CUmemLocation": ctypes.c_int * 2,               # a type and a number
           "CUipcEventHandle": ctypes.c_byte * 64, "CUipcMemHandle": ctypes.c_byte * 64}
HANDLES = {"CUdeviceptr", "CUstream", "CUevent", "CUcontext", "CUfunction", "CUkernel", "CUmodule", "CUlibrary",
           "CUgraph", "CUgraphExec", "CUgraphNode", "CUarray", "CUmemoryPool", "CUmemGenericAllocationHandle",
           "CUhostFn", "CUstreamCallback", "CUgreenCtx"}
# Of drivers that are newer than the oldest headers with which xlogmem is built.
NEWER = {
    "cuMemcpyBatchAsync_v2": (796, "CUdeviceptr *dsts; CUdeviceptr *srcs; size_t *sizes; size_t count; void *attrs; "
                                   "size_t *attrsIdxs; size_t numAttrs; CUstream hStream;"),
    "cuCtxSynchronize_v2": (800, "CUcontext ctx;"),
    "cuLaunchHostFunc_v2": (831, "CUstream hStream; void *fn; void *userData; unsigned int syncMode;"),
    "cuMemcpyWithAttributesAsync": (837, "CUdeviceptr dst; CUdeviceptr src; size_t size; void *attr; "
                                         "CUstream hStream;"),
}


class Data(ctypes.Structure):
    """CUpti_CallbackData."""

    _fields_ = [("site", ctypes.c_int), ("function", ctypes.c_char_p), ("parameters", ctypes.c_void_p),
                ("result", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("context", u64), ("context_uid", u32),
                ("correlation", ctypes.c_void_p), ("correlation_id", u32)]


def folder_of(header: str, *wheels: str) -> Path | None:
    """The folder of a header: of one of these wheels, of a conda environment or of a toolkit."""
    for name in wheels:
        try:
            wheel = distribution(name)
        except PackageNotFoundError:
            continue
        for file in wheel.files or ():
            if file.match(header):
                return Path(str(wheel.locate_file(file)).removesuffix(f"/{header}"))
    roots = [os.environ.get(variable) for variable in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")]
    for root in filter(None, [*roots, "/usr/local/cuda"]):
        for place in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include", "extras/CUPTI/include"):
            if Path(root, place, header).exists():
                return Path(root, place)
    return None


@lru_cache(maxsize=1)
def headers() -> Path | None:
    """The folder of CUPTI's."""
    return folder_of("cupti_driver_cbid.h", "nvidia-cuda-cupti-cu12", "nvidia-cuda-cupti")


def header(name: str) -> str:
    folder = headers()
    assert folder is not None, "CUPTI's headers are not installed"
    return (folder / name).read_text()


@lru_cache(maxsize=1)
def numbers() -> dict[str, int]:
    """CUPTI's numbers of the driver's calls, by the names of the entry points."""
    found = re.findall(r"TRACE_CBID_(\w+)\s*=\s*(\d+)", header("cupti_driver_cbid.h"))
    return {name: number for name, (number, _) in NEWER.items()} | {
        name: int(number) for name, number in found if name not in ("INVALID", "SIZE", "FORCE_INT")}


@lru_cache(maxsize=1)
def layouts() -> dict[str, str]:
    """The fields of the parameters of each entry point, in C."""
    text = header("generated_cuda_meta.h")
    return {name: fields for name, (_, fields) in NEWER.items()} | dict(
        re.findall(r"typedef struct (\w+)_params_st \{(.*?)\}", text, re.DOTALL))


def type_of(declaration: str) -> Any:
    if "*" in declaration or declaration in HANDLES:
        return u64
    return SCALARS.get(declaration, ctypes.c_int)               # an enumeration


@cache
def parameters_of(entry: str) -> type[ctypes.Structure]:
    """The structure that CUPTI hands to a callback.  It is the same for both entry points of a call, but for names."""
    entry = re.sub("_pts[dz]$", "", entry)
    fields = []
    for line in layouts().get(entry, "").split(";"):
        words = re.fullmatch(r"\s*(?:const )?(.*?)\s*(\**)\s*(\w+)\s*", line, re.DOTALL)
        if words:
            fields.append((words[3], type_of((words[1] + words[2]).removeprefix("struct "))))
    return type(entry, (ctypes.Structure,), {"_fields_": fields})


def fresh(library: str) -> ctypes.CDLL:
    """The library as a process finds it that has called nothing yet: a copy of its own."""
    with tempfile.NamedTemporaryFile(suffix=".so") as copy:
        shutil.copyfile(library, copy.name)
        loaded = ctypes.CDLL(copy.name)
    loaded.xcheck_report.restype = loaded.xcheck_hooks.restype = ctypes.c_void_p
    loaded.xcheck_try_kernels(0)                        # which would call the driver
    loaded.xcheck_call.argtypes = [u32, ctypes.c_void_p]
    loaded.xcheck_free.argtypes = [ctypes.c_void_p]
    loaded.xcheck_find_sites.argtypes = [ctypes.c_void_p]
    return loaded


# The stage on which a scene begins.
X, Y = 0x7000_0000_0000, 0x7000_0100_0000           # memory of the device
BYTES = 4096
A, B, C = 0x5000, 0x6000, 0x7000                    # streams that do not wait for the default one
PAGEABLE, PINNED = 0x1000_0000, 0x2000_0000         # memory of the host
SINKS, READS = 0x3000_0000, 256                     # … for as many reads, each into bytes of its own
EVENT = 0x9000
LEGACY, OWN = 1, 2                                  # the default streams


class Program:
    """Calls of a program in one context; handles and addresses are made up.

    In the beginning there are the streams A, B and C, the memory X and Y of cuMemAlloc, and PINNED and SINKS of the
    host.
    """

    def __init__(self, library: str) -> None:
        self.library = fresh(library)
        self.context = 1
        self._find_site = ctypes.CFUNCTYPE(u32)(lambda: self.site)
        self.site = 0
        self.library.xcheck_find_sites(ctypes.cast(self._find_site, ctypes.c_void_p))
        self._newest_event = EVENT
        for stream in (A, B, C):
            self.create(stream)
        for address in (X, Y):
            self.allocate(address)
        self.call("cuMemHostAlloc", pp=out(PINNED), bytesize=BYTES)
        self.call("cuMemHostAlloc", pp=out(SINKS), bytesize=BYTES * READS)
        self._reads = itertools.count()

    def call(self, entry: str, result: int = 0, symbol: bytes = b"kernel", before: bool = True,
             meanwhile: Callable[[], None] | None = None, **fields: Any) -> None:
        """Both callbacks of a call; with `meanwhile` something happens between them.

        A field is a number, or something of ctypes, of which the driver gets the address.  Without `before` the first
        callback was missed.
        """
        parameters = parameters_of(entry)()
        for name, value in fields.items():
            assert hasattr(parameters, name), f"{entry} has no {name}"
            if isinstance(value, ctypes.Structure | ctypes.Array | ctypes._SimpleCData):
                value = ctypes.addressof(value)
            setattr(parameters, name, value)
        status = ctypes.c_int(result)
        self.site += 1
        for after in (False, True)[not before:]:
            data = Data(int(after), entry.encode(), ctypes.addressof(parameters), ctypes.addressof(status), symbol,
                        self.context, self.context, None, 0)
            self.library.xcheck_call(numbers()[entry], ctypes.byref(data))
            if meanwhile and not after:
                meanwhile()

    def report(self) -> dict[str, Any]:
        text = self.library.xcheck_report()
        try:
            report: dict[str, Any] = json.loads(ctypes.string_at(text))
        finally:
            self.library.xcheck_free(text)
        return report

    def findings(self) -> list[str]:
        """Certainty, and what the two did; of anything but a race, its kind; and of an audit."""
        report = self.report()
        found = [("certain " if one["certain"] else "possible ")
                 + (one["pair"] if one["kind"] == "race" else one["kind"]) for one in report["findings"]]
        return sorted(found + [f"audit {one['kind']}" for one in report["omissions"] if one["entry"]])

    # -- what most scenes do ------------------------------------------------------------------------------------------

    def create(self, stream: int, flags: int = 1) -> None:
        self.call("cuStreamCreate", phStream=out(stream), Flags=flags)

    def allocate(self, address: int, stream: int | None = None) -> None:
        if stream is None:
            self.call("cuMemAlloc_v2", dptr=out(address), bytesize=BYTES)
        else:
            self.call("cuMemAllocAsync", dptr=out(address), bytesize=BYTES, hStream=stream)

    def free(self, address: int, stream: int | None = None) -> None:
        if stream is None:
            self.call("cuMemFree_v2", dptr=address)
        else:
            self.call("cuMemFreeAsync", dptr=address, hStream=stream)

    def fill(self, address: int, stream: int) -> None:
        self.call("cuMemsetD8Async", dstDevice=address, N=BYTES, hStream=stream)

    def read(self, address: int, stream: int) -> None:
        """To page-locked memory: the host learns nothing."""
        sink = SINKS + next(self._reads) % READS * BYTES
        self.call("cuMemcpyDtoHAsync_v2", dstHost=sink, srcDevice=address, ByteCount=BYTES, hStream=stream)

    def record(self, stream: int) -> int:
        self._newest_event += 1
        self.call("cuEventCreate", phEvent=out(self._newest_event))
        self.call("cuEventRecord", hEvent=self._newest_event, hStream=stream)
        return self._newest_event

    def wait(self, stream: int, event: int) -> None:
        self.call("cuStreamWaitEvent", hStream=stream, hEvent=event)

    def order(self, first: int, second: int) -> None:
        """The second stream waits for the first."""
        self.wait(second, self.record(first))

    def synchronize(self, stream: int) -> None:
        self.call("cuStreamSynchronize", hStream=stream)

    def in_thread(self, work: Callable[[], None]) -> None:
        """Python's join() returns before the system's thread has ended, which the library sees: this waits for that."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            time.sleep(0)
        if failed:
            raise failed[0]


def out(value: int) -> Any:
    """A result that the call has written."""
    return u64(value)


# -- scenes -------------------------------------------------------------------------------------------

Play = Callable[[Program, bool], None]
SCENES: dict[str, tuple[Play, list[str]]] = {}


def scene(*findings: str, name: str | None = None) -> Callable[[Play], Play]:
    """A program that is called with False, and then has these findings, and with True: it is repaired, and has none."""
    def add(play: Play) -> Play:
        title = name or play.__name__
        assert title not in SCENES, title
        SCENES[title] = (play, sorted(findings))
        return play

    return add
