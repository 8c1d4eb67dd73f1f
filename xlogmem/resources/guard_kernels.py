"""The two kernels of `GuardResourceAdaptor`, as PTX: one fills guarded memory with patterns, one compares.

The driver compiles the PTX for its GPU; the simulated driver knows the same kernels by their names.

Both visit words of 8 bytes: number i of `count` is at base + 8 * (first + i), and `gap` bytes later from number
`gap_at` on.  Bytes in [user, user_end) are *inside* and have the byte `poison`; the others are *outside* and have a
canary, which depends on the address and on `seed`, and has no byte that programs write often: all are in 0x80 to 0xBF.
Of a word with both, each byte counts by itself.  Bits of `select`: 1 for outside, 2 for inside.
"""
from __future__ import annotations

__all__ = ["GUARD_PTX"]

# The address of the word, what should be there and which of its bytes are inside; `i` is its number.
_WORD = """
    // %a: its address
    ld.param.u64 %a, [first];
    add.u64 %a, %a, %i;
    shl.b64 %a, %a, 3;
    add.u64 %a, %a, %base;
    setp.ge.u64 %p, %i, %gap_at;
    selp.u64 %x, %gap, 0, %p;
    add.u64 %a, %a, %x;

    // %mask: the bytes that are inside
    sub.s64 %n, %end, %a;
    max.s64 %n, %n, 0;
    min.s64 %n, %n, 8;
    setp.lt.u64 %before, %a, %user;
    selp.s64 %n, 0, %n, %before;
    cvt.u32.u64 %bits, %n;
    shl.b32 %bits, %bits, 3;
    mov.u64 %mask, 1;
    shl.b64 %mask, %mask, %bits;                // by 64: 0
    sub.u64 %mask, %mask, 1;

    // %word: the canary, and the poison inside
    mad.lo.u64 %word, %a, 0x9E3779B97F4A7C15, %seed;
    shr.u64 %x, %word, 29;
    xor.b64 %word, %word, %x;
    mul.lo.u64 %word, %word, 0xBF58476D1CE4E5B9;
    shr.u64 %x, %word, 32;
    xor.b64 %word, %word, %x;
    and.b64 %word, %word, 0x3F3F3F3F3F3F3F3F;
    or.b64 %word, %word, 0x8080808080808080;
    not.b64 %outside, %mask;
    and.b64 %word, %word, %outside;
    ld.param.u64 %x, [poison];
    and.b64 %x, %x, %mask;
    or.b64 %word, %word, %x;

    // %mask and %outside: of these, the bytes that are selected
    ld.param.u32 %bits, [select];
    and.b32 %chosen, %bits, 1;
    setp.eq.u32 %p, %chosen, 0;
    selp.b64 %outside, 0, %outside, %p;
    and.b32 %chosen, %bits, 2;
    setp.eq.u32 %p, %chosen, 0;
    selp.b64 %mask, 0, %mask, %p;
"""

_PARAMETERS = """
    .param .u64 base, .param .u64 user, .param .u64 user_end, .param .u64 seed, .param .u64 poison,
    .param .u64 first, .param .u64 count, .param .u64 gap_at, .param .u64 gap, .param .u32 select, .param .u32 blocks"""

_START = """
    .reg .u64 %base, %user, %end, %seed, %count, %gap_at, %gap, %i, %stride, %a, %x, %mask, %word, %outside;
    .reg .s64 %n;
    .reg .u32 %bits, %chosen, %block, %width, %thread, %blocks;
    .reg .pred %p, %before;
    ld.param.u64 %base, [base];
    ld.param.u64 %user, [user];
    ld.param.u64 %end, [user_end];
    ld.param.u64 %seed, [seed];
    ld.param.u64 %count, [count];
    ld.param.u64 %gap_at, [gap_at];
    ld.param.u64 %gap, [gap];
    ld.param.u32 %blocks, [blocks];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %stride, %blocks, %width;
    mul.wide.u32 %i, %block, %width;
    cvt.u64.u32 %x, %thread;
    add.u64 %i, %i, %x;
"""

_HEAD = """
.version 7.0
.target sm_50
.address_size 64
"""

