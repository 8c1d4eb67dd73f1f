"""Scenes of page-locked memory of the host: what operations of the device do there, and its end."""
from __future__ import annotations

import ctypes
from typing import Any

import cubins
import scenes_of_graphs as graphs
from fabricated import BYTES, PAGEABLE, PINNED, A, B, Program, X, Y, out, scene, u32, u64
from scenes_of_launches import PLAIN, configured, launch
from scenes_of_pools import hooks

REFUSED = 999


def download(p: Program, host: int, stream: int, source: int = X) -> None:
    p.call("cuMemcpyDtoHAsync_v2", dstHost=host, srcDevice=source, ByteCount=64, hStream=stream)


def upload(p: Program, host: int, stream: int) -> None:
    p.call("cuMemcpyHtoDAsync_v2", dstDevice=Y, srcHost=host, ByteCount=64, hStream=stream)


MAKERS: dict[str, dict[str, Any]] = {
    "cuMemHostAlloc": {"pp": out(PAGEABLE)}, "cuMemAllocHost_v2": {"pp": u64(PAGEABLE)},
    "cuMemHostRegister_v2": {"p": PAGEABLE}, "cuMemHostRegister": {"p": PAGEABLE}}

for entry, where in MAKERS.items():
    def two_copies_meet(p: Program, repaired: bool, entry: str = entry, where: Any = where) -> None:
        p.call(entry, **where, bytesize=BYTES)
        download(p, PAGEABLE + BYTES - 64, A)
        if repaired:
            p.order(A, B)
        upload(p, PAGEABLE + BYTES - 64, B)

    scene("certain write/read", name=f"two copies meet in memory of {entry}")(two_copies_meet)


@scene("certain write/write")
def a_fill_and_a_copy_meet_in_memory_of_the_host(p: Program, repaired: bool) -> None:
    p.call("cuMemsetD8Async", dstDevice=PINNED, N=64, hStream=A)
    if repaired:
        p.order(A, B)
    download(p, PINNED, B)


for entry in ("cuMemFreeHost", "cuMemHostUnregister"):
    def ends_early(p: Program, repaired: bool, entry: str = entry) -> None:
        download(p, PINNED, A)
        if repaired:
            p.synchronize(A)
        p.call(entry, p=PINNED)

    scene("possible write/free", name=f"{entry} comes before the end of a copy")(ends_early)

    def addresses_have_other_owners(p: Program, repaired: bool, entry: str = entry) -> None:
        upload(p, PINNED, A)
        p.synchronize(A)
        download(p, PINNED, A, Y)
        if repaired:
            p.synchronize(A)
            p.call(entry, p=PINNED)
        p.call("cuMemsetD8Async", dstDevice=PINNED, N=64, hStream=B)

    scene("certain write/write", name=f"addresses have other owners after {entry}")(addresses_have_other_owners)


@scene("certain write/read")
def memory_whose_free_was_refused_is_watched(p: Program, repaired: bool) -> None:
    p.call("cuMemFreeHost", 0 if repaired else REFUSED, p=PINNED)
    p.call("cuMemsetD8Async", dstDevice=PINNED, N=64, hStream=A)
    p.call("cuMemcpyHtoDAsync_v2", dstDevice=Y, srcHost=PINNED, ByteCount=64, hStream=B)


@scene("possible write/free")
def a_free_that_was_refused_has_found_nothing(p: Program, repaired: bool) -> None:
    download(p, PINNED, A)
    p.call("cuMemFreeHost", REFUSED if repaired else 0, p=PINNED)


for whose in (1, 2):
    def a_pool_of_host_memory(p: Program, repaired: bool, whose: int = whose) -> None:
        """... gives memory to the next owner when a query of its own has found the last one's copy done."""
        download(p, PINNED, A)
        event = p.record(A)
        hooks(p).queries_for_itself(whose)
        p.call("cuEventQuery", 0 if repaired else 600, hEvent=event)
        hooks(p).queries_for_itself(0)
        download(p, PINNED, B)

    scene("certain write/write", name=f"a pool of host memory looks, {whose}")(a_pool_of_host_memory)


for bits in (32, 64):
    for version in ("", "_v2"):
        def a_value_is_written(p: Program, repaired: bool, entry: str = f"cuStreamWriteValue{bits}{version}") -> None:
            """The host may look at it, and know by it what came before."""
            p.fill(X, A)
            p.call(entry, stream=A, addr=PINNED, value=1)
            if repaired:
                p.synchronize(A)
            p.fill(X, B)

        scene("possible write/write", name=f"cuStreamWriteValue{bits}{version} to memory of the host")(
            a_value_is_written)


