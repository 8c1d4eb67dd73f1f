// See width.hpp. Prefixes and opcodes: Intel's Software Developer's Manual, volume 2, chapter 2 and appendix A.
#include "width.hpp"

namespace check::host {

namespace {

constexpr unsigned kScalar = 8;

enum class Prefix : unsigned { None, Operand, Repeat, NotEqual };  // 66, F3, F2: the same numbers as in VEX

// movd, movq, movss, movsd, movlps, movhps, cvtsi2sd.
bool is_scalar(u8 opcode, Prefix prefix) {
    switch (opcode) {
        case 0x10:
        case 0x11: return prefix == Prefix::Repeat || prefix == Prefix::NotEqual;
        case 0x7E: return prefix == Prefix::Operand || prefix == Prefix::Repeat;
        case 0x12:
        case 0x13:
        case 0x16:
        case 0x17:
        case 0x2A:
        case 0x6E:
        case 0xD6: return true;
        default: return false;
    }
}

// Of the opcodes behind 0F those of general registers: movzx, movsx, imul, cmov.
bool is_general(u8 opcode) { return (opcode & 0xF6) == 0xB6 || opcode == 0xAF || (opcode & 0xF0) == 0x40; }

}  // namespace

unsigned width_of(const u8* at) {
    Prefix prefix = Prefix::None;
    for (int i = 0; i < 5; i++, at++) {
        switch (*at) {
            case 0xC5:  // VEX, of two bytes
                if (is_scalar(at[2], Prefix(at[1] & 3))) return kScalar;
                return at[1] & 4 ? 32 : 16;
            case 0xC4:  // … of three
                if ((at[1] & 31) == 1 && is_scalar(at[3], Prefix(at[2] & 3))) return kScalar;
                return at[2] & 4 ? 32 : 16;
            case 0x62: return 16u << (at[3] >> 5 & 3);  // EVEX
            case 0x66: prefix = Prefix::Operand; break;
            case 0xF3: prefix = Prefix::Repeat; break;
            case 0xF2: prefix = Prefix::NotEqual; break;
            case 0x0F: return is_scalar(at[1], prefix) || is_general(at[1]) ? kScalar : 16;
            default:
                if ((*at & 0xF0) != 0x40) return kScalar;  // else REX
        }
    }
    return kScalar;
}

}  // namespace check::host
