// Effects of machine instructions on addresses: sm_75 to sm_120, by the names of the instructions.
#pragma once

#include "engine/clock.hpp"

#include <cstdint>
#include <string_view>

namespace check::machine {

using i32 = std::int32_t;
using i64 = std::int64_t;

enum class Effect : u8 {
    Constant,  // a load from a bank of constants, as the one that has the parameters
    // Accesses through addresses in memory. The stored value stands behind the address, the result's place before it.
    Load,
    Store,
    Atomic,
    CopyIn,  // from the second address, to memory of the block
    Bulk,  // likewise, or the other way; the name says which
    Tensor,  // through a map of a tensor, of which the address is given
    OnChip,  // in memory of the block, whatever stands behind the address goes there
    FromLocal,  // in the thread's own memory
    ToLocal,
    // Computation in registers.
    Move,
    Select,
    Sum,
    ScaledSum,  // LEA: the first source is shifted
    Multiply,  // IMAD: the product of two, and the third
    Mask,  // LOP3
    Shift,  // SHF
    Permute,  // PRMT
    Mixed,  // one of the sources may come out of it, but which one is not known
    Bits,  // parts of them may
    Value,  // what comes out of it is no address
    Nothing,  // nothing comes out of it
    // Control flow.
    Branch,
    IndirectBranch,
    Call,
    Return,
    Exit,
    Reconverge,  // BSSY says where, for the BSYNC of the same barrier
    Synchronize,
    Collective,  // may go on at its target
    Unknown,
};

Effect effect_of(std::string_view name);

// True if `part` is one of the parts of the name between dots.
bool has(std::string_view name, std::string_view part);

// The number of registers that an operand in memory, or a result, has.
unsigned width_in_memory(std::string_view name);
unsigned width_of_value(std::string_view name);

// True if the instruction reads or writes less than 32 bits.
bool is_partial(std::string_view name);

}  // namespace check::machine
