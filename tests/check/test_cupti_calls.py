"""The table of the driver's calls: each is modelled, counted, or left alone for a reason."""
from __future__ import annotations

import ctypes
import re

import pytest
from calls_without_meaning import WITHOUT_MEANING
from cupti_library import NEEDED, library
from fabricated import NEWER, A, B, C, Program, X, Y, header, layouts, numbers, parameters_of
from scenes_of_pools import PIECE, hooks

NOTHING, MODELLED, COUNTED = 0, 1, 2
NEWEST_OF_CUDA_3 = 234
pytestmark = NEEDED


@pytest.fixture(scope="module")
def known():
    """What the library does with each entry point."""
    program = Program(library())
    return {name: program.library.xcheck_knows(number) for name, number in numbers().items()}


def reasons(entry: str) -> list[str]:
    names = {entry, re.sub(r"(_v\d+)?(_pts[dz])?$", "", entry)}
    return [reason for reason, patterns in WITHOUT_MEANING.items()
            if any(re.fullmatch(pattern, name) for pattern in patterns for name in names)]


def is_of_cuda_3(entry: str) -> bool:
    return numbers()[entry] <= NEWEST_OF_CUDA_3 and f"{entry}_v2" in numbers()


def test_every_call_is_modelled_or_counted_or_has_no_meaning(known):
    left = [name for name, what in known.items()
            if what == NOTHING and not reasons(name) and not is_of_cuda_3(name) and name != "cuMemcpy_v2"]
    assert left == []
    assert len(known) > 700


def test_most_of_the_calls_that_move_memory_are_modelled(known):
    moving = [name for name in known if re.match(r"cuMemcpy|cuMemset|cuLaunch\w*Kernel|cuGraphLaunch|cuMem(Alloc|Free)",
                                                 name) and not is_of_cuda_3(name) and name != "cuMemcpy_v2"]
    assert {name for name in moving if known[name] != MODELLED} <= {
        "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_ptsz", "cuMemcpy3DBatchAsync_v2", "cuMemcpy3DBatchAsync_v2_ptsz",
        "cuMemcpy3DWithAttributesAsync", "cuMemcpy3DWithAttributesAsync_ptsz", "cuLaunchCooperativeKernelMultiDevice"}
    assert len(moving) > 70


def test_a_call_of_a_stream_is_known_in_both_entry_points(known):
    """That of the thread's own default stream is forgotten easily."""
    for name, what in known.items():
        other = re.sub(r"_pts[dz]$", "", name)
        if other != name and other in known:
            assert known[other] == what, name


def test_both_entry_points_have_the_same_parameters():
    for name, fields in layouts().items():
        other = re.sub(r"_pts[dz]$", "", name)
        if other != name and other in layouts():
            def types(text: str) -> list[str]:
                return re.findall(r"^\s*(.*?)\w+;", text, re.MULTILINE)
            assert types(fields) == types(layouts()[other]), name


def test_what_is_assumed_of_newer_drivers_is_so():
    """As far as the headers of here know them."""
    text = header("cupti_driver_cbid.h") + header("generated_cuda_meta.h")
    for name, (number, _) in NEWER.items():
        if f"_{name} " in text:
            assert numbers()[name] == number
            assert f"{name}_params_st" in text


@pytest.mark.parametrize("entry", ["cuCtxWaitEvent", "cuIpcOpenMemHandle_v2", "cuGraphAddKernelNode_v2",
                                   "cuMemcpy3DBatchAsync", "cuLaunchCooperativeKernelMultiDevice"])
def test_calls_that_are_not_modelled_are_counted(entry):
    program = Program(library())
    assert program.report()["unseen"] == {}
    for _ in range(2):
        program.call(entry)
    assert list(program.report()["unseen"].values()) == [2]


def test_a_graph_that_was_not_captured_is_counted():
    program = Program(library())
    program.call("cuGraphInstantiateWithFlags", phGraphExec=ctypes.c_uint64(7), hGraph=8)
    program.call("cuGraphLaunch", hGraph=7, hStream=0)
    assert program.report()["unseen"] == {"cuGraphLaunch": 1}
    program.call("cuStreamBeginCapture_v2", hStream=0x5000)
    program.call("cuStreamEndCapture", hStream=0x5000, phGraph=ctypes.c_uint64(8))
    program.call("cuGraphInstantiateWithFlags", phGraphExec=ctypes.c_uint64(7), hGraph=8)
    program.call("cuGraphLaunch", hGraph=7, hStream=0)
    assert program.report()["unseen"] == {"cuGraphLaunch": 1}


@pytest.mark.simulator                                  # a real driver follows a made-up handle, and crashes
def test_launches_of_which_the_driver_says_nothing_are_counted():
    program = Program(library())
    program.call("cuLaunchKernel", f=0x999, hStream=0)
    report = program.report()
    assert report["launches"] == report["unknown_launches"] == 1


def test_a_finding_names_the_call_as_the_documentation_does():
    program = Program(library())
    program.fill(0x7000_0000_0000, 0x5000)
    program.call("cuMemcpyHtoDAsync_v2_ptsz", dstDevice=0x7000_0000_0000, srcHost=1, ByteCount=8, hStream=0x6000)
    [finding] = program.report()["findings"]
    assert (finding["first"]["name"], finding["second"]["name"]) == ("cuMemsetD8Async", "cuMemcpyHtoDAsync")
    assert 0 < finding["first"]["site"] < finding["second"]["site"] == program.site
    assert finding["block"]["begin"] == 0x7000_0000_0000


def test_work_that_a_thread_does_for_another_place_has_that_place():
    program = Program(library())
    table = hooks(program)
    program.fill(X, B)
    requested = table.site_of_caller()
    program.synchronize(C)
    table.find_site()
    table.act_for(requested)
    program.free(X, A)
    table.act_for(0)
    table.piece_allocated(program.context, A, Y, 8, None, PIECE)        # of the thread itself again
    program.fill(Y, B)
    free, allocation = program.report()["findings"]
    assert free["second"]["site"] == requested == free["first"]["site"]
    assert allocation["first"]["site"] == requested + 1


def test_numbers_that_mean_nothing_are_ignored():
    program = Program(library())
    for number in (0, 1, 876, 1023, 1024, 2**32 - 1):
        program.library.xcheck_call(number, None)
    assert program.findings() == []


def test_parameters_are_laid_out_as_the_headers_say():
    assert [name for name, _ in parameters_of("cuMemcpyHtoDAsync_v2_ptsz")._fields_] == [
        "dstDevice", "srcHost", "ByteCount", "hStream"]
    assert parameters_of("cuCtxSynchronize")._fields_ == []
