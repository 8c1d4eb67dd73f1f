// The order of a kernel's instructions: blocks that are entered at their beginning.
#pragma once

#include "listing.hpp"
#include "machine_code.hpp"

#include <map>

namespace check::machine {

constexpr u32 kNoBlock = ~0u;

struct Block {
    u32 begin = 0, end = 0;       // of the instructions
    std::vector<u32> next;        // blocks; behind a call, where it returns to
    u32 function = kNoBlock;      // what it calls, where that is in this code
    bool calls_others = false;    // it calls code that is not here
    bool returns = false;
};

// A function that a block may call.
struct Function {
    std::vector<u32> body;     // its blocks, without those of functions that it calls
    std::vector<u32> callers;  // blocks that end with a call of it
};

// The first block is where the kernel begins. Empty where the order is not known.
std::vector<Block> blocks_of(const std::vector<Instruction>& instructions, const std::vector<Jump>& jumps);

// The functions, by their first blocks.
std::map<u32, Function> functions_in(const std::vector<Block>& blocks);

}  // namespace check::machine
