// Whether a kernel may let the host know of something while it runs, as by a flag that the host polls.
//
// The memory model of PTX orders what a kernel writes with what the host reads by instructions of the system's scope
// alone: .sys, and what counts as that (.volatile, .mmio). Weak accesses, and those whose scope is a block, a cluster or
// the device, give no order. A function that the kernel calls may do anything.
//
// Machine code says the same, without a disassembler: an instruction has 16 bytes, its opcode stands in the lowest bits,
// and each access has its order and scope in one place. An instruction that is not known may signal.
#pragma once

#include "binary.hpp"
#include "instruction.hpp"

namespace check {

bool may_signal(const std::vector<Instruction>& instructions);
// `sm`: 90 of sm_90.
bool may_signal(Bytes code, u64 sm);

}  // namespace check
