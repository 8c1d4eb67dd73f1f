"""What images of kernels say: layouts and roles; PTX, cubins, fat binaries, mangled names, damaged ones too."""
from __future__ import annotations

import itertools
import re
import struct

import numpy
import pytest
from cubins import INSTRUCTIONS, SILENT_STORE, SPEAKING_STORE, code, cubin
from elementwise_launches import BASE, launch_of, random_launch, wrong_launches
from engine_traces import compiler
from kernel_images import Facts, build_planted, defects, facts_of, output_of, parts_of, variables_of
from made_once import made_once
from ptx_programs import Kernel

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
DEFECTS = [defect.name for defect in defects()]
LAUNCHES = [random_launch(seed) for seed in range(1500)]
R, W, RW, U = "read", "write", "readwrite", "unknown"
FOUND = "unknown?"                                      # in a struct: nothing shows that the kernel uses it
HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def ptx(parameters, body, name="k"):
    declared = ",\n".join(parameters)
    return f"{HEADER}.visible .entry {name}(\n{declared}\n)\n{{\n{body}\nret;\n}}\n"


def two(body):
    """Two pointers and a number, in %p, %q and %n."""
    return ptx([".param .u64 a", ".param .u64 b", ".param .u64 c"],
               "ld.param.u64 %p, [a];\nld.param.u64 %q, [b];\nld.param.u64 %n, [c];\n" + body)


