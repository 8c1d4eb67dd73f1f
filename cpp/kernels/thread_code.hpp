// PTX as a program that one thread can be followed through: instructions with numbered registers, and their blocks.
#pragma once

#include "instruction.hpp"

#include <cstdint>
#include <unordered_map>

namespace check::thread {

using i64 = std::int64_t;

constexpr u32 kNone = ~0u;

enum class Op : u8 {
    Unknown,  // nothing is known of its results
    Move,     // also between a register and its parts
    Convert,
    Add,
    Subtract,
    Multiply,      // the low half
    MultiplyHigh,  // the high one
    MultiplyWide,  // both
    MultiplyAdd,
    MultiplyWideAdd,
    Divide,
    Remainder,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    Xor,
    Not,
    Negate,
    Absolute,
    Minimum,
    Maximum,
    Select,
    Compare,
    Load,  // from the parameters, if that is where its address is
};

enum class Comparison : u8 { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, Unknown };

struct Operand {
    enum class Form : u8 { Unknown, Register, Number, Parameters, GridSize, BlockSize };
    Form form = Form::Unknown;
    u64 value = 0;  // the register, the number, the offset, the axis
};

struct Address {
    Operand base;
    u64 distance = 0;
};

struct Type {
    u32 bits = 0;  // 1: a predicate; 0: not known
    bool is_signed = false, is_float = false;
};

struct Step {
    Op op = Op::Unknown;
    Type type, from;  // `from`: of what is converted
    Comparison comparison = Comparison::Unknown;
    Op combined = Op::Unknown;  // And, Or, Xor: of a comparison with one more predicate
    u32 guard = kNone;          // a register
    bool negated = false;       // … which has to be false
    std::vector<u32> results;
    std::vector<std::vector<Operand>> sources;  // each may be a vector
    std::vector<Address> addresses;
    // Of memory, through the first address (of a copy from memory: through the second, which is the only one here).
    bool reads = false, writes = false, is_atomic = false;
    bool hands_over = false;  // what it is given, it may use as an address
};

// Steps that follow each other. Where there are two next blocks, the guard of the last step decides between them.
struct Block {
    u32 begin = 0, end = 0;
    u32 taken = kNone, next = kNone;  // kNone: the thread ends there, or goes to a place that is not known
    bool branches = false;            // its last step is a branch
    bool fails = false;               // … which stops the program
    u32 meeting = kNone;  // the next block that the thread gets to whichever way it goes; kNone: it may end
};

struct Code {
    std::vector<Step> steps;
    std::vector<Block> blocks;
    u32 registers = 0;
};

Code code_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions);

}  // namespace check::thread
