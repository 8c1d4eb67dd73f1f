// Numbers among a kernel's parameters: those that are added to the addresses of its accesses, and those that decide
// which way its code goes.
//
// A number that is in neither changes what the kernel computes, and not where it goes: a step, a learning rate. Each
// value is followed through registers and predicates, forwards along all paths, with the places of the parameters that
// it was computed from. This is coarser than the origins of addresses (origins.hpp), and says more about numbers: a
// product, a part or a loaded value keeps its places. Where something is not understood, all places are meant.
#pragma once

#include "branches.hpp"
#include "steps.hpp"

namespace check::machine {

// For each pointer the numbers that matter to the accesses through it.
std::vector<LaunchNumbers> numbers_of(const std::vector<Pointer>& pointers, const std::vector<Instruction>& code,
                                      const std::vector<Block>& blocks, const Layout& layout);

}  // namespace check::machine