# What stands in a kernel's body, and the roles of its two pointers; None: it is not accessed through.
BODIES = {
    "a load and a store": ("ld.global.u32 %r1, [%q+4]; st.global.u32 [%p], %r1;", W, R),
    "generic addresses": ("ld.f32 %f1, [%q]; st.v4.f32 [%p+-16], {%f1, %f1, %f1, %f1};", W, R),
    "both": ("ld.global.u32 %r1, [%p]; st.global.u32 [%p], %r1;", RW, None),
    "atomics": ("atom.global.add.u32 %r1, [%p], 1; red.relaxed.gpu.global.add.f32 [%q], %f1;", RW, RW),
    "an index": ("mul.wide.s32 %i, %r1, 4; add.s64 %x, %p, %i; st.global.u32 [%x], %r1;", W, None),
    "a parameter as offset": ("cvta.to.global.u64 %g, %p; add.s64 %x, %g, %n; st.global.u32 [%x], %r1;", W, None),
    "which of two is left open": ("selp.b64 %x, %p, %q, %z; st.global.u32 [%x], %r1;", U, U),
    "reads of either": ("selp.b64 %x, %p, %q, %z; ld.global.u32 %r1, [%x];", R, R),
    "a sum of two": ("add.s64 %x, %p, %q; st.global.u32 [%x], %r1;", U, U),
    "a distance": ("sub.s64 %d, %p, %q; add.s64 %x, %q, %d; ld.global.u32 %r1, [%x]; st.global.u32 [%x], %r1;", U, U),
    "a distance alone": ("add.s64 %y, %p, 4; sub.s64 %d, %y, %p; st.global.u32 [%d], %r1;", U, None),
    "a loaded value": ("ld.global.u64 %x, [%q]; st.global.u32 [%x], %r1; st.global.u64 [%p], %x;", W, R),
    "stored": ("st.global.u64 [%q], %p; ld.global.u32 %r1, [%p];", U, W),
    "stored on the chip": ("st.shared.u64 [%s], %p; ld.shared.u64 %x, [%s]; st.global.u32 [%x], %r1;", U, None),
    "passed to a function": ("st.param.b64 [param0+0], %p; call.uni f, (param0); ld.global.u32 %r1, [%q];", U, R),
    "returned by a function": ("st.param.b64 [param0], %p; call.uni (retval0), f, (param0); "
                               "ld.param.b64 %x, [retval0]; st.global.u32 [%x], %r1;", U, None),
    "exchanged": ("atom.global.exch.b64 %x, [%q], %p;", U, RW),
    "in halves": ("mov.b64 {%l, %h}, %p; mov.b64 %x, {%l, %h}; st.global.u32 [%x], %r1;", W, None),
    "a predicate": ("setp.ne.s64 %z, %n, 0; @!%z bra L; @%z st.global.u32 [%p], %r1;\nL:\n", W, None),
    "in a loop": ("L:\nst.global.u32 [%x], %r1; mov.b64 %x, %p; add.s64 %x, %x, 4; bra L;", W, None),
    "copied": ("cp.async.ca.shared.global [%s], [%q], 16; cp.async.commit_group; cp.async.wait_group 0;", None, R),
    "copied in bulk": ("cp.async.bulk.global.shared::cta.bulk_group [%p], [%s], %n; "
                       "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%q], 16, [%m];",
                       W, R),
    "not known": ("frobnicate.global.u32 %r1, [%q]; ld.global.u32 %r1, [%p];", R, U),
    "prefetched": ("prefetch.global.L2 [%p];", None, None),
    "in a block with comments": ("{ .reg .b64 t; /* st.global.u32 [%q], 0; */ mov.u64 t, %p; // st [%q]\n"
                                 "st.global.u32 [t], 0; }", W, None),
    "line numbers": ('.loc 1 5 3\nst.global.u32 [%p], 0;\n.loc 2 7 1, function_name $L, inlined_at 1 5 3\n'
                     '.pragma "nounroll";\n$L__BB0_2:\nld.global.u32 %r1, [%q];', W, R),
}
# Where the first thread goes if the number is 0, and if it is 24; "a+8:read" is behind the first pointer.
TOUCHES = {
    "an index": ("mov.u32 %r1, %tid.x; mul.wide.s32 %i, %r1, 4; add.s64 %x, %p, %i; st.global.u32 [%x], %r1;",
                 "a+0:write"),
    "an index of a block": ("mov.u32 %r1, %ctaid.x; ld.u32 %r2, [%q]; mov.u32 %r3, %tid.x;\n"
                            "mad.lo.s32 %r4, %r1, %r2, %r3; mul.wide.s32 %i, %r4, 4; add.s64 %x, %p, %i;\n"
                            "st.global.u32 [%x], %r1;", "b+0:read a+0:write"),
    "the last block": ("mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, -1;\n"
                       "mul.wide.s32 %i, %r3, 4; add.s64 %x, %p, %i; st.global.u32 [%x], %r1;", "a+124:write"),
    "an offset": ("add.s64 %x, %p, %n; st.global.u32 [%x], 0;", "a+0:write", "a+24:write"),
    "an offset in elements": ("mov.u32 %r1, %tid.x; cvt.s64.s32 %i, %r1; add.s64 %j, %i, %n; shl.b64 %k, %j, 2;\n"
                              "add.s64 %x, %p, %k; st.global.u32 [%x], 0;", "a+0:write", "a+96:write"),
    "an offset of half a word": ("ld.param.u32 %m, [c+4]; mul.wide.u32 %i, %m, 4; add.s64 %x, %p, %i; ld.u32 %r, [%x];",
                                 "a+0:read"),
    "a row": ("mov.u32 %r1, %tid.y; cvt.u64.u32 %i, %r1; mul.lo.s64 %j, %i, %n; add.s64 %x, %p, %j; ld.u32 %r, [%x];",
              "a+0:read"),
    "a stride": ("mov.u32 %r1, %tid.x; cvt.u64.u32 %i, %r1;\nL:\nadd.s64 %x, %p, %i; st.u8 [%x], 0;\n"
                 "add.s64 %i, %i, %n; setp.lt.u64 %z, %i, 48; @%z bra L; st.u8 [%q], 0;",
                 "a+0:write a+0:write b+0:write", "a+0:write a+24:write b+0:write"),
    "from the end": ("mov.u32 %r1, %tid.x; cvt.u64.u32 %i, %r1; sub.s64 %j, %n, %i; add.s64 %k, %j, -1;\n"
                     "add.s64 %x, %q, %k; st.u8 [%x], 0;", "a+1048575:write", "b+23:write"),
    "constants": ("st.global.u32 [%p+16], 0; ld.u32 %r, [%p]; st.u8 [%q+-1], 0;",
                  "a+16:write a+0:read a+1048575:write"),
    "either": ("setp.eq.s64 %z, %n, 0; selp.b64 %x, %p, %q, %z; st.u32 [%x], 0;", "a+0:write", "b+0:write"),
    "a loaded index": ("ld.global.u64 %i, [%q]; add.s64 %x, %p, %i; st.u32 [%x], 0;", "b+0:read"),
    "an index from the chip": ("ld.shared.u64 %i, [%s]; add.s64 %x, %p, %i; st.u32 [%x], 0;", ""),
    "a part": ("and.b64 %i, %n, 16; add.s64 %x, %p, %i; st.u32 [%x], 0;", "a+0:write", "a+16:write"),
    "on the chip": ("st.shared.u32 [%p+16], 0; ld.u32 %r, [%p];", "a+0:read"),
    "counters": ("red.global.add.u32 [%p], 1; atom.global.add.u32 %r, [%q], 1; ld.u32 %r, [%q];",
                 "a+0:atomic b+0:readwrite"),
    "a bound": ("mov.u32 %r1, %tid.x; cvt.u32.u64 %m, %n; setp.ge.s32 %z, %r1, %m; @%z bra END;\n"
                "st.u32 [%p], 0;\nEND:\nst.u32 [%q], 0;", "b+0:write", "a+0:write b+0:write"),
    "a bound that ends the thread": ("setp.ge.s64 %z, 0, %n; @%z ret; st.u32 [%p], 0;", "", "a+0:write"),
    "a predicate": ("setp.ne.s64 %z|%y, %n, 0; @%z ld.u32 %r, [%p]; @!%z ld.u32 %r, [%p+4]; @%y st.u32 [%q], 0;",
                    "a+4:read b+0:write", "a+0:read"),
    "two bounds": ("setp.gt.s64 %y, %n, 8; setp.lt.and.s64 %z, %n, 16, %y; or.pred %x, %z, %y; not.pred %w, %x;\n"
                   "@%z st.u8 [%p], 0; @%x st.u8 [%p+1], 0; @%w st.u8 [%p+2], 0;", "a+2:write", "a+1:write"),
    "a number in floating point": ("mov.b64 %f, %n; setp.neu.f64 %z, %f, 0d0000000000000000; @%z ld.u32 %r, [%p];",
                                    "", "a+0:read"),
    "what memory decides": ("ld.u32 %r1, [%q]; setp.ne.s32 %z, %r1, 0; @%z st.u32 [%p], 0; @%z bra L;\n"
                            "st.u32 [%p+4], 0; mov.b64 %q, %p;\nL:\nst.u32 [%q], 0; st.u32 [%p+8], 0;",
                            "b+0:read a+8:write"),
    "memory that may end the thread": ("ld.u32 %r1, [%q]; setp.ne.s32 %z, %r1, 0; @%z exit; st.u32 [%p], 0;",
                                       "b+0:read"),
    "memory that stops the program": ("ld.u32 %r1, [%q]; setp.ne.s32 %z, %r1, 0; @%z bra L; st.u32 [%p], 0; ret;\n"
                                      "L:\ntrap;", "b+0:read a+0:write"),
    "a loop that memory ends": ("L:\nst.u8 [%p], 0; ld.u32 %r1, [%q]; setp.ne.s32 %z, %r1, 0; @%z bra L;\n"
                                "st.u32 [%p+4], 0;", "a+0:write b+0:read a+4:write"),
    "a loop that does not end": ("L:\nst.u8 [%p], 0; bra L;", "a+0:write"),
    "a list": ("mov.u64 %x, %p; setp.eq.s64 %z, %n, 0; @%z bra L; ld.u64 %x, [%p];\nL:\nst.u32 [%x+8], 0;",
               "a+8:write", "a+0:read"),
    "to a place that is not known": ("ts: .branchtargets L, M; brx.idx %r1, ts;\nL:\nst.u8 [%p], 0;\nM:\nret;", ""),
    "halves": ("mov.b64 {%l, %h}, %p; mov.b64 %x, {%l, %h}; st.u8 [%x], 0;", "a+0:write"),
    "arithmetic": ("cvt.u32.u64 %m, %n; add.u32 %m, %m, 4294967295; cvt.s64.s32 %i, %m; max.s64 %i, %i, 2;\n"
                   "min.s64 %i, %i, 9; mul.lo.s64 %i, %i, 7; div.s64 %i, %i, 3; rem.s64 %i, %i, 6; shl.b64 %j, %i, 3;\n"
                   "shr.u64 %k, %j, 1; sub.s64 %k, 0, %k; neg.s64 %k, %k; abs.s64 %k, %k; xor.b64 %k, %k, 1;\n"
                   "add.s64 %x, %p, %k; st.u8 [%x], 0;", "a+17:write", "a+13:write"),
    "a high half": ("mul.hi.u64 %i, %n, -1; mul.hi.s64 %j, %n, -1; not.b64 %j, %j; add.s64 %i, %i, %j;\n"
                    "add.s64 %x, %p, %i; st.u8 [%x], 0;", "?+1048575:write", "a+23:write"),
    "given to a function": ("st.param.b64 [param0], %p; call.uni f, (param0); ld.u32 %r, [%q];",
                            "a+0:unknown b+0:read"),
    "stored": ("st.u64 [%q], %p;", "b+0:write"),
    "copies": ("cp.async.ca.shared.global [%s], [%q], 16;\ncp.async.bulk.global.shared::cta.bulk_group [%p], [%s], %n;",
               "b+0:read a+0:write"),
    "parameters by their address": ("mov.b64 %a, a; add.s64 %a, %a, %n; ld.param.u64 %x, [%a]; st.u8 [%x], 0;",
                                    "a+0:write", ""),
}
# What stands in a kernel's body, and whether the host may know by it of anything while the kernel runs.
SIGNALS = {
    "weak": ("st.global.u32 [%p], 1; ld.global.nc.u32 %r, [%q]; st.weak.global.u32 [%p], %r;", False),
    "of a device": ("st.release.gpu.global.u32 [%p], 1; fence.acq_rel.gpu; membar.gl; membar.cta;\n"
                    "atom.global.acq_rel.gpu.add.u32 %r, [%p], 1; red.relaxed.cluster.global.add.u32 [%q], 1;", False),
    "without a scope": ("atom.global.add.u32 %r, [%p], 1; red.global.add.u32 [%p], 1;", False),
    "a release": ("st.release.sys.global.u32 [%p], 1;", True),
    "a generic address": ("st.relaxed.sys.u32 [%p], 1;", True),
    "a load": ("ld.acquire.sys.global.u32 %r, [%p];", True),
    "volatile": ("st.volatile.global.u32 [%p], 1;", True),
    "a volatile generic address": ("st.volatile.u32 [%p], 1;", True),
    "a volatile load": ("ld.volatile.global.v2.u32 {%r, %s}, [%p];", True),
    "memory of a device": ("st.mmio.relaxed.sys.global.u32 [%p], 1;", True),
    "memory of a device without its scope": ("st.mmio.relaxed.global.u32 [%p], 1;", True),
    "an atomic": ("atom.global.add.release.sys.u32 %r, [%p], 1;", True),
    "an atomic of the older form": ("atom.sys.global.add.u32 %r, [%p], 1;", True),
    "a reduction": ("red.relaxed.sys.global.add.u32 [%p], 1;", True),
    "several devices": ("multimem.red.release.sys.global.add.u32 [%p], 1;", True),
    "in bulk": ("st.async.mmio.release.sys.global.u32 [%p], 1;", True),
    "a fence": ("fence.sc.sys; st.global.u32 [%p], 1;", True),
    "a fence of the older form": ("membar.sys; st.global.u32 [%p], 1;", True),
    "under a condition": ("setp.eq.s64 %z, %n, 0; @%z bra L; @!%z st.release.sys.u32 [%p], 1;\nL:\n", True),
    "a function": ("st.param.b64 [param0], %p; call.uni f, (param0);", True),
    "a pointer to a function": ("call (retval0), %f, (param0), prototype_0;", True),
    "on the chip": ("st.volatile.shared.u32 [%s], 1; ld.volatile.shared::cta.u32 %r, [%s];\n"
                    "st.volatile.local.u32 [%s], 1; atom.shared.add.relaxed.sys.u32 %r, [%s], 1;", False),
    "in names": (".reg .b32 volatile, sys; mov.u32 sys, volatile; st.global.u32 [%p], sys; // st.volatile", False),
}
STRUCT = [".param .u32 n", ".param .align 8 .b8 s[24]", ".param .u64 .ptr .global .align 1 p"]
STRUCTS = {
    "a field": ("ld.param.u64 %x, [s+8]; st.global.u32 [%x], 0;", {16: W}),
    "a vector of fields": ("ld.param.v2.u64 {%x, %y}, [s+8]; st.global.u32 [%x], 0; ld.u32 %r, [%y];", {16: W, 24: R}),
    "by address": ("mov.b64 %a, s; ld.param.u64 %x, [%a+16]; st.global.u32 [%x], 0;", {24: W}),
    "by a sum": ("mov.b64 %a, s; add.s64 %b, %a, 8; ld.param.u64 %x, [%b]; st.global.u32 [%x], 0;", {16: W}),
    "by an index": ("mov.b64 %a, s; add.s64 %b, %a, %i; ld.param.u64 %x, [%b]; st.global.u32 [%x], 0;",
                    {8: FOUND, 16: FOUND, 24: FOUND}),
    "handed over": ("mov.b64 %a, s; cvta.param.u64 %b, %a; st.param.b64 [param0], %b; call f, (param0);",
                    {8: FOUND, 16: FOUND, 24: FOUND}),
    "a tensor map": ("mov.b64 %a, s;\n"
                     "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [%m], [%a, {%x, %y}], [%b];",
                     {8: FOUND, 16: FOUND, 24: FOUND}),
    "by an index and by name": ("mov.b64 %a, s; add.s64 %b, %a, %i; ld.param.u64 %x, [%b]; ld.param.u64 %y, [s+8];\n"
                                "ld.u32 %r, [%x]; ld.u32 %r, [%y];", {8: "read?", 16: R, 24: "read?"}),
    "which of two fields is left open": ("ld.param.u64 %x, [s]; ld.param.u64 %y, [s+8]; selp.b64 %x, %x, %y, %z;\n"
                                         "st.u32 [%x], 0;", {8: U, 16: U}),
    "a field that is stored": ("ld.param.u64 %x, [s]; st.global.u64 [%p], %x;", {8: FOUND}),
    "beside an offset of its own": ("ld.param.u64 %x, [s]; ld.param.u64 %p, [p]; add.s64 %y, %p, %x; "
                                    "st.global.u32 [%y], 0;", {32: W}),
}


