// The text that nvdisasm prints of a kernel's code, as instructions with their operands.
#pragma once

#include "opcodes.hpp"

#include <array>
#include <vector>

namespace check::machine {

// A holder of 32 bits: R0 to R255, then UR0 to UR255, then the registers of barriers, which may keep others' values.
using Cell = u32;
constexpr Cell kUniform = 256, kBarriers = 512, kCells = 544, kNoCell = ~0u;
constexpr Cell kStackPointer = 1;  // R1

enum class Form : u8 {
    Zero,  // RZ, URZ
    Register,
    Number,
    Constant,  // of a bank: c[0x0][R2+0x210]
    Bindless,  // of a bank without a number: cx[UR4][0x10]
    Address,   // desc[UR4][R2.64+UR6+0x10]
    Other,
};

struct Operand {
    Form form = Form::Other;
    bool is_negative = false;  // subtracted; or all bits inverted, which is the same with a carry
    bool is_narrow = false;    // of an address: its first register has 32 bits
    // The register itself; registers that are added in an address, or to the place in a bank; of another form all that
    // it mentions.
    std::array<Cell, 3> cells = {kNoCell, kNoCell, kNoCell};
    Cell descriptor = kNoCell;
    u32 bank = 0;
    i64 value = 0;  // the number; what is added; the place in the bank
};

// A predicate by its number: P0 is 1, UP0 is 9. An inverted predicate is negative; 0 is the predicate that is always
// true.
using Predicate = int;

struct Instruction {
    u64 place = 0;  // in bytes, in the code
    std::string_view name;
    Effect effect = Effect::Nothing;
    Predicate guard = 0;
    bool has_predicates = false;  // among its operands
    bool inverts_predicates = false;
    u32 named_predicates = 0;  // bits by their numbers
    u32 last_predicates = 0;  // of these, those behind everything else, which are read
    u32 changed_predicates = 0;  // bits by their numbers
    std::vector<Operand> operands;  // without predicates

    bool is_conditional() const { return guard || has_predicates; }
};

// The instructions in order of their places. An instruction that is never carried out (@!PT) becomes one that does
// nothing.
std::vector<Instruction> instructions_in(std::string_view listing);

}  // namespace check::machine
