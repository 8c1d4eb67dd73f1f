// Accesses through a kernel's parameters in its machine code, from the text that NVIDIA's nvdisasm prints.
#pragma once

#include "facts.hpp"

#include "engine/launch_numbers.hpp"

#include <string_view>

namespace check {

// The targets of a jump that computes its target: all in bytes, in the code.
struct Jump {
    u32 place = 0;
    std::vector<u32> targets;
};

// A word in neither list is never used as an address. A word in both lists is an address for certain, and its role is
// that of all accesses that may go through it.
struct CodeFacts {
    bool followed = false;          // false: the code is not understood, and nothing is known
    std::vector<Pointer> pointers;  // words through which the code reads or writes
    std::vector<LaunchNumbers> numbers;  // that matter to each pointer
    std::vector<Parameter> open;    // words, and whole parameters, of which it is not known what is done with them
};

// `listing`: the output of `nvdisasm -b SM90 FILE` for a kernel's code alone. `base`: where in the first bank of
// constants the parameters begin. Code with a jump that is not among `jumps` is not followed.
CodeFacts facts_of_code(std::string_view listing, const std::vector<Parameter>& parameters, u32 base,
                        const std::vector<Jump>& jumps = {});

}  // namespace check