def fat_binary(*parts):
    """(kind, flags, bytes, size when decompressed): 1 is PTX, 2 a cubin."""
    body = b"".join(struct.pack("<HHIQIIIIQQQQ", kind, 0, 64, len(data), len(data), 0, 0, 0, 0, flags, 0, whole) + data
                    for kind, flags, data, whole in parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def packed(data):
    """LZ4: literals, then a match for each run of blanks that is long enough."""
    out, pieces = b"", re.split(rb"( {20,})", data)
    for text, blanks in itertools.zip_longest(pieces[::2], pieces[1::2]):
        literals, match = text + (b" " if blanks else b""), len(blanks or b"") - 1 - 4
        out += bytes([min(len(literals), 15) << 4 | (min(match, 15) if blanks else 0)]) + more(len(literals)) + literals
        out += b"\1\0" + more(match) if blanks else b""
    return out


def zstandard(data):
    """A frame with one block, which is not compressed: RFC 8878."""
    header = b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little")
    return header + (1 | len(data) << 3).to_bytes(3, "little") + data


def more(length):
    return b"" if length < 15 else b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


STORE = ptx([".param .u64 p"], "ld.param.u64 %p, [p];\n" + 40 * " " + "st.global.u32 [%p], 0;" + 400 * " ")
# Variables of a module, and what is none of its own.
DECLARED = HEADER + """
// .global .u32 comment;
.visible .global .align 4 .u32 counter;
.const .align 4 .b8 table[2][16] = {{1, 2, 3}, {4}};
.weak .global .align 8 .v2 .f32 pair = {0f00000000, 0f3F800000};
.extern .global .align 4 .u32 elsewhere;
.visible .global .attribute(.managed) .align 4 .u32 shared;
.global .attribute(.unified(19, 95), .managed) .align 4 .b8 of_both[12];
.global .attribute(.unified(19, 96)) .align 4 .b8 unified[2];
.extern .const .align 4 .b8 unsized[];
.global .texref texture;
.func helper(.param .b32 a)
{
    .global .align 4 .b8 of_function[16];
    { ret; }
}
.global .align 4 .b8 huge[1099511627776][16];
.global .b8 last[0x7];
""" + STORE.removeprefix(HEADER)
DEFINED = {"counter": 4, "table": 32, "pair": 8, "managed:shared": 4, "managed:of_both": 12, "unified": 2, "last": 7}
# Both in one text: a variable is declared behind a kernel, behind a kernel without a body, and in no kernel's body.
MIXED = (STORE + """
.global .u32 behind;
.entry declared(.param .u64 .ptr .global .align 4 none, .param .u32 n);
.const .u64 also = 3;
""" + ptx([], "{ .global .u16 of_kernel; } ld.global.v2.u32 {%r1, %r2}, [behind];", "j").removeprefix(HEADER) + """
.global .u8 end;
""").encode()
SYMBOLS = {"counter": (".nv.global", 4), "values": (".nv.global.init", 12), "table": (".nv.constant3", 32),
           "managed:shared": (".nv.global", 4), "of_another_kind": (".nv.shared.k", 64), "empty": (".nv.global", 0)}
MACHINE = cubin({"k": [(0, 8)]}, variables=SYMBOLS)
IN_CUBIN = {"counter": 4, "values": 12, "table": 32, "managed:shared": 4}
VARIABLES = {
    "variables-ptx": (DECLARED.encode(), DEFINED),
    "variables-cubin": (MACHINE, IN_CUBIN),
    "variables-fat": (fat_binary((2, 0, MACHINE, 0), (1, 0, DECLARED.encode(), 0)), DEFINED | IN_CUBIN),
    "variables-none": (STORE.encode(), {}),
    "variables-mixed": (MIXED, {"behind": 4, "also": 8, "end": 1}),
}
CHIPS = sorted({chip for chip, *_ in INSTRUCTIONS})
# A kernel for each instruction.
CODES = {chip: {instruction: code((low, high)) for of, instruction, low, high, _ in INSTRUCTIONS if of == chip}
         for chip in CHIPS}
SILENT_CODE = code(SILENT_STORE[90])
RELEASE = STORE.replace("st.global", "st.release.sys.global")
IMAGES = {
    "cubin": (cubin({"k": [(0, 8), (8, 4), (16, 24)], "j": []}),
              {"k": Facts([(0, 8), (8, 4), (16, 24)], {0: U, 16: FOUND, 24: FOUND, 32: FOUND}), "j": Facts([], {})}),
    "cubin-incomplete": (cubin({"k": [(0, 8), (0, 0), (8, 8)]}), {"k": Facts([], {})}),
    "fat-ptx": (fat_binary((2, 0, cubin({"k": [(0, 8)], "j": [(0, 4)]}), 0), (1, 0, STORE.encode(), 0)),
                {"k": Facts([(0, 8)], {0: W}), "j": Facts([(0, 4)], {})}),
    "fat-cubin-last": (fat_binary((1, 0, STORE.encode(), 0), (2, 0, cubin({"k": [(0, 8)]}), 0)),
                       {"k": Facts([(0, 8)], {0: W})}),
    "fat-packed": (fat_binary((1, 0x2000, packed(STORE.encode()), len(STORE))), {"k": Facts([(0, 8)], {0: W})}),
    "fat-silent": (fat_binary((1, 0, STORE.encode(), 0), (1, 0, STORE.encode(), 0)), {"k": Facts([(0, 8)], {0: W})}),
    "fat-speaks-first": (fat_binary((1, 0, RELEASE.encode(), 0), (1, 0, STORE.encode(), 0)),
                         {"k": Facts([(0, 8)], {0: W})}),
    "fat-speaks-last": (fat_binary((1, 0, STORE.encode(), 0), (1, 0, RELEASE.encode(), 0)),
                        {"k": Facts([(0, 8)], {0: W})}),
    "fat-zstandard": (fat_binary((1, 0x8000, zstandard(STORE.encode()), len(STORE))), {"k": Facts([(0, 8)], {0: W})}),
    "fat-zstandard-cut": (fat_binary((1, 0x8000, b"(\xb5/\xfd", 100)), {}),
    "fat-zstandard-longer": (fat_binary((1, 0x8000, zstandard(STORE.encode()), len(STORE) - 1)), {}),
    "layout": (ptx([".param .u8 a", ".param .align 16 .b8 b[20]", ".param .f64 .ptr .align 64 c", ".param .u16 d[3]"],
                   "").encode(), {"k": Facts([(0, 1), (16, 20), (40, 8), (48, 6)], {})}),
    "several": ((ptx([], "", "a") + ptx([".param .u64 p"], "ld.param.u64 %p, [p]; st.u32 [%p], 0;", "b")
                 + '.func f(.param .u64 x)\n{\nst.u32 [%p], 0;\nret;\n}\n.file 1 "no .entry z() {}"\n').encode(),
                {"a": Facts([], {}), "b": Facts([(0, 8)], {0: W})}),
    "too-large": (ptx([".param .b8 a[70000]"], "").encode(), {}),
    "cut-off": (STORE[:-20].encode(), {}),
    "nothing": (b"no image at all", {}),
} | {name: (image, None) for name, (image, _) in VARIABLES.items()} | {
    "variables-mixed": (MIXED, {"k": Facts([(0, 8)], {0: W}), "j": Facts([], {})})} | {
    f"code-{chip}": (cubin({name: [] for name in codes}, chip, codes), None) for chip, codes in CODES.items()} | {
    "code-silent": (cubin({"k": [(0, 8)]}, 90, {"k": SILENT_CODE}), {"k": Facts([(0, 8)], {0: U})}),
    "code-of-another-chip": (cubin({"k": [(0, 8)]}, 70, {"k": SILENT_CODE}), {"k": Facts([(0, 8)], {0: U})}),
    "code-is-empty": (cubin({"k": [(0, 8)]}, 90, {"k": b""}), {"k": Facts([(0, 8)], {0: U})}),
    "code-is-cut": (cubin({"k": [(0, 8)]}, 90, {"k": SILENT_CODE + struct.pack("<Q", 0x7944)}),
                    {"k": Facts([(0, 8)], {0: U})}),
    "fat-code": (fat_binary((1, 0, STORE.encode(), 0), (2, 0, cubin({"k": [(0, 8)]}, 90, {"k": SILENT_CODE}), 0)),
                 {"k": Facts([(0, 8)], {0: W})}),
    "fat-code-speaks": (fat_binary((1, 0, STORE.encode(), 0), (2, 0, cubin({"k": [(0, 8)]}, 75, {
        "k": code(SPEAKING_STORE[75])}), 0)), {"k": Facts([(0, 8)], {0: W})}),
    "fat-code-speaks-first": (fat_binary((2, 0, cubin({"k": [(0, 8)]}, 75, {"k": code(SPEAKING_STORE[75])}), 0),
                                         (1, 0, STORE.encode(), 0)), {"k": Facts([(0, 8)], {0: W})}),
} | {f"body-{name}": (two(body).encode(), {"k": Facts([(0, 8), (8, 8), (16, 8)], {
        offset: role for offset, role in ((0, p), (8, q)) if role})}) for name, (body, p, q) in BODIES.items()} | {
    f"struct-{name}": (ptx(STRUCT, body).encode(), {"k": Facts([(0, 4), (8, 24), (32, 8)], roles)})
    for name, (body, roles) in STRUCTS.items()} | {
    f"touches-{name}": (two(body).encode(), None) for name, (body, *_) in TOUCHES.items()} | {
    f"signals-{name}": (two(body).encode(), None) for name, (body, _) in SIGNALS.items()}
# Of several images, for several devices, one is chosen.
SILENT = ("fat-packed", "fat-silent", "code-silent", "fat-code")
SPEAKING = ("cubin", "fat-ptx", "fat-cubin-last", "fat-speaks-first", "fat-speaks-last", "fat-code-speaks",
            "fat-code-speaks-first", "code-of-another-chip", "code-is-empty", "code-is-cut")
SIGNATURES = {
    "_Z1kPKfPfi": "const pointer value",
    "_ZN2ns5saxpyEfPKfPfi": "value const pointer value",
    "_Z2tkIfEvPT_PKS0_m": "pointer const value",
    "_Z1kPKfS0_PfS1_": "const const pointer pointer",
    "_Z1kN2ns1SEPKS0_PS0_": "value const pointer",
    "_Z1kPKN2ns1SIfiEEPS1_PKS1_": "const pointer const",
    "_Z1kIiLi3EEvPKT_PVS0_RKS0_": "const pointer const",
    "_ZN3cub4kernIN4thru5tupleIJifEEEEEvPKT_St4pairIifE": "const value",
    "_Z1kPFvPKfES0_Dv4_fPKS3_": "pointer const value const",
    "_ZN2ns1kEPKfS1_": "const const",
    "_Z1kv": "",
    "k": "?",
    "_Z1kPK": "?",
    "_Z1kT_": "?",
    "_ZN1aplE1b": "?",
    "_Z999999999k": "?",
    "_Z1k" + 400 * "P" + "f": "?",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """With all defects, of which the environment selects one, and with the sanitizers."""
    return made_once(tmp_path_factory, "kernels-planted", lambda folder: build_planted(
        folder, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name, (image, _) in IMAGES.items():
        (folder / name).write_bytes(image)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    made = {f"{seed}.ptx": Kernel(seed) for seed in range(200)}
    for name, kernel in made.items():
        (folder / name).write_text(kernel.text)
    return folder, made


def wrong_roles(kernel, facts):
    """Of a random kernel, what the machine contradicts."""
    runs = [kernel.machine(seed) for seed in range(6)]
    for offset, block in kernel.pointers.items():
        role = facts.roles.get(offset)
        read, written = [block in run.read for run in runs], [block in run.written for run in runs]
        if ((role is None and any(read + written)) or (role == R and any(written))
                or (role in (W, RW) and not all(written)) or (role == W and any(read))):
            yield offset, role


def wrong(program, files, kernels, defect=""):
    """Images of which something else is said than in IMAGES, signatures likewise, and wrong roles."""
    found = facts_of(program, *files, defect=defect)
    yield from (name for name, (_, expected) in IMAGES.items() if expected is not None and found.get(name) != expected)
    touches = {name: found[f"touches-{name}"]["k"].touches for name in TOUCHES}
    for name, (_, zero, *other) in TOUCHES.items():
        if touches[name] != [zero, *(other or [zero])]:
            yield f"{name}: {touches[name]}"
    yield from (name for name, (_, may) in SIGNALS.items() if found[f"signals-{name}"]["k"].may_signal != may)
    yield from (f"{chip}: {name}" for chip, name, _, _, may in INSTRUCTIONS
                if found[f"code-{chip}"][name].may_signal != may)
    yield from (name for name in SILENT if found[name]["k"].may_signal)
    yield from (name for name in SPEAKING if not found[name]["k"].may_signal)
    sizes = variables_of(program, *files, defect=defect)
    yield from (name for name, (_, expected) in VARIABLES.items() if sizes[name] != expected)
    text = output_of(program, "--signature", *SIGNATURES, defect=defect)
    types = dict(line.split(" |") for line in text.splitlines() if " |" in line)
    yield from (name for name, expected in SIGNATURES.items() if types.get(name, "").split() != expected.split())
    folder, made = kernels
    found = facts_of(program, *(folder / name for name in made), defect=defect)
    for name, kernel in made.items():
        yield from (f"{name} at {offset}: {role}" for offset, role in wrong_roles(kernel, found[name]["k"]))
    yield from wrong_launches(LAUNCHES, parts_of(program, LAUNCHES, defect))


def test_what_is_said_is_right(program, files, kernels):
    assert list(wrong(program, files, kernels)) == []


def test_most_pointers_have_a_role(program, kernels):
    folder, made = kernels
    found = facts_of(program, *(folder / name for name in made))
    roles = [found[name]["k"].roles.get(offset) for name, kernel in made.items() for offset in kernel.pointers]
    used = [role for role in roles if role]
    assert {R, W, RW, U} <= set(used)
    assert sum(role != U for role in used) > 0.5 * len(used) > 150


def touches_of(program, file, machines):
    """What is said of the first thread, for each machine: addresses and roles."""
    spaces = [option for machine in machines for option in ("--space", machine.parameters.hex())]
    _, *lines = output_of(program, *spaces, file).splitlines()
    return [[touch.split(":") for touch in line.split()] for line in lines[:len(machines)]]


def test_the_first_thread_goes_where_the_machine_goes(program, kernels):
    """The machine executes what a predicate guards, too, so it goes everywhere that a thread may go."""
    folder, made = kernels
    known = {R: "r", W: "w", RW: "rw", "atomic": "rw", U: ""}
    count = accesses = 0
    for name, kernel in made.items():
        machines = [kernel.machine(seed) for seed in range(6)]
        for machine, touches in zip(machines, touches_of(program, folder / name, machines), strict=True):
            accesses += len(machine.touched)
            for address, role in touches:
                if 0x10 <= int(address) >> 20 < 0x110:
                    count += role != U
                    assert set(known[role]) <= set(machine.touched.get(int(address), "")), (name, address, role)
    assert count > accesses / 3 > 1000


def test_most_arrays_have_parts(program):
    """`test_what_is_said_is_right` compares these parts with what NumPy says."""
    all_parts = parts_of(program, LAUNCHES)
    assert sum(len(parts) > 1 for parts in all_parts) > 100
    assert sum(not parts for parts in all_parts) < 30


OVERLAPPING = numpy.lib.stride_tricks.as_strided(numpy.zeros(64, "u1"), (4, 8), (4, 1))
MANY = numpy.zeros((9, 3, 9, 3, 4), "f4")[:, :2, :, :2, :3]


@pytest.mark.parametrize(("view", "name", "parts"), [
    (numpy.zeros(4, "f4"), "", [(BASE, BASE + 16, 0, 0)]),
    (numpy.zeros((4, 8), "f4")[:, :2], "", [(BASE, BASE + 104, 32, 8)]),
    (numpy.zeros(4, "f4"), "cupy_copy__float32_float32_float32", None),         # one type more than arrays
    (numpy.zeros(4, "f4"), "my_copy__float32_float32", None),
    (numpy.zeros(4, "f4"), "cupy_copy__float32_float32__cupy_exp__float32_float32", None),
    (numpy.zeros(4, "f4"), "cupy_copy__float32_decimal", None),
    (numpy.zeros(4, "f4"), "cupy_copy", None),
    (numpy.zeros((), "f4"), "", None),
    (numpy.zeros((0, 3), "f4"), "", []),
    (OVERLAPPING, "", []), (MANY, "", []),
], ids=["plain", "a box", "types", "another library", "fused", "a type", "without types", "no dimension", "no element",
        "overlapping", "too many parts"])
def test_arrays_of_which_nothing_is_claimed(program, view, name, parts):
    origin = view.__array_interface__["data"][0]
    assert parts_of(program, [launch_of(view, origin, name)]) == [parts]


def test_an_image_without_a_size(program, files):
    unsized = [file for file in files if not file.name.startswith("fat-zst")]
    found = facts_of(program, "--unsized", *unsized)
    assert {name: facts for name, facts in found.items() if facts != IMAGES[name][1] is not None} == {}
    sizes = variables_of(program, "--unsized", *unsized)
    assert {name: sizes[name] for name in VARIABLES} == {name: expected for name, (_, expected) in VARIABLES.items()}


def test_damaged_images_are_read_without_harm(program, files):
    lines = output_of(program, "--mutate", "60", *files).splitlines()
    assert sum(int(line) for line in lines[1::2]) > 500      # many still have a kernel


def test_each_defect_breaks_a_rule_of_its_own():
    assert len(set(DEFECTS)) == len({defect.rule for defect in defects()}) == len(DEFECTS) > 20


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(program, files, kernels, name):
    assert any(wrong(program, files, kernels, name))
