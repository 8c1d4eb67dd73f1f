// Whether a kernel may let the host know of something while it runs, as by a flag that the host polls.
//
// The memory model of PTX orders what a kernel writes with what the host reads by instructions of the system's scope
// alone: .sys, and what counts as that (.volatile, .mmio). Weak accesses, and those whose scope is a block, a cluster or
// the device, give no order. A function that the kernel calls may do anything.
#pragma once

#include "instruction.hpp"

namespace check {

bool may_signal(const std::vector<Instruction>& instructions);

}  // namespace check
