// Instructions that load and store: see steps.hpp.
#include "steps.hpp"

#include <algorithm>

namespace check::machine {

namespace {

constexpr std::size_t kMostSlots = 4096;
constexpr Cell kFirstArgument = 4, kEndOfArguments = 16;  // R4 to R15 hand values to functions; more are on the stack

std::size_t first_address(const std::vector<Operand>& operands) {
    auto is_address = [](const Operand& operand) { return operand.form == Form::Address; };
    return std::size_t(std::find_if(operands.begin(), operands.end(), is_address) - operands.begin());
}

bool begins_with_addresses(const std::vector<Operand>& operands, std::size_t count) {
    return operands.size() >= count && std::all_of(operands.begin(), operands.begin() + i64(count),
                                                   [](const Operand& one) { return one.form == Form::Address; });
}

}  // namespace

void Steps::leave(Origin origin) {
    if (evidence_ && origin) evidence_->leave(origin);
}

Origin Steps::whole(const Operand& operand, unsigned width) {
    Origin all = 0;
    for (unsigned i = 0; i < width; i++) all = origins_.mixed(all, source(operand, i));
    return all;
}

void Steps::load_constant() {
    const Operands& operands = instruction_->operands;
    if (operands.size() < 2 || operands[0].form != Form::Register || operands[1].form != Form::Constant) {
        is_known_ = false;
        return;
    }
    Cell to = operands[0].cells[0];
    for (unsigned i = 0; i < width_in_memory(instruction_->name); i++) {
        Origin origin = constant(operands[1], i);
        write(to + i, is_partial(instruction_->name) ? origins_.bits(origin) : origin);
    }
}

// Adds up both halves of each register. [R2] is R2 and R3.
Steps::Address Steps::address(const Operand& operand) {
    Address sum = {0, 0};
    unsigned registers = 0;
    for (Cell cell : operand.cells) {
        if (cell == kNoCell) continue;
        sum.low = origins_.sum(sum.low, read(cell));
        if (registers++ || !operand.is_narrow) sum.high = origins_.sum(sum.high, read(cell + 1));
    }
    sum.low = registers > 1 ? origins_.scattered(sum.low) : origins_.moved(sum.low, operand.value);
    return sum;
}

void Steps::access(const Operand& operand, bool reads, bool writes) {
    if (operand.form != Form::Address) return;
    Address to = address(operand);
    // A value that is read from the parameters is in the registers now.
    if (!writes) to = {origins_.unplaced(to.low), origins_.unplaced(to.high)};
    if (evidence_ && (to.low || to.high))
        evidence_->access(to.low, to.high,
                          {reads, writes, instruction_->effect == Effect::Atomic, !instruction_->guard});
    if (operand.descriptor == kNoCell) return;
    leave(read(operand.descriptor));
    leave(read(operand.descriptor + 1));
}

// The result of a load if its address is one in the parameters. A constant of the instruction was added to those
// addresses that are known.
Origin Steps::loaded(Origin low, i64 offset, i64 constant) {
    Origin all = 0;
    bool is_first = true;
    for (const Item& item : origins_[low]) {
        i64 place = item.offset + offset + (item.what == What::Within ? constant : 0);
        place = std::clamp(place, -i64(kLargestParameters), i64(kLargestParameters));
        Part part = (item.what == What::Place ? place : offset) % 8 < 4 ? Part::Low : Part::High;
        Origin one = 0;
        if (item.what == What::Place && place >= 0 && place < kLargestParameters)
            one = origins_.of(What::Word, part, i32(place / 8 * 8));
        else if (item.what == What::Place || item.what == What::Within)
            one = origins_.of(What::Group, part, i32(place));
        all = is_first ? one : origins_.either(all, one);
        is_first = false;
    }
    bool is_certain = origins_[low].size() == 1 && origins_[low][0].trust == Trust::Sole;
    if (is_partial(instruction_->name)) return origins_.bits(all);
    return is_certain ? all : origins_.maybe(all);
}

void Steps::access_memory(bool reads, bool writes) {
    const Operands& operands = instruction_->operands;
    std::size_t place = first_address(operands);
    if (place == operands.size()) return use_unknown();
    access(operands[place], reads, writes);
    unsigned width = width_in_memory(instruction_->name);
    for (std::size_t i = place + 1; i < operands.size(); i++) leave(whole(operands[i], width));
    Origin low = address(operands[place]).low;
    i64 offset = 0;
    for (std::size_t i = 0; i < place; i++) {
        for (unsigned j = 0; j < width && operands[i].form == Form::Register; j++, offset += 4)
            write(operands[i].cells[0] + j, loaded(low, offset, operands[place].value));
    }
}

void Steps::copy_in() {
    const Operands& operands = instruction_->operands;
    if (!begins_with_addresses(operands, 2)) return use_unknown();
    access(operands[1], true, false);
}

// UBLKCP.G.S [UR4], [UR8] writes to the first; UBLKCP.S.G reads from the second.
void Steps::copy_in_bulk() {
    const Operands& operands = instruction_->operands;
    bool from_chip = instruction_->name.find(".G.S") != std::string_view::npos;
    bool to_chip = instruction_->name.find(".S.G") != std::string_view::npos;
    if (!begins_with_addresses(operands, 2) || from_chip == to_chip) return use_unknown();
    bool reduces = instruction_->name.find("RED") != std::string_view::npos;
    access(operands[to_chip], to_chip || reduces, from_chip);
}

void Steps::follow_maps() {
    for (const Operand& operand : instruction_->operands) {
        Address map = address(operand);
        if (evidence_ && operand.form == Form::Address) evidence_->follow_map(map.low, map.high);
    }
}

// Addresses in memory of the block have 32 bits, so that no word is one. A value that is stored there may be loaded
// again.
void Steps::use_chip() {
    const Operands& operands = instruction_->operands;
    std::size_t place = first_address(operands);
    if (place == operands.size()) return use_unknown();
    unsigned width = width_in_memory(instruction_->name);
    for (std::size_t i = place + 1; i < operands.size(); i++) leave(whole(operands[i], width));
    clear_results(place, width);
}

// The slot of a place on the stack, as [R1+0x10] if R1 is known; else kNoCell.
Cell Steps::slot(const Operand& operand, u32 number) {
    const Stack& stack = registers_->stack();
    if (operand.cells[0] != kStackPointer || operand.cells[1] != kNoCell || !stack.is_known) return kNoCell;
    i64 place = (stack.distance + operand.value + 4 * i64(number)) >> 2;
    auto found = slots_.find(place);
    if (found != slots_.end()) return found->second;
    Cell next = kCells + Cell(slots_.size());
    if (slots_.size() >= kMostSlots) return kNoCell;
    return slots_[place] = next;
}

void Steps::use_local(bool stores) {
    const Operands& operands = instruction_->operands;
    std::size_t place = first_address(operands), data = stores ? place + 1 : 0;
    if (place == operands.size() || data >= operands.size()) return use_unknown();
    bool is_part = is_partial(instruction_->name);
    for (unsigned i = 0; i < width_in_memory(instruction_->name); i++) {
        Cell there = slot(operands[place], i);
        if (!stores) {
            Origin origin = there == kNoCell ? anything_ : read(there);
            if (there == kNoCell || anywhere_) origin = origins_.mixed(origin, anywhere_);
            if (operands[0].form == Form::Register)
                write(operands[0].cells[0] + i, is_part ? origins_.bits(origin) : origin);
            continue;
        }
        Origin origin = source(operands[data], i);
        if (is_part) origin = origins_.bits(origin);
        anything_ = origins_.mixed(anything_, origin);
        if (there == kNoCell)
            anywhere_ = origins_.mixed(anywhere_, origin);
        else
            registers_->write(there, is_part ? origins_.mixed(read(there), origin) : origin, instruction_->guard);
    }
}

void Steps::call_others(Registers& registers, Evidence* evidence) {
    evidence_ = evidence;
    for (Cell cell = kFirstArgument; cell < kEndOfArguments; cell++) leave(registers.read(cell, 0));
    leave(anything_);
    registers.forget(~0u);
}

}  // namespace check::machine
