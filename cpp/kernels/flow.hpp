// Which of a kernel's pointers it reads and writes through, from its PTX.
#pragma once

#include "instruction.hpp"

namespace check {

std::vector<Pointer> pointers_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions);

}  // namespace check