_FILL = f"""
// Write what should be there to the selected bytes.
.visible .entry xlogmem_guard_fill({_PARAMETERS})
{{
    .reg .u32 %byte;
{_START}
next:
    setp.ge.u64 %p, %i, %count;
    @%p bra done;
{_WORD}
    add.u64 %i, %i, %stride;
    or.b64 %mask, %mask, %outside;
    setp.ne.u64 %p, %mask, 0xFFFFFFFFFFFFFFFF;
    @%p bra bytes;
    st.global.u64 [%a], %word;
    bra next;
bytes:                                          // of a word at the end, byte by byte: the others are not ours
    setp.eq.u64 %p, %mask, 0;
    @%p bra next;
    and.b64 %x, %mask, 1;
    setp.eq.u64 %p, %x, 0;
    cvt.u32.u64 %byte, %word;
    @!%p st.global.u8 [%a], %byte;
    shr.u64 %mask, %mask, 8;
    shr.u64 %word, %word, 8;
    add.u64 %a, %a, 1;
    bra bytes;
done:
    ret;
}}
"""

# A result has 8 words for each thread block.  For the bytes before, inside and after: (offset from `base` << 8 | value)
# of the first that is wrong, or all ones; then how many are wrong; then 1, once these are there.
_CHECK = f"""
// Compare the selected bytes with what should be there.  `result` is host memory.
.visible .entry xlogmem_guard_check(.param .u64 result, {_PARAMETERS})
{{
    .shared .align 8 .b64 found[6];
    .reg .u64 %seen, %wrong, %key, %place, %slot, %tally;
    .reg .u32 %byte, %passes, %region;
    .reg .pred %first, %small;
{_START}
    setp.ge.u32 %p, %thread, 6;
    @%p bra begun;
    mov.u64 %slot, found;
    mad.wide.u32 %slot, %thread, 8, %slot;
    setp.lt.u32 %small, %thread, 3;
    selp.b64 %x, 0xFFFFFFFFFFFFFFFF, 0, %small;
    st.shared.u64 [%slot], %x;
begun:
    bar.sync 0;
next:
    setp.ge.u64 %p, %i, %count;
    @%p bra done;
{_WORD}
    add.u64 %i, %i, %stride;
    ld.volatile.global.u64 %seen, [%a];
    xor.b64 %word, %word, %seen;
    and.b64 %wrong, %word, %outside;
    and.b64 %mask, %mask, %word;
    selp.u32 %region, 0, 2, %before;
    mov.u32 %passes, 0;
note:                                           // the bytes %wrong of this word, which belong to %region
    setp.eq.u64 %p, %wrong, 0;
    @%p bra noted;
    brev.b64 %x, %wrong;
    clz.b64 %byte, %x;
    shr.u32 %byte, %byte, 3;
    cvt.u64.u32 %key, %byte;
    add.u64 %key, %key, %a;
    sub.u64 %key, %key, %base;
    shl.b64 %key, %key, 8;
    shl.b32 %byte, %byte, 3;
    shr.u64 %x, %seen, %byte;
    and.b64 %x, %x, 0xFF;
    or.b64 %key, %key, %x;
    mov.u64 %slot, found;
    mad.wide.u32 %slot, %region, 8, %slot;
    atom.shared.min.u64 %x, [%slot], %key;
    shr.u64 %x, %wrong, 4;                      // one bit for each wrong byte
    or.b64 %wrong, %wrong, %x;
    shr.u64 %x, %wrong, 2;
    or.b64 %wrong, %wrong, %x;
    shr.u64 %x, %wrong, 1;
    or.b64 %wrong, %wrong, %x;
    and.b64 %wrong, %wrong, 0x0101010101010101;
    popc.b64 %byte, %wrong;
    cvt.u64.u32 %tally, %byte;
    atom.shared.add.u64 %x, [%slot+24], %tally;
noted:
    setp.eq.u32 %p, %passes, 1;
    @%p bra next;
    mov.u32 %passes, 1;
    mov.u64 %wrong, %mask;
    mov.u32 %region, 1;
    bra note;
done:
    bar.sync 0;
    setp.ne.u32 %p, %thread, 0;
    @%p bra out;
    ld.param.u64 %place, [result];
    mad.wide.u32 %place, %block, 64, %place;
    mov.u32 %byte, 0;
    mov.u64 %slot, found;
copy:
    ld.shared.u64 %x, [%slot];
    st.volatile.global.u64 [%place], %x;
    add.u64 %slot, %slot, 8;
    add.u64 %place, %place, 8;
    add.u32 %byte, %byte, 1;
    setp.lt.u32 %p, %byte, 6;
    @%p bra copy;
    membar.sys;
    st.volatile.global.u64 [%place], 1;
out:
    ret;
}}
"""

GUARD_PTX = _HEAD + _FILL + _CHECK
