// Addresses that a kernel's first thread uses, from its PTX: the pointer itself, or another place.
#pragma once

#include "instruction.hpp"

namespace check {

// By the offset of the word; a word that is not there is accessed in ways that are not followed.
std::map<u32, Start> starts_of(const PtxKernel& kernel, const std::vector<Instruction>& instructions);

}  // namespace check