@scene("certain write/write")
def a_value_on_the_device_says_nothing(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuStreamWriteValue32_v2", stream=A, addr=Y, value=1)
    if repaired:
        p.synchronize(A)
    p.fill(X, B)


@scene("possible write/write")
def a_kernel_may_speak_to_the_host(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    launch(p, u64(PINNED))
    if repaired:
        p.synchronize(A)
    p.fill(X, B)


# What the text of a kernel does with its pointer, and whether the host may know by it of something meanwhile.
SIGNALS = {"st.release.sys.global.u32 [%p], 1;": True, "st.volatile.global.u32 [%p], 1;": True,
           "st.mmio.relaxed.sys.global.u32 [%p], 1;": True, "membar.sys; st.global.u32 [%p], 1;": True,
           "st.param.b64 [param0], %p; call.uni f, (param0);": True, "red.release.sys.global.add.u32 [%p], 1;": True,
           "st.global.u32 [%p], 1;": False, "st.release.gpu.global.u32 [%p], 1;": False,
           "membar.gl; atom.global.add.u32 %r, [%p], 1;": False}
SILENT, SPEAKING = "st.global.u32 [%p], 1;", "st.release.sys.global.u32 [%p], 1;"


def load_image(p: Program, image: bytes) -> None:
    p.call("cuModuleLoadData", module=out(0xF000), image=ctypes.create_string_buffer(image))
    p.call("cuModuleGetFunction", hfunc=out(PLAIN), hmod=0xF000, name=ctypes.create_string_buffer(b"kernel"))


def load(p: Program, body: str) -> None:
    """The kernel PLAIN has this text from now on."""
    text = (".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry kernel(.param .u64 p, .param .u32 n)\n"
            f"{{\nld.param.u64 %p, [p];\n{body}\nret;\n}}\n")
    load_image(p, text.encode())


for store in (cubins.SILENT_STORE[90], cubins.SPEAKING_STORE[90]):
    def machine_code_says_whether_it_may_signal(p: Program, repaired: bool, store: tuple[int, int] = store) -> None:
        load_image(p, cubins.cubin({"kernel": [(0, 8), (8, 4)]}, 90, {"kernel": cubins.code(store)}))
        p.fill(X, A)
        launch(p, u64(PINNED), u32(5))
        if repaired:
            p.synchronize(A)
        p.fill(X, B)

    verdict = "certain" if store == cubins.SILENT_STORE[90] else "possible"
    scene(f"{verdict} write/write", name=f"the host and machine code, {verdict}")(
        machine_code_says_whether_it_may_signal)


for body, signals in SIGNALS.items():
    def a_text_says_whether_it_may_signal(p: Program, repaired: bool, body: str = body) -> None:
        load(p, body)
        p.fill(X, A)
        launch(p, u64(PINNED), u32(5))
        if repaired:
            p.synchronize(A)
        p.fill(X, B)

    scene(f"{'possible' if signals else 'certain'} write/write", name=f"the host and {body}")(
        a_text_says_whether_it_may_signal)


for entry in ("cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", "cuLaunchKernelEx",
              "cuLaunchKernelEx_ptsz"):
    for body in (SILENT, SPEAKING):
        def launched_in_any_way(p: Program, repaired: bool, entry: str = entry, body: str = body) -> None:
            load(p, body)
            p.fill(X, A)
            if "Ex" in entry:
                configured(p, u64(PINNED), u32(5), stream=A, entry=entry)
            else:
                launch(p, u64(PINNED), u32(5), entry=entry)
            if repaired:
                p.synchronize(A)
            p.fill(X, B)

        scene(f"{'certain' if body == SILENT else 'possible'} write/write", name=f"the host, {entry} and {body}")(
            launched_in_any_way)


for body in (SILENT, SPEAKING):
    def launched_by_a_graph(p: Program, repaired: bool, body: str = body) -> None:
        load(p, body)
        graphs.begin(p)
        launch(p, u64(PINNED), u32(5))
        graphs.end(p)
        graphs.instantiate(p)
        p.fill(X, A)
        graphs.launch(p)
        if repaired:
            p.synchronize(A)
        p.fill(X, B)

    scene(f"{'certain' if body == SILENT else 'possible'} write/write", name=f"the host, a graph and {body}")(
        launched_by_a_graph)


@scene("certain write/write")
def another_kernel_has_the_handle(p: Program, repaired: bool) -> None:
    """... of one that might signal, once that one's module is unloaded."""
    load(p, SPEAKING)
    launch(p, u64(Y), u32(5))
    p.call("cuModuleUnload", hmod=0xF000)
    load(p, SILENT)
    p.fill(X, A)
    launch(p, u64(PINNED), u32(5))
    if repaired:
        p.synchronize(A)
    p.fill(X, B)
