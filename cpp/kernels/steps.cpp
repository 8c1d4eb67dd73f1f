// Instructions that compute: see steps.hpp. Those of memory are in steps_of_memory.cpp.
#include "steps.hpp"

#include <algorithm>

namespace check::machine {

namespace {

const Operand kNothing;
constexpr i64 kSmallestPart = 8;       // of a shift to the left: a smaller one moves no bytes to their places
constexpr i64 kSignShift = 31;
constexpr i64 kLargestRemainder = 0xffff;  // of what is masked: what it leaves is a remainder, and no address
constexpr i64 kAnd = 0xc0;             // as LOP3 has the and of its first two sources
constexpr i64 kFirst = 0x3210, kLast = 0x7654;  // as PRMT has all four bytes of one source

const Operand& at(const std::vector<Operand>& operands, std::size_t number) {
    return number < operands.size() ? operands[number] : kNothing;
}

bool is_number(const Operand& operand, i64 value) { return operand.form == Form::Number && operand.value == value; }

bool is_nothing(const Operand& operand) { return operand.form == Form::Zero || is_number(operand, 0); }

bool is_value(const Operand& operand) { return operand.form == Form::Register || operand.form == Form::Constant; }

// The lower 32 bits, with a sign.
i64 extended(i64 value) { return i64(i32(std::uint32_t(value))); }

}  // namespace

const Layout* layout_of(u32 base) {
    static const Layout layouts[] = {
        {0x160, 0x40, -0x160, 0x20},  // sm_70 to sm_89: the address of the bank
        {0x210, 0x198, 0, 0x20},      // sm_90
        {0x380, 0x348, 0, 0x2f8},     // sm_100 to sm_121
    };
    for (const Layout& layout : layouts)
        if (layout.base == base) return &layout;
    return nullptr;
}

Origin Steps::constant(const Operand& operand, u32 half) {
    if (operand.bank) return 0;
    i64 place = operand.value + 4 * i64(half), offset = place - layout_.base;
    if (place + 4 > layout_.local && place < layout_.local + 8) has_local_addresses_ = true;
    if (operand.cells[0] != kNoCell) {
        offset = std::clamp(offset, -i64(kLargestParameters), i64(kLargestParameters));
        return origins_.of(What::Group, half % 2 ? Part::High : Part::Low, i32(offset));
    }
    if (offset >= 0 && offset < kLargestParameters)
        return origins_.of(What::Word, offset % 8 < 4 ? Part::Low : Part::High, i32(offset / 8 * 8));
    if (place == layout_.place) return origins_.of(What::Place, Part::Low, layout_.offset);
    if (place == layout_.place + 4) return origins_.of(What::Place, Part::High, 0);
    return 0;
}

Origin Steps::source(const Operand& operand, u32 half) {
    Origin origin = 0;
    if (operand.form == Form::Register) origin = read(operand.cells[0] + half);
    if (operand.form == Form::Constant) origin = constant(operand, half);
    return operand.is_negative ? origins_.negative(origin) : origin;
}

// The stack pointer comes from the driver, and is known as long as nothing but constants is added to it.
void Steps::write(Cell cell, Origin origin) {
    if (cell == kStackPointer) {
        bool is_begin = false;
        for (const Operand& operand : instruction_->operands)
            is_begin |= operand.form == Form::Constant && !operand.bank && operand.value < layout_.base;
        registers_->stack() = {0, is_begin};
    }
    registers_->write(cell, origin, instruction_->guard);
}

void Steps::result(Origin low) {
    const Operand& to = at(instruction_->operands, 0);
    if (to.form == Form::Register) write(to.cells[0], low);
}

void Steps::result(Origin low, Origin high) {
    const Operand& to = at(instruction_->operands, 0);
    if (to.form != Form::Register) return;
    write(to.cells[0], low);
    write(to.cells[0] + 1, high);
}

void Steps::clear_results(std::size_t count, unsigned width) {
    for (std::size_t i = 0; i < count; i++) {
        const Operand& to = at(instruction_->operands, i);
        if (to.form == Form::Register)
            for (unsigned j = 0; j < width; j++) write(to.cells[0] + j, 0);
    }
}

void Steps::move() {
    const Operand& from = at(instruction_->operands, 1);
    if (has_part("64"))
        result(source(from), source(from, 1));
    else
        result(source(from));
}

// Where one of the two is zero, which is not an address, the result is taken for the other one.
void Steps::select() {
    const Operand &a = at(instruction_->operands, 1), &b = at(instruction_->operands, 2);
    auto chosen = [&](u32 half) {
        if (is_nothing(a)) return source(b, half);
        return is_nothing(b) ? source(a, half) : origins_.either(source(a, half), source(b, half));
    };
    if (has_part("64"))
        result(chosen(0), chosen(1));
    else
        result(chosen(0));
}

// R1 = R1 + a constant.
bool Steps::adjust_stack() {
    if (instruction_->guard) return false;
    i64 distance = 0;
    for (std::size_t i = 0; i < instruction_->operands.size(); i++) {
        const Operand& operand = instruction_->operands[i];
        if (operand.form == Form::Number)
            distance += extended(operand.value);
        else if (operand.form == Form::Register ? operand.cells[0] != kStackPointer || operand.is_negative
                                                : operand.form != Form::Zero)
            return false;
    }
    registers_->stack().distance += distance;
    return true;
}

void Steps::add(bool is_wide) {
    const Operands& operands = instruction_->operands;
    if (at(operands, 0).form == Form::Register && at(operands, 0).cells[0] == kStackPointer && adjust_stack()) return;
    Origin sums[2] = {0, 0};
    i64 distance = 0;
    unsigned values = 0;
    for (std::size_t i = 1; i < operands.size(); i++) {
        for (u32 half = 0; half <= u32(is_wide); half++)
            sums[half] = origins_.sum(sums[half], source(operands[i], half));
        if (operands[i].form == Form::Number) distance += extended(operands[i].value);
        values += is_value(operands[i]);
    }
    Origin low = values > 1 ? origins_.scattered(sums[0]) : origins_.moved(sums[0], distance);
    if (is_wide)
        result(low, sums[1]);
    else
        result(low);
}

// LEA: a << n, and b added. LEA.HI: what is shifted out at the top of a, or of c and a, and b added.
void Steps::add_scaled() {
    const Operands& operands = instruction_->operands;
    if (has_part("64")) return use_unknown();
    const Operand &a = at(operands, 1), &b = at(operands, 2), &c = at(operands, 3);
    i64 by = operands.empty() || operands.back().form != Form::Number ? 0 : operands.back().value;
    auto scaled = [&](const Operand& operand) {
        Origin origin = source(operand);
        if (!by) return origin;
        return by < kSmallestPart ? origins_.product(origin) : origins_.bits(origin);
    };
    Origin sum = origins_.sum(scaled(a), is_value(c) ? scaled(c) : 0);
    sum = origins_.sum(sum, source(b));
    result(is_nothing(a) ? sum : origins_.scattered(sum));
}

// A product is not an address, unless one factor is 1.
Origin Steps::factor(const Operand& a, const Operand& b) {
    if (is_nothing(a) || is_nothing(b)) return 0;
    if (is_number(b, 1)) return source(a);
    if (is_number(a, 1)) return source(b);
    if (b.form == Form::Number && extended(b.value) == -1) return origins_.negative(source(a));
    return origins_.sum(origins_.product(source(a)), origins_.product(source(b)));
}

// IMAD also moves and adds, as IMAD.MOV and IMAD.IADD.
void Steps::multiply() {
    if (has_part("64")) return use_unknown();
    const Operand &a = at(instruction_->operands, 1), &b = at(instruction_->operands, 2),
                  &c = at(instruction_->operands, 3);
    if (has_part("HI")) {
        Origin parts = origins_.sum(origins_.bits(source(c)), origins_.bits(source(c, 1)));
        return result(origins_.sum(parts, origins_.product(factor(a, b))));
    }
    Origin term = factor(a, b), low = origins_.sum(term, source(c));
    bool is_sum = !is_nothing(a) && !is_nothing(b) && is_value(c);
    if (is_sum)
        low = origins_.scattered(low);
    else if (c.form == Form::Number)
        low = origins_.moved(low, extended(c.value));
    if (has_part("WIDE"))
        result(low, source(c, 1));
    else
        result(low);
}

// The last operand has a bit for each combination of bits of the three sources.
void Steps::mask() {
    const Operands& operands = instruction_->operands;
    const Operand &a = at(operands, 1), &b = at(operands, 2), &c = at(operands, 3);
    if (has_part("64")) return use_unknown();
    unsigned values = is_value(a) + is_value(b) + is_value(c);
    Origin all = origins_.sum(source(a), origins_.sum(source(b), source(c)));
    bool is_and = is_number(at(operands, 4), kAnd) && b.form == Form::Number;
    if (values == 1 && is_and && b.value >= 0 && b.value <= kLargestRemainder)
        result(origins_.bits(all));
    else
        result(origins_.scattered(values == 1 && is_and ? all : origins_.maybe(all)));
}

void Steps::shift() {
    const Operand &low = at(instruction_->operands, 1), &by = at(instruction_->operands, 2),
                  &high = at(instruction_->operands, 3);
    Origin all = origins_.sum(source(low), source(high));
    i64 count = by.form == Form::Number ? by.value : 0;
    bool is_left = has_part("L");
    if (!is_left && count == kSignShift && is_nothing(low)) return result(0);
    result(is_left && count > 0 && count < kSmallestPart ? origins_.product(all) : origins_.bits(all));
}

void Steps::permute() {
    const Operand &a = at(instruction_->operands, 1), &bytes = at(instruction_->operands, 2),
                  &b = at(instruction_->operands, 3);
    if (is_number(bytes, kFirst)) return result(source(a));
    if (is_number(bytes, kLast)) return result(source(b));
    result(origins_.bits(origins_.sum(source(a), origins_.sum(source(bytes), source(b)))));
}

void Steps::mix(bool in_bits) {
    Origin all = 0;
    for (std::size_t i = 1; i < instruction_->operands.size(); i++)
        all = origins_.mixed(all, source(instruction_->operands[i]));
    result(in_bits ? origins_.bits(all) : origins_.scattered(all));
}

// Every operand may be an address that the instruction uses, and its results are not known.
void Steps::use_unknown() {
    constexpr unsigned kWidest = 4;
    const Operand* first = nullptr;
    for (const Operand& operand : instruction_->operands) {
        for (Cell cell : operand.cells)
            for (unsigned i = 0; i < kWidest && cell != kNoCell; i++) leave(read(cell + i));
        for (unsigned i = 0; i < kWidest && operand.form == Form::Constant; i++) leave(constant(operand, i));
        if (!first && operand.form == Form::Register) first = &operand;
    }
    for (unsigned i = 0; i < kWidest && first; i++) {
        Cell cell = first->cells[0] + i;
        registers_->write(cell, origins_.maybe(registers_->read(cell, 0)), 0);
    }
}

void Steps::follow(const Instruction& instruction, Registers& registers, Evidence* evidence) {
    instruction_ = &instruction;
    registers_ = &registers;
    evidence_ = evidence;
    for (const Operand& operand : instruction.operands) is_known_ &= operand.form != Form::Bindless;
    switch (instruction.effect) {
        case Effect::Constant: load_constant(); break;
        case Effect::Load: access_memory(true, false); break;
        case Effect::Store: access_memory(false, true); break;
        case Effect::Atomic: access_memory(true, true); break;
        case Effect::CopyIn: copy_in(); break;
        case Effect::Bulk: copy_in_bulk(); break;
        case Effect::Tensor: follow_maps(); break;
        case Effect::OnChip: use_chip(); break;
        case Effect::FromLocal: use_local(false); break;
        case Effect::ToLocal: use_local(true); break;
        case Effect::Move: move(); break;
        case Effect::Select: select(); break;
        case Effect::Sum: add(has_part("64")); break;
        case Effect::ScaledSum: add_scaled(); break;
        case Effect::Multiply: multiply(); break;
        case Effect::Mask: mask(); break;
        case Effect::Shift: shift(); break;
        case Effect::Permute: permute(); break;
        case Effect::Mixed: mix(false); break;
        case Effect::Bits: mix(true); break;
        case Effect::Value: clear_results(1, width_of_value(instruction.name)); break;
        case Effect::Unknown: use_unknown(); break;
        default: break;
    }
    registers.forget(instruction.changed_predicates);
}

}  // namespace check::machine
