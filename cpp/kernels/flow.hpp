// Reads and writes through a kernel's pointers, from its PTX.
#pragma once

#include "instruction.hpp"

namespace check {

std::vector<Pointer> pointers_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions);

}  // namespace check
