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

// -- machine code -----------------------------------------------------------------------------------------------------

constexpr u64 kBytes = 16;  // of an instruction

template <std::size_t count>
bool is_among(u64 value, const u64 (&values)[count]) {
    return std::find(values, values + count, value) != values + count;
}

// The encodings of these were compared with what nvdisasm prints.
bool is_known_chip(u64 sm) { return is_among(sm, {75, 80, 86, 89, 90, 100, 103, 110, 120, 121}); }

// LD, LDG, ST, STG, ATOM, RED, ATOMG and their forms for vectors and several devices.
bool has_order(u64 opcode) {
    return is_among(opcode,
                    {0x180, 0x181, 0x185, 0x186, 0x18a, 0x18b, 0x18e, 0x1a2, 0x1a3, 0x1a4, 0x1a6, 0x1a8, 0x1a9});
}

// Arithmetic and conversions stand below the others. Of those, jumps and barriers within the device (CCTL, BSYNC, BSSY,
// YIELD, BRA, WARPSYNC, BRX, EXIT, LEPC, RET, RPCMOV, BMOV, BPT, NANOSLEEP), textures and surfaces, memory that is of a
// block or constant, and copies (LDGSTS, UTMA…, UBLK…). ERRBAR follows each MEMBAR, whatever its scope.
bool is_silent(u64 opcode) {
    return opcode < 0x140 ||
           is_among(opcode,
                    {0x140, 0x141, 0x145, 0x146, 0x147, 0x148, 0x149, 0x14d, 0x14e, 0x150, 0x152, 0x153, 0x155, 0x15c,
                     0x15d, 0x160, 0x182, 0x183, 0x184, 0x187, 0x188, 0x189, 0x18d, 0x18f, 0x199, 0x19d, 0x1a1, 0x1aa,
                     0x1ab, 0x1ac, 0x1ae, 0x1af, 0x1b5, 0x1b7, 0x1b9, 0x1ba, 0x1bb, 0x1c2, 0x1c3, 0x1c4, 0x1c6});
}

// On sm_75 two bits for the scope and two for the order, where weak accesses have the system's scope. Later one number:
// weak, constant, and strong for a block and for the device.
bool is_of_system(u64 order, u64 sm) {
    return sm < 80 ? is_among(order, {0b1011, 0b1111}) : !is_among(order, {0, 4, 5, 7});
}

bool may_signal(u64 low, u64 high, u64 sm) {
    constexpr u64 kBarrier = 0x192, kSystem = 3;  // MEMBAR, and its scope
    u64 opcode = low & 0x1ff;
    if (has_order(opcode)) return is_of_system(high >> 13 & 15, sm);
    if (opcode == kBarrier) return (high >> 12 & 7) == kSystem;
    return !is_silent(opcode);
}

}  // namespace

bool may_signal(Bytes code, u64 sm) {
    if (!is_known_chip(sm) || !code.size()) return true;
    for (u64 at = 0; at < code.size(); at += kBytes)
        if (may_signal(code.number(at, 8), code.number(at + 8, 8), sm)) return true;
    return false;
}

bool may_signal(const std::vector<Instruction>& instructions) {
    return std::any_of(instructions.begin(), instructions.end(),
                       [](const Instruction& instruction) { return may_signal(instruction); });
}

}  // namespace check
