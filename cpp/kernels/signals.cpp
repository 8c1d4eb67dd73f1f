// Scopes of instructions: see signals.hpp.
#include "signals.hpp"

#include <algorithm>

namespace check {

namespace {

// The host has no part in memory of a block, however strong the access.
bool is_of_block(const Instruction& instruction) {
    Kind kind = kind_of(instruction);
    bool has_space = kind == Kind::Load || kind == Kind::Store || kind == Kind::Atomic || kind == Kind::Reduce;
    return has_space && (instruction.has("shared") || instruction.has("local"));
}

bool may_signal(const Instruction& instruction) {
    if (instruction.is("call")) return true;
    bool is_of_system = instruction.has("sys") || instruction.has("volatile") || instruction.has("mmio");
    return is_of_system && !is_of_block(instruction);
}

}  // namespace

bool may_signal(const std::vector<Instruction>& instructions) {
    return std::any_of(instructions.begin(), instructions.end(),
                       [](const Instruction& instruction) { return may_signal(instruction); });
}

}  // namespace check
