// Liveness of registers: values that are not used later need not be followed, which saves most of the time.
#pragma once

#include "branches.hpp"
#include "registers.hpp"
#include "steps.hpp"

namespace check::machine {

struct Lives {
    std::vector<std::vector<Cell>> cells;  // where each block begins
    std::map<u32, Cells> written;  // by each function, and by those that it calls
};

Lives lives_in(const std::vector<Instruction>& code, const std::vector<Block>& blocks,
               const std::map<u32, Function>& functions, Origins& origins, Steps& steps);

}  // namespace check::machine
